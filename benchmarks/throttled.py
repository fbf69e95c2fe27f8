"""Workers under one limit, of each kind, side by side on one site: started together, measured, and ended.

The rule it keeps: what left when is judged by the site's own log; the workers only say with which permit.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from cluster_rival import ClusterThrottle
from eager import project_of
from measure import RunError
from pollers import KEY
from rig.commands import SCRAPY, SDIST, Command
from rig.redis import RedisServer
from rig.sites import SiteProcess
from rig.waiting import wait_for
from scrapyd_dist.examples.pages import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapyd_dist.throttle.permits import Limit

#: seconds for all workers of a run to come up, or to end
PATIENCE = 120.0
#: seconds for which they run beyond the measured time, which begins with the first permit
_LONGER = 0.5
#: seconds between the last poller's start and the common beginning
_AHEAD = 2.0
#: elements in the queue that pollers take from
_PAGES = 100_000
_POLLERS = Path(__file__).with_name("pollers.py")
#: commands that our store sends; what they do inside of the server costs no round trip
_SCRIPTS = ("cmdstat_eval", "cmdstat_evalsha")


class Crawler(NamedTuple):
    """One `scrapy crawl` of a run."""

    spider: str = "eager"
    address: str = ""  #: that it sends its requests from


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One run: moments in seconds since the epoch, by the clock that this machine's processes share."""

    begin: float  #: the moment of the first permit
    grants: Mapping[str, float]  #: request target -> the moment of its permit
    hits: Mapping[str, float]  #: request target -> its arrival at the site
    given: int = 0  #: permits, those that were handed back among them
    asks: int = 0  #: times that the store was asked for permits
    denied: int = 0  #: times that it gave none
    commands: int = 0  #: that came to the Redis server, all told; 0 for a file


