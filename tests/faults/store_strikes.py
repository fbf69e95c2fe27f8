"""Stores that are away, full, locked, emptied or moved, or that come back without their last steps."""

import resource
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from faults.trial import Trial
from redis import Redis
from redis.crc import key_slot
from rig.redis import PASSWORD, ServerCluster
from rig.throttled import empty_throttle_tables
from rig.waiting import wait_for

#: bytes of a file beyond which the producer cannot write while it is capped
CAP = 32 << 10
#: keys that are moved in one step
MOVED = 20
#: the source of a library whose writes to a store fail with EIO
FAILING_DISK = Path(__file__).with_name("failing_disk.c")


def kill_redis(trial: Trial) -> None:
    """The Redis server is killed, and started again with its file."""
    trial.wait_moment()
    assert trial.redis
    trial.redis.kill()
    trial.redis.start()


def redis_full(trial: Trial) -> None:
    """The memory of the Redis server is full for some seconds: it refuses each step."""
    trial.wait_moment(0.1, 0.8)
    assert trial.redis
    with closing(Redis.from_url(trial.redis.url)) as server:
        server.config_set("maxmemory", 1)
        _wait_seconds(trial)
        server.config_set("maxmemory", 0)


def redis_fails_over(trial: Trial) -> None:
    """The Redis server comes back without the steps of its last moments, as a replica that was behind."""
    trial.wait_moment(0.3, 0.95)
    assert trial.redis
    folder = trial.redis.folder
    shutil.copytree(folder / "appendonlydir", folder / "behind")
    _wait_seconds(trial, 0.2, 0.4)  # the steps that are lost
    trial.redis.kill()
    shutil.rmtree(folder / "appendonlydir")
    (folder / "behind").rename(folder / "appendonlydir")
    trial.redis.start()


def redis_away(trial: Trial) -> None:
    """The Redis server is away for some seconds, and comes back with its file."""
    trial.wait_moment()
    assert trial.redis
    trial.redis.kill()
    _wait_seconds(trial)
    trial.redis.start()


def _wait_seconds(trial: Trial, low: float = 2, high: float = 8) -> None:
    """Wait for as long as the dice say."""
    over = time.monotonic() + trial.dice.uniform(low, high)
    wait_for(lambda: time.monotonic() > over, high + 20, "the end of the trouble")


def store_away(trial: Trial) -> None:
    """The store is away for some seconds: its server is killed, or another process holds its file."""
    if trial.redis:
        redis_away(trial)
        return
    trial.wait_moment()
    with closing(sqlite3.connect(trial.store_file, timeout=60, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        _wait_seconds(trial)
        database.execute("ROLLBACK")


def store_away_until_goal(trial: Trial) -> None:
    """The store is away for some seconds; after the goal that was reached the crawl goes on without."""
    store_away(trial)
    assert trial.goal
    trial.finish()
    if trial.row.summary.get("goal") == "requests":
        trial.hits_at_goal = sum(trial.site.hits().values())
    trial.resume()


def empty_redis(trial: Trial) -> None:
    """The Redis server comes back without any data: the crawl is lost, and no worker goes on without its rules.

    Some jobs that were sent before begin after that.
    """
    trial.wait_moment(0.2, 0.5)
    assert trial.redis
    with trial.new_jobs_held():
        trial.redis.kill()
        shutil.rmtree(trial.redis.folder / "appendonlydir")
        trial.is_store_lost = True
        trial.redis.start()
    wait_for(
        lambda: not any(node.job_pids() for node in trial.nodes),
        120,
        "the end of all workers of a crawl that its store has lost",
    )


def lose_rules(trial: Trial) -> None:
    """The store loses all that it knows of the throttle; the rule is set again after some seconds.

    Some jobs begin in between.
    """
    trial.wait_moment(0.2, 0.6)
    assert trial.limit
    with trial.new_jobs_held():
        if trial.redis:
            with closing(Redis.from_url(trial.redis.url)) as server:
                server.delete(*server.scan_iter(match="{sdist}:t:*"))
        else:
            empty_throttle_tables(trial.store_file)
    # Longer than a window: what has left before is not known to the store any more.
    _wait_seconds(trial, low=trial.limit.window + 1)
    if not trial.row.state.ended:
        trial.set_limit(trial.limit)


def cap_files(trial: Trial) -> None:
    """The producer cannot write beyond some bytes of any file for some seconds (EFBIG)."""
    trial.wait_moment()
    pid = trial.row.pid
    if not pid or trial.row.state.ended:
        return
    endless = resource.RLIM_INFINITY
    try:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (CAP, endless))
        _wait_seconds(trial)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (endless, endless))
    except ProcessLookupError:
        return


@contextmanager
def failing_disk(trial: Trial) -> Iterator[None]:
    """The commands write to the store through a library that can fail (needs a C compiler)."""
    library = trial.project.path.with_name("failing_disk.so")
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(FAILING_DISK), "-ldl"]
    subprocess.run(command, check=True)
    trial.env = {"LD_PRELOAD": str(library), "FAILING_DISK": str(_flag_of(trial))}
    yield


def _flag_of(trial: Trial) -> Path:
    return trial.project.path.with_name("disk-fails")


def fail_disk(trial: Trial) -> None:
    """The disk with the store fails for some seconds, as the process that coordinates sees it (EIO)."""
    trial.wait_moment()
    _flag_of(trial).touch()
    _wait_seconds(trial)
    _flag_of(trial).unlink()


def move_slot(trial: Trial) -> None:
    """The slot of the cluster that has the store moves to another server, key by key."""
    trial.wait_moment(0.05, 0.6)
    assert trial.cluster
    slot = key_slot(b"{sdist}")
    owner, heir = _owner_and_heir(trial.cluster, slot)
    clients = trial.cluster.clients
    names = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    clients[heir].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[owner])
    clients[owner].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[heir])
    way = ("127.0.0.1", trial.cluster.nodes[heir].port, "", 0, 5000, "AUTH", PASSWORD, "KEYS")
    while keys := clients[owner].execute_command("CLUSTER GETKEYSINSLOT", slot, MOVED):
        clients[owner].execute_command("MIGRATE", *way, *keys)
    for client in (clients[heir], clients[owner], *clients):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[heir])


def _owner_and_heir(cluster: ServerCluster, slot: int) -> tuple[int, int]:
    """Return which server has a slot, and another one; both by their place."""
    counts = [client.execute_command("CLUSTER COUNTKEYSINSLOT", slot) for client in cluster.clients]
    owner = counts.index(max(counts))
    return owner, (owner + 1) % len(counts)
