"""The kinds of trouble: each is a crawl's setting, and what happens to it at a moment that the dice choose."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.trial import Trial
from redis import Redis
from rig import proxy
from rig.proxy import Mishap
from rig.waiting import wait_for

#: where Debian has the library that shifts a process's clock
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
#: the node's disk in the trial that fills it
DISK_MB = 1
#: a trial whose nodes are reached through proxies, and the answers that these give in place of the node's
PROXIED = {"proxied": True}
ANSWERS = (proxy.FAILED_AFTER, proxy.FAILED_BEFORE, proxy.PAGE_AFTER, proxy.PAGE_BEFORE)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of trouble."""

    name: str
    strike: Callable[[Trial], None]  #: what happens, after `begin`
    redis: bool | None = None  #: which store it needs; None for either
    trial: Mapping[str, Any] = field(default_factory=dict)  #: arguments of `Trial`
    around: Callable[[Trial], Any] | None = None  #: a context that stands around the whole trial


def kill_worker(trial: Trial) -> None:
    """A worker is killed in the middle of its batch."""
    trial.wait_moment()
    victims = [pid for node in trial.nodes for pid in node.job_pids()]
    if victims:
        os.kill(trial.dice.choice(victims), signal.SIGKILL)


def kill_daemon(trial: Trial) -> None:
    """Scrapyd is killed, its workers live on as orphans; it is started again when its work has gone elsewhere."""
    trial.wait_moment()
    node = trial.victim()
    node.kill()
    if trial.dice.random() < 0.5:
        wait_for(
            lambda: trial.row.state.ended or _given_up(trial, node.name), 60, "its jobs given up"
        )
    node.restart()


def kill_machine(trial: Trial) -> None:
    """Scrapyd and all its workers are killed, and it comes back knowing no job."""
    trial.wait_moment()
    node = trial.victim()
    node.kill()
    node.kill_jobs()
    node.restart()


def restart_machines_in_turn(trial: Trial) -> None:
    """One machine after the other is killed with its jobs and comes back knowing none, three times each."""
    trial.wait_moment(0.05, 0.3)
    for node in [*trial.nodes] * 3:
        if trial.row.state.ended:
            return
        node.kill()
        node.kill_jobs()
        node.restart()
        _wait_for_attempt(trial, len(trial.attempts()))


def _wait_for_attempt(trial: Trial, known: int) -> None:
    wait_for(lambda: trial.row.state.ended or len(trial.attempts()) > known, 60, "another attempt")


def kill_producer(trial: Trial) -> None:
    """The process that coordinates is killed."""
    trial.wait_moment(0.0, 0.8)
    trial.kill_producer()


def kill_watcher(trial: Trial) -> None:
    """The command that watches is killed; the crawl goes on, and another command waits for it."""
    trial.wait_moment()
    assert trial.command
    trial.command.signal(signal.SIGKILL)
    trial.command.wait(20)
    trial.command = trial.cli("watch", trial.row.id, "--json")


def kill_redis(trial: Trial) -> None:
    """The Redis server is killed, and started again with its file."""
    trial.wait_moment()
    assert trial.redis
    trial.redis.kill()
    trial.redis.start()


def stop_machine(trial: Trial) -> None:
    """A node and its workers are stopped (SIGSTOP), and go on after their work has gone elsewhere."""
    trial.wait_moment()
    node = trial.victim()
    stopped = list(node.job_pids())
    node.pause()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    wait_for(
        lambda: trial.row.state.ended or not stopped or _given_up(trial, node.name),
        60,
        "its jobs given up",
    )
    node.go_on()
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def _given_up(trial: Trial, node: str) -> bool:
    return any(a.node == node and a.state.value == "failed" for a in trial.attempts())


def spoil(*mishaps: Mishap) -> Callable[[Trial], None]:
    """The next calls of schedule.json go wrong, some of each kind."""

    def strike(trial: Trial) -> None:
        for spoilt in trial.proxies:
            for mishap in trial.dice.choices(mishaps, k=2):
                spoilt.spoil("schedule.json", mishap)

    return strike