class Track:
    """The site, the stores, and the workers that run on them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack, self._runs = folder, ExitStack(), 0
        self.site = self._stack.enter_context(closing(SiteProcess(folder / "site", Site(items=1))))
        self._redis = self._stack.enter_context(
            # As it is mostly run: it may lose a second with the power.
            closing(RedisServer(folder / "redis", password=None, appendfsync="everysec"))
        )
        self._client = self._stack.enter_context(closing(redis.Redis.from_url(self._redis.url)))
        self.project = project_of(folder / "project")

    def close(self) -> None:
        """End all that runs."""
        self._stack.close()

    def store(self, engine: str) -> str:
        """The address of a new, empty store, of `sqlite` or of `redis`."""
        self._runs += 1
        return (
            f"{self._redis.url}?prefix=run{self._runs}:"
            if engine == "redis"
            else f"{self._folder}/run{self._runs}.db"
        )

    # pollers

    def poll(self, kind: str, engine: str, workers: int, limit: Limit, seconds: float) -> Seen:
        """Pollers of a kind, `ours` or `cluster`.

        Raises:
            RunError: one of them failed.
        """
        store, out = self.store(engine), self._out()
        if kind == "cluster":
            self._client.flushdb()
            ClusterThrottle(self._client, KEY, limit, "").fill(_PAGES)
        before, begin = self._sent(engine, kind), time.time() + _AHEAD
        arguments = {
            "kind": kind, "store": self._redis.url if kind == "cluster" else store, "site": self.site.url,
            "hits": limit.hits, "window": limit.window, "begin": begin, "seconds": seconds + _LONGER,
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in arguments.items()]
        self.site.reset()
        files = [out / f"{number}.json" for number in range(workers)]
        commands = [
            self._command(
                [sys.executable, str(_POLLERS), *words, f"--name={at}", f"--out={file}"], out
            )
            for at, file in enumerate(files)
        ]
        self.finish(commands, _AHEAD + seconds + PATIENCE)
        told = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        return self.seen(told, self._sent(engine, kind) - before)

    # real workers

    def start(self, crawlers: Sequence[Crawler], store: str, settings: Mapping[str, Any]) -> Racing:
        """Processes of `scrapy crawl` that are ready, and go together when they are told."""
        out = self._out()
        self.site.reset()
        commands = []
        for number, crawler in enumerate(crawlers):
            given = {"DISTRIBUTED_STORE": store, "DISTRIBUTED_THROTTLE": True, **settings}
            if crawler.address:
                given["DOWNLOAD_BIND_ADDRESS"] = crawler.address
            words = [word for name, value in given.items() for word in ("-s", f"{name}={value}")]
            line = [*SCRAPY, "crawl", crawler.spider, "-a", f"site={self.site.url}", "-a", f"folder={out}",
                    "-a", f"worker={number}", *words]  # fmt: skip
            commands.append(self._command(line, out))
        racing = Racing(self, commands, out)
        wait_for(racing.ready, PATIENCE, "the workers")
        return racing

    def crawl(self, engine: str, workers: int, limit: Limit, seconds: float) -> Seen:
        """So many workers under one limit, all of them with more requests than they may send."""
        before = self._sent(engine)
        settings = {
            "DISTRIBUTED_THROTTLE_HITS": limit.hits,
            "DISTRIBUTED_THROTTLE_WINDOW": limit.window,
        }
        racing = self.start([Crawler()] * workers, self.store(engine), settings)
        racing.go()
        wait_for(racing.underway, PATIENCE, "the first request")
        time.sleep(seconds + _LONGER)
        return racing.end(lambda: self._sent(engine) - before)

    def sdist(self, *words: str, store: str) -> Command:
        """A command of `sdist` that runs; `finish` waits for it."""
        return self._command([*SDIST, *words], self._folder, env={"SDIST_STORE": store})

    # all of them

    def _out(self) -> Path:
        self._runs += 1
        out = self._folder / f"out{self._runs}"
        out.mkdir()
        return out

    def _command(
        self, line: Sequence[str], out: Path, env: dict[str, str] | None = None
    ) -> Command:
        command = Command(line, cwd=self.project.path, folder=out, home=self.project.home, env=env)
        self._stack.callback(command.close)
        return command

    def finish(self, commands: Sequence[Command], timeout: float) -> None:
        """Wait for their ends.

        Raises:
            RunError: one of them failed.
        """
        for command in commands:
            done = command.wait(timeout)
            if done.code:
                raise RunError(
                    f"a command ended with {done.code}:\n{done.out[-2000:]}\n{done.err[-3000:]}"
                )

    def _sent(self, engine: str, kind: str = "ours") -> int:
        """Commands that clients have sent to the Redis server so far, by the server's own count."""
        if engine != "redis":
            return 0
        if kind == "cluster":
            return int(self._client.info("stats")["total_commands_processed"])
        stats = self._client.info("commandstats")
        return sum(int(stats[name]["calls"]) for name in _SCRIPTS if name in stats)

    def seen(self, told: Sequence[Mapping[str, Any]], commands: int) -> Seen:
        """What the workers told, beside what the site has in its log."""
        apart = time.time() - time.monotonic()
        hits = {row["target"]: row["time"] + apart for row in self.site.log()}
        grants = {use["target"]: use["at"] for one in told for use in one["used"]}
        if not grants:
            raise RunError("no process had a permit")
        return Seen(
            begin=min(grants.values()),
            grants=grants,
            hits=hits,
            given=sum(one["given"] for one in told),
            asks=sum(one["asks"] for one in told),
            denied=sum(one["denied"] for one in told),
            commands=commands,
        )


class Racing:
    """Workers that run."""

    def __init__(self, track: Track, commands: Sequence[Command], out: Path) -> None:
        self._track, self._commands, self._out = track, commands, out

    def ready(self) -> bool:
        """Whether all of them wait for the word."""
        for command in self._commands:
            if not command.running():
                raise RuntimeError(f"a worker ended before it began:\n{command.err[-3000:]}")
        return len(list(self._out.glob("*.ready"))) == len(self._commands)

    def go(self) -> None:
        """The word."""
        (self._out / "go").touch()

    def underway(self) -> bool:
        """Whether something came to the site."""
        return bool(self._track.site.hits())

    def end(self, commands: Callable[[], int] = lambda: 0) -> Seen:
        """Tell them to end, and what they did.

        Args:
            commands: counts what the store was asked, as long as they run.
        """
        sent = commands()
        for command in self._commands:
            with suppress(ProcessLookupError):
                command.signal(SIGTERM)
        self._track.finish(self._commands, PATIENCE)
        told = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(self._out.glob("*.json"))
        ]
        if len(told) != len(self._commands):
            raise RunError(f"{len(told)} of {len(self._commands)} workers told what they did")
        return self._track.seen(told, sent)
