"""Pulling workers without nodes: a frontier in a store, plain Scrapy processes, and the collection of their parts."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from scrapyd_dist.batches import (
    PUT_OFF,
    PUT_OFF_REASON,
    AttemptState,
    Batch,
    Crawl,
    CrawlState,
    Miss,
    WorkerEntry,
    home_of,
)
from scrapyd_dist.errors import StepRefused
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.joblogs.worker_report import WorkerReport, misses, read_report, refusal
from scrapyd_dist.payload import decode, encode, fit
from scrapyd_dist.store import open_store

from .commands import Command
from .crawls import ADDON
from .projects import Project
from .waiting import wait_for

CRAWL = "shop"
#: what a worker does with a request that it has leased
ENDS = ("returned", "dropped_by_hook", "not_made", "left")
_numbers = itertools.count(1)


class Frontier:
    """A frontier of one project, which has the store and the logs in its folder; `fields` are of the crawl's row."""

    def __init__(
        self,
        project: Project,
        spider: str = "plain",
        *,
        start: Callable[..., Command],
        where: str = "",
        **fields: Any,
    ) -> None:
        self.project, self.spider, self._start = project, spider, start
        self.where = where or str(project.path / "store.db")
        self.store = open_store(self.where)
        row = Crawl(
            id=CRAWL,
            project=project.name,
            spider=spider,
            state=CrawlState.WORKING,
            created=time.time(),
            **fields,
        )
        self.store.add_crawl(row)
        self.home = home_of(row.id, row.created)
        self.folder = project.path / "logs" / "_sdist" / self.home
        #: what came home of accepted attempts
        self.items: list[dict[str, Any]] = []
        self.refused: list[str] = []

    def close(self) -> None:
        self.store.close()

    def add(
        self,
        values: Sequence[Any],
        *,
        size: int = 10,
        slot: str = "",
        priority: int = 0,
        key: bytes | None = None,
    ) -> None:
        """Put requests (addresses, or values of the codec) into batches."""
        rows = [value if isinstance(value, dict) else {"url": value} for value in values]
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            prints = tuple(next(_numbers).to_bytes(20, "big") for _ in some)
            new = NewBatch(
                payload=encode(some, key=key),
                size=len(some),
                slot=slot,
                priority=priority,
                fingerprints=prints,
                sealed_at=time.time(),
            )
            self.store.add_batches(CRAWL, [new])

    def arguments(
        self, worker: int, *, spider: str = "", settings: dict[str, Any] | None = None, **order: Any
    ) -> list[str]:
        """Of the `scrapy` command that is worker number `worker`."""
        told = {
            "crawl": CRAWL, "worker": worker, "home": self.home, "node": "here", "url": "http://127.0.0.1:1",
            "store": self.where, "lease": 60.0, **order,
        }  # fmt: skip
        spider = spider or self.spider
        ours = {
            "ADDONS": json.dumps(ADDON), "DISTRIBUTED_PULL": json.dumps(told), "DISTRIBUTED_MIN_FREE": 1,
            "LOG_FILE": str(self.project.path / "logs" / self.project.name / spider / f"{self.job(worker)}.log"),
            **(settings or {}),
        }  # fmt: skip
        self.list_worker(worker)
        (self.project.path / "logs" / self.project.name / spider).mkdir(parents=True, exist_ok=True)
        return [
            "crawl",
            spider,
            *(word for name, value in ours.items() for word in ("-s", f"{name}={value}")),
        ]

    def list_worker(self, worker: int) -> None:
        """Do as the scheduler does before it posts a worker."""
        entry = WorkerEntry(
            number=worker,
            job=self.job(worker),
            url="http://127.0.0.1:1",
            pool="",
            since=time.time(),
        )
        self.store.add_workers(CRAWL, [entry], last=worker)

    def begin(self, worker: int, **order: Any) -> Command:
        """Start a worker; `order` is that of `arguments`."""
        return self._start(self.project, *self.arguments(worker, **order))

    def run(self, worker: int, **order: Any) -> None:
        """A worker to its end, which has to be a good one."""
        assert self.begin(worker, **order).wait(60).code == 0, self.log(worker)

    def collect(self, worker: Command) -> None:
        """Accept parts until all batches are done; then the worker has to end well."""

        def are_done() -> bool:
            self.accept()
            return self.states().keys() == {"done"}

        wait_for(are_done, 60, "the end of all batches")
        assert worker.wait(30).code == 0

    def work(self, worker: int, **order: Any) -> None:
        """A worker to its end, by which all batches are done."""
        self.collect(self.begin(worker, **order))

    def job(self, worker: int) -> str:
        return f"{self.folder.name}.w{worker}.a1"

    def report(self, worker: int) -> WorkerReport:
        return read_report((self.folder / f"{self.job(worker)}.json").read_bytes())

    def said(self, worker: int) -> dict[str, Any]:
        """The same as it is written."""
        document: dict[str, Any] = json.loads(
            (self.folder / f"{self.job(worker)}.json").read_text()
        )
        return document

    def turns(self, worker: int) -> dict[str, int]:
        """What became of the requests that a worker has leased; there is an end for each of them."""
        stats = self.report(worker).stats
        counts = {end: int(stats.get(f"distributed/requests_{end}", 0)) for end in ENDS}
        assert sum(counts.values()) == stats.get("distributed/requests_leased", 0), (counts, stats)
        return {end: number for end, number in counts.items() if number}

    def log(self, worker: int, spider: str = "") -> str:
        name = spider or self.spider
        path = self.project.path / "logs" / self.project.name / name / f"{self.job(worker)}.log"
        return path.read_text() if path.exists() else "no log"

    def acked(self) -> int:
        """How many attempts wait to be accepted."""
        return len(self.store.attempts(CRAWL, {AttemptState.ACKED}))

    def accept(self) -> None:
        """Do as the scheduler does: collect acked parts, give up leases that are not renewed."""
        for attempt in self.store.attempts(CRAWL, {AttemptState.ACKED}):
            batch = self.store.batch(CRAWL, attempt.batch)
            report = read_report(json.dumps(dict(attempt.report)).encode())
            reason = refusal(report, batch.size, feed=False)
            if reason:
                self.refused.append(reason)
                self._fail(attempt.batch, attempt.number, reason)
                continue
            assert report.part
            data = (self.folder / report.part.file).read_bytes()
            assert hashlib.sha256(data).hexdigest() == report.part.sha256
            rows = [json.loads(line) for line in data.splitlines()]
            assert len(rows) == report.part.items == report.items
            put_off = {
                place: runs or ()
                for place, kind, runs in report.missed_requests or ()
                if kind == PUT_OFF
            }
            made_again = {
                first + at
                for runs in put_off.values()
                for first, count in runs
                for at in range(count)
            }
            self.store.accept(
                CRAWL, attempt.batch, attempt.number, report={}, part=report.part.file,
                misses=misses(report, attempt.batch), now=time.time(),
            )  # fmt: skip
            self.items += [row for place, row in enumerate(rows) if place not in made_again]
            self._put_off(batch, list(put_off))
        for attempt in self.store.expired(CRAWL):
            self._fail(attempt.batch, attempt.number, "its lease has run out")

    def _put_off(self, batch: Batch, places: Sequence[int]) -> None:
        """Let these requests of it wait in a new batch."""
        values = decode(self.store.payload(CRAWL, batch.number).get, key=None)
        for piece, settings in fit([values[place] for place in places], key=None) if places else ():
            rest = [
                Miss(url=value["url"], kind="failed", reason=PUT_OFF_REASON, batch=batch.number)
                for value in piece
            ]
            new = NewBatch(payload=settings, size=len(piece), slot=batch.slot)
            self.store.retry(CRAWL, batch.number, [new], misses=rest, now=time.time())

    def _fail(self, batch: int, attempt: int, reason: str) -> None:
        with suppress(StepRefused):
            self.store.fail(CRAWL, batch, attempt, reason=reason, now=time.time(), max_attempts=9)

    def states(self) -> dict[str, int]:
        """State of batches -> how many."""
        counts: dict[str, int] = {}
        for batch in self.store.batches(CRAWL):
            counts[batch.state.value] = counts.get(batch.state.value, 0) + 1
        return counts

    def leftovers(self) -> list[str]:
        """Files that are half written."""
        return sorted(path.name for path in self.folder.glob("*.part"))


@pytest.fixture
def frontier(start_scrapy: Callable[..., Command]) -> Iterator[Callable[..., Frontier]]:
    """`frontier(project, spider="plain")`: an empty one."""
    with ExitStack() as stack:
        yield lambda *arguments, **fields: stack.enter_context(
            closing(Frontier(*arguments, start=start_scrapy, **fields))
        )


def values_of(urls: Iterable[str], **fields: Any) -> list[dict[str, Any]]:
    """Values of the codec that have these fields in common."""
    return [{"url": url, **fields} for url in urls]
