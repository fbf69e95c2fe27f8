"""Crawls of a generated web by a strategy: a fleet, what is killed at which moment, and the order at the web's log."""

from __future__ import annotations

import json
import os
import signal
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from w3lib.url import canonicalize_url

from scrapyd_dist.errors import PARTIAL, StoreError
from scrapyd_dist.frontier.intake import FAIR_SIZE
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.strategy.links import LinkChange, States

from .commands import SDIST, Command
from .nodes import Nodes, ScrapydNode
from .redis import RedisServer
from .waiting import wait_for
from .web_server import REDIRECTS, RETRIES, WebHit, WebProcess, web_project
from .webs import PAGE, PageVisits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from random import Random

#: the crawl's name, and its strategy
NAME, STRATEGY = "web", ("scrapyd_dist.strategy:BreadthFirst",)
ITEMS = "items.jl"
#: of a worker
AT_ONCE, AT_ONCE_PER_SITE = 16, 4
#: trouble is noticed within seconds
_SETTINGS: Mapping[str, Any] = {
    "ADDONS": {"scrapyd_dist.Addon": 500},
    "DISTRIBUTED_POLL_INTERVAL": 0.5,
    "DISTRIBUTED_REQUEST_TIMEOUT": 10,
    "DISTRIBUTED_NODE_TIMEOUT": 6,
    "DISTRIBUTED_FLEET_TIMEOUT": 8,
    "DISTRIBUTED_MIN_FREE": 1,
}
#: how often the command is given again after its process was killed
_RESUMES = 8
#: links in one look at the log of changes
_CHANGES = 10_000
#: what can be killed
STRATEGY_PROCESS, WORKER, STORE_SERVER = "strategy", "worker", "store"


class WebCrawl:
    """A generated web, real nodes, and `sdist strategy run` at them; with `redis` the store is a server.

    Args:
        folder: for all of it; has to exist.
        python: the interpreter of the nodes.
        sites, scale, seed: of the web.
        max_depth: of the crawl.
        nodes, workers: how many.
        ahead: requests of a site that wait in batches.
        patience: seconds for the whole crawl.
        strategy: its words in the command.
        files, settings: more of the project.
        at_once, per_site: requests of a worker at one time, and of these to one site.
    """

    def __init__(
        self, folder: Path, python: Path, *, sites: int, scale: float = 1.0, seed: int = 1, redis: bool = False,
        max_depth: int = 6, nodes: int = 3, workers: int = 3, ahead: int = 0, latency: float = 0.0,
        patience: float = 300.0, strategy: Sequence[str] = STRATEGY, files: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        at_once: int = AT_ONCE, per_site: int = AT_ONCE_PER_SITE,
    ) -> None:  # fmt: skip
        self._stack, self._patience = ExitStack(), patience
        try:
            self.redis = (
                self._stack.enter_context(closing(RedisServer(folder / "redis"))) if redis else None
            )
            self.web = self._stack.enter_context(
                closing(
                    WebProcess(folder / "web", sites=sites, seed=seed, scale=scale, latency=latency)
                )
            )
            maker = self._stack.enter_context(closing(Nodes(python, folder / "nodes")))
            self.nodes: list[ScrapydNode] = maker.fleet(nodes, max_proc=workers)
            self.project = web_project(folder / "project")
            for name, text in (files or {}).items():
                self.project.write(name, text)
            pace = {"CONCURRENT_REQUESTS": at_once, "CONCURRENT_REQUESTS_PER_DOMAIN": per_site}
            self.project.settings(**{**_SETTINGS, **pace, **(settings or {})})
            self.project.targets(self.nodes)
        except BaseException:
            self._stack.close()
            raise
        self.allowed: dict[str, PageVisits] = self.web.web.allowed(
            max_depth=max_depth, retries=RETRIES, redirects=REDIRECTS
        )
        self._words = [
            "strategy", "run", *strategy, "--spider=page", f"--seeds={self.web.seeds}", f"--name={NAME}",
            f"--workers={workers}", f"--max-depth={max_depth}", f"--ahead={ahead}", f"--output={ITEMS}", "--json",
        ]  # fmt: skip
        #: how many requests of one site may have left the queue: those that wait in batches, and what workers hold
        self.in_flight = (ahead or 64) + workers * (per_site + at_once + FAIR_SIZE)
        self.kills: Counter[str] = Counter()
        self.command: Command | None = None

    def close(self) -> None:
        self._stack.close()

    def begin(self) -> None:
        """Give the command, and again after each end of its process that was no end of the crawl."""
        env = {"SDIST_STORE": self.redis.url} if self.redis else None
        project = self.project
        command = Command(
            [*SDIST, *self._words],
            cwd=project.path,
            folder=project.output,
            home=project.home,
            env=env,
        )
        self.command = self._stack.enter_context(closing(command))

    def finish(self) -> None:
        """See the crawl to its end."""
        assert self.command
        done = self.command.wait(self._patience)
        for _ in range(_RESUMES):
            if done.code in {0, PARTIAL}:  # the web has pages that fail
                return
            self.begin()
            done = self.command.wait(self._patience)
        raise AssertionError(f"exit code {done.code}\n{done.out}\n{done.err}")

    def store(self) -> Store:
        return open_store(
            self.redis.url if self.redis else self.project.path / ".sdist" / "store.db"
        )

    def changes(self) -> Iterator[LinkChange]:
        """The whole log of changes."""
        with closing(self.store()) as store:
            after = 0
            while found := store.changes(NAME, after, _CHANGES):
                yield from found
                after = found[-1].number

    # moments and victims

    def kill_at(self, share: float, what: str, dice: Random) -> None:
        """Kill something once there are this share of as many hits as there are allowed pages."""
        moment = round(share * len(self.allowed))
        wait_for(
            lambda: self._over() or self.web.count() >= moment, self._patience, f"{moment} hits"
        )
        assert not self._over(), "the crawl has ended before"
        {
            STRATEGY_PROCESS: self._kill_strategy,
            WORKER: self._kill_worker,
            STORE_SERVER: self._kill_store,
        }[what](dice)
        self.kills[what] += 1

    def _over(self) -> bool:
        return self.command is None or not self.command.running()

    def _kill_strategy(self, _: Random) -> None:
        assert self.command
        pid = wait_for(self._pid, 60, "the process in the store")
        for one in {pid, self.command.pid}:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self.command.wait(self._patience)
        self.begin()

    def _pid(self) -> int | None:
        """The process that the store names; None while it cannot be asked: a server that begins loads its file."""
        with suppress(StoreError), closing(self.store()) as store:
            return store.crawl(NAME).pid
        return None

    def _kill_worker(self, dice: Random) -> None:
        victims = wait_for(
            lambda: [pid for node in self.nodes for pid in node.job_pids()], 60, "a worker"
        )
        os.kill(dice.choice(sorted(victims)), signal.SIGKILL)

    def _kill_store(self, _: Random) -> None:
        assert self.redis, "the store is no server"
        self.redis.kill()
        self.redis.start()

    # what came of it

    def wrong_items(self) -> dict[str, list[str]]:
        """How the items differ from the allowed pages, one of each; {} when they do not."""
        counts = Counter(str(item["url"]) for item in self.project.items(ITEMS))
        found = {
            "missing": [url for url in self._with_items() if not counts[url]],
            "unexpected": sorted(counts.keys() - self.allowed.keys()),
            "repeated": [url for url, count in counts.items() if count > self.allowed[url].most],
        }
        return {name: urls for name, urls in found.items() if urls}

    def _with_items(self) -> list[str]:
        pages = {url: self.web.web.page(url) for url in self.allowed}
        return sorted(url for url, page in pages.items() if page is not None and page.kind == PAGE)

    def order(self, score: Callable[[str], float] | None = None) -> SiteOrder:
        """The order at the web's log, by a function of the URL; by depth if left out."""
        scores = {
            url: score(url) if score else 1 / (one.depth + 1) for url, one in self.allowed.items()
        }
        return site_order(
            self.web.hits(), scores, {url: at for url, (at, _) in self._queued().items()}
        )

    def order_as_scored(self) -> SiteOrder:
        """The same, by the scores that the strategy gave when it queued the links."""
        queued = self._queued()
        scores = {url: score for url, (_, score) in queued.items()}
        return site_order(self.web.hits(), scores, {url: at for url, (at, _) in queued.items()})

    def _queued(self) -> dict[str, tuple[float, float]]:
        """URL -> when it was queued first, and its score then."""
        queued: dict[str, tuple[float, float]] = {}
        for change in self.changes():
            if change.after is States.QUEUED:
                queued.setdefault(canonicalize_url(change.url), (change.at, change.score))
        return queued

    def summary(self) -> dict[str, Any]:
        """What the command said at its end."""
        assert self.command
        told: dict[str, Any] = json.loads(self.command.out)
        return told