def spoil_all(trial: Trial) -> None:
    """Some of all calls go wrong, of any page, in any way."""
    trial.wait_moment(0.01, 0.3)  # before it has begun, a crawl is refused, as it should be
    for spoilt in trial.proxies:
        for mishap in trial.dice.choices([proxy.CUT, proxy.RESET, *ANSWERS], k=8):
            spoilt.spoil("*", mishap)


def fill_disk(trial: Trial) -> None:
    """The disk that one node writes its logs and parts to is full; later there is room again."""
    trial.wait_moment(0.05, 0.4)
    filler = trial.nodes[0].logs_dir / "filler"
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={filler}", "bs=1k"], check=False, capture_output=True
    )
    trial.wait_moment(0.6, 0.8)
    filler.unlink()


def remove_files(trial: Trial) -> None:
    """The folder with the parts and reports of one node is removed while its workers write there."""
    trial.wait_moment()
    shutil.rmtree(trial.victim().logs_dir / "_sdist", ignore_errors=True)


def remove_logs(trial: Trial) -> None:
    """The whole log folder of one node is deleted."""
    trial.wait_moment()
    shutil.rmtree(trial.victim().logs_dir, ignore_errors=True)


def remove_eggs(trial: Trial) -> None:
    """The folder with all code of one node is deleted."""
    trial.wait_moment(0.05, 0.4)
    shutil.rmtree(trial.victim().work / "eggs", ignore_errors=True)


def remove_home(trial: Trial) -> None:
    """The folder is deleted that the crawl's parts come home to."""
    trial.wait_moment(0.3, 0.7)
    shutil.rmtree(trial.home, ignore_errors=True)


def damage_home(trial: Trial) -> None:
    """Half of the parts that have come home are damaged: cut off, longer, another byte, empty, or gone."""
    trial.wait_moment(0.4, 0.9)
    parts = sorted((trial.home / "parts").glob("*.b*.jl"))
    for part in trial.dice.sample(parts, (len(parts) + 1) // 2):
        text = part.read_bytes()
        damaged = [
            text[:-9],
            text + b'{"more": 1}\n',
            text.replace(b"1", b"2", 1),
            text.replace(b"}", b"", 1),
            b"",
        ]
        part.write_bytes(trial.dice.choice(damaged))
    for part in trial.dice.sample(parts, len(parts) // 8):
        part.unlink()


def redis_full(trial: Trial) -> None:
    """The memory of the Redis server is full for some seconds: it refuses each step."""
    trial.wait_moment(0.1, 0.8)
    assert trial.redis
    with closing(Redis.from_url(trial.redis.url)) as server:
        server.config_set("maxmemory", 1)
        room = time.monotonic() + trial.dice.uniform(2, 8)
        wait_for(lambda: time.monotonic() > room, 20, "room in its memory")
        server.config_set("maxmemory", 0)


def redis_fails_over(trial: Trial) -> None:
    """The Redis server comes back without the steps of its last moments, as a replica that was behind."""
    trial.wait_moment(0.3, 0.95)
    assert trial.redis
    folder = trial.redis.folder
    shutil.copytree(folder / "appendonlydir", folder / "behind")
    behind = time.monotonic() + trial.dice.uniform(0.2, 0.4)
    wait_for(lambda: time.monotonic() > behind, 20, "the steps that are lost")
    trial.redis.kill()
    shutil.rmtree(folder / "appendonlydir")
    (folder / "behind").rename(folder / "appendonlydir")
    trial.redis.start()


def redis_away(trial: Trial) -> None:
    """The Redis server is away for some seconds, and comes back with its file."""
    trial.wait_moment()
    assert trial.redis
    trial.redis.kill()
    back = time.monotonic() + trial.dice.uniform(2, 8)
    wait_for(lambda: time.monotonic() > back, 20, "the end of its absence")
    trial.redis.start()


@contextmanager
def small_disk(trial: Trial) -> Iterator[None]:
    """A small file system of its own under one node's logs (needs root)."""
    logs = trial.nodes[0].logs_dir
    logs.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", logs], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", logs], check=True)


@contextmanager
def hanging_page(trial: Trial) -> Iterator[None]:
    """One page hangs in every worker, from the start."""
    trial.missed = trial.dice.randrange(trial.site.site.items)
    trial.hanging_page.write_text(trial.site.site.detail_path(trial.missed))
    yield