@dataclass(frozen=True, kw_only=True)
class SiteOrder:
    """How far the order of pages at each site was that of their scores."""

    pairs: int  #: of pages that were fetched one after the other from the same site
    respected: int  #: of these, pairs whose first page has no lower score
    unknown: int  #: pairs in the wrong order whose second page was not queued yet when the first was fetched
    overtaken: int  #: the most pages of lower scores that one page saw go first after it was queued

    @property
    def share(self) -> float:
        """Share of the pairs in the right order, as far as the strategy knew both."""
        known = self.pairs - self.unknown
        return self.respected / known if known else 1.0


def site_order(
    hits: Collection[WebHit], scores: Mapping[str, float], queued: Mapping[str, float]
) -> SiteOrder:
    """Compare the order at the log with the scores; `queued`: when each URL was queued, seconds since the epoch.

    A page counts where it was fetched first. Pages that only redirects lead to were never queued, and are left out.
    """
    by_site: dict[str, list[WebHit]] = defaultdict(list)
    seen: set[str] = set()
    for hit in hits:
        if hit.url in queued and hit.url in scores and hit.url not in seen:
            seen.add(hit.url)
            by_site[hit.host].append(hit)
    pairs = respected = unknown = overtaken = 0
    for fetched in by_site.values():
        for one, other in pairwise(fetched):
            pairs += 1
            if scores[one.url] >= scores[other.url]:
                respected += 1
            elif queued[other.url] > one.time:
                unknown += 1
        overtaken = max(overtaken, _overtaken(fetched, scores, queued))
    return SiteOrder(pairs=pairs, respected=respected, unknown=unknown, overtaken=overtaken)


def _overtaken(
    fetched: list[WebHit], scores: Mapping[str, float], queued: Mapping[str, float]
) -> int:
    """The most pages of one site that went before one with a higher score which was queued already."""
    most, times = 0, defaultdict[float, list[float]](list)  # by score: when such pages were fetched
    for hit in fetched:
        since = queued[hit.url]
        lower = sum(
            len(at) - bisect_left(at, since)
            for score, at in times.items()
            if score < scores[hit.url]
        )
        most = max(most, lower)
        insort(times[scores[hit.url]], hit.time)
    return most