def hang_worker(trial: Trial) -> None:
    """A worker makes no progress any more, though its event loop turns and its leases are renewed."""
    trial.wait_moment(0.05, 0.5)
    trial.hanging_worker.touch()
    wait_for(
        lambda: trial.row.state.ended or not trial.hanging_worker.exists(),
        60,
        "a worker that hangs",
    )


def nothing(trial: Trial) -> None:
    """The trouble is there from the start."""


def kill_all_in_turn(trial: Trial) -> None:
    """A worker, a machine and the producer, one after the other."""
    for strike in trial.dice.sample([kill_worker, kill_machine, kill_producer], 3):
        if not trial.row.state.ended:
            strike(trial)


def kill_producer_thrice(trial: Trial) -> None:
    """The producer is killed three times, spread over the crawl, and the crawl is resumed each time."""
    for low, high in ((0.1, 0.3), (0.35, 0.55), (0.6, 0.8)):
        trial.wait_moment(low, high)
        trial.kill_producer()
        assert trial.command
        trial.command.wait(60)
        trial.resume()


_CLOCK = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+1h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
_BEHIND = {**_CLOCK, "FAKETIME": "-1h"}
STALL = {"DISTRIBUTED_STALL_TIMEOUT": 3}

KINDS = (
    Kind(name="a worker killed", strike=kill_worker),
    Kind(name="Scrapyd killed, its workers orphans", strike=kill_daemon),
    Kind(name="a machine killed, back with an empty job list", strike=kill_machine),
    Kind(name="machines restarted in turn", strike=restart_machines_in_turn),
    Kind(name="the producer killed", strike=kill_producer),
    Kind(name="the watcher killed", strike=kill_watcher),
    Kind(name="Redis killed, restarted with its file", strike=kill_redis, redis=True),
    Kind(name="a machine stopped, and going on later", strike=stop_machine),
    Kind(
        name="schedule.json: reset or cut in its answer",
        strike=spoil(proxy.CUT, proxy.RESET),
        trial=PROXIED,
    ),
    Kind(
        name="schedule.json: an answer past the time-out", strike=spoil(proxy.LATE), trial=PROXIED
    ),
    Kind(
        name="schedule.json: HTTP 500 and HTML, taken or not", strike=spoil(*ANSWERS), trial=PROXIED
    ),
    Kind(name="any page: reset, cut, 500, HTML", strike=spoil_all, trial=PROXIED),
    Kind(name="a full disk under a node's files", strike=fill_disk, around=small_disk),
    Kind(name="a node's parts and reports removed", strike=remove_files),
    Kind(name="a node's log folder deleted", strike=remove_logs),
    Kind(name="a node's eggs deleted", strike=remove_eggs),
    Kind(name="the crawl's own folder deleted", strike=remove_home),
    Kind(name="parts at home damaged", strike=damage_home),
    Kind(name="the store away and back", strike=redis_away, redis=True),
    Kind(name="Redis full for a while", strike=redis_full, redis=True),
    Kind(name="Redis failed over, its last steps lost", strike=redis_fails_over, redis=True),
    Kind(name="a clock an hour ahead", strike=nothing, trial={"node_env": {0: _CLOCK}}),
    Kind(name="a clock an hour behind", strike=kill_worker, trial={"node_env": {0: _BEHIND}}),
    Kind(name="worker, machine and producer, in turn", strike=kill_all_in_turn),
    Kind(
        name="a hanging page",
        strike=nothing,
        around=hanging_page,
        trial={
            "items": 120,
            "settings": {**STALL, "DISTRIBUTED_BATCH_SIZE": 8, "DISTRIBUTED_MAX_ATTEMPTS": 2},
        },
    ),
    Kind(name="a hanging worker, its loop turning", strike=hang_worker, trial={"settings": STALL}),
)

#: hours of work at a slow site, minutes here; not one of the kinds that take turns
LONG = Kind(
    name="50,000 pages, killed and resumed three times",
    strike=kill_producer_thrice,
    trial={
        "items": 50_000,
        "latency": 0.0,
        "patience": 1800.0,
        "settings": {"DISTRIBUTED_BATCH_SIZE": 1000, "CONCURRENT_REQUESTS_PER_DOMAIN": 16},
    },
)
