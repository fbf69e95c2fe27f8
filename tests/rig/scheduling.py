"""A scheduler at work on nodes in memory, with short patience, and what its store and its folder have in the end.

Workers there lease from its store when a test tells them to.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography.fernet import Fernet

from scrapyd_dist import __version__
from scrapyd_dist.batches import Attempt, AttemptState, Crawl, job_id
from scrapyd_dist.frontier.backlog import Leased, Lessee, NewBatch
from scrapyd_dist.items import part_fetch
from scrapyd_dist.keys import public_half
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling import monitor, staffing
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scheduling.scheduler import Scheduler
from scrapyd_dist.scheduling.scheduler_state import SchedulerLimits, SchedulerState
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.reach import Way
from scrapyd_dist.store.store_thread import StoreThread

from .nodemodel import ModelNode, ModelSender
from .stores import lease_next

T = TypeVar("T")
CRAWL = "c"
#: ids begin with it: without the digits of a real one they are easy to read
HOME = CRAWL
SPEC = JobRequest(crawl=CRAWL, home=HOME, project="p", spider="s", version="v1", args={"a": "1"})
QUICK = SchedulerLimits(
    poll=0.01,
    request_timeout=1,
    node_timeout=0.1,
    fleet_timeout=0.3,
    start_timeout=60,
    max_attempts=3,
)
#: the key in the egg of another project
OTHERS_KEY = Fernet.generate_key()


def run(work: Coroutine[Any, Any, T], timeout: float = 60) -> T:
    """In a thread: the test itself is called by pytest-twisted inside a loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result(timeout=timeout)


async def until(condition: Callable[[], object], what: str, timeout: float = 15) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout:g} s"
        await asyncio.sleep(0.005)


@dataclass(kw_only=True)
class ModelWorker:
    """A worker's job on a node in memory."""

    node: ModelNode
    job: str
    store: Store
    has: list[Leased] = field(default_factory=list)
    done: int = 0  #: requests

    @property
    def slots(self) -> list[str]:
        slots: list[str] = self.node.jobs[self.job].told["slots"]
        return slots

    def begin(self) -> ModelWorker:
        self.node.start(self.job)
        return self

    def lease(self, limit: int = 1, seconds: float = 60.0) -> list[Leased]:
        lessee = Lessee(job=self.job, node=self.node.name, url=self.node.node.url)
        leased = lease_next(
            self.store,
            CRAWL,
            lessee,
            slots=self.slots,
            seconds=seconds,
            limit=limit,
            now=time.time(),
        )
        self.has += leased
        return leased

    def finish(self, *, part: bool = True, new: tuple[NewBatch, ...] = ()) -> None:
        """The first batch that it has is done: its part is there, and it is acked."""
        one = self.has.pop(0)
        number, size = one.batch.number, one.batch.size
        lines = b"".join(b'{"batch": %d, "item": %d}\n' % (number, n) for n in range(size))
        name = f"{CRAWL}.b{number}.a{one.attempt}.jl"
        if part:
            self.node.files[f"logs/_sdist/{HOME}/{name}"] = lines
        described = {
            "file": name,
            "items": size,
            "bytes": len(lines),
            "sha256": hashlib.sha256(lines).hexdigest(),
        }
        counts = {"requests": size, "done": size, "missed": 0, "pages": size, "items": size}
        report = {
            "schema": 1,
            "state": "ended",
            "updated": 1.0,
            "finish_reason": "finished",
            "part": described,
            **counts,
        }
        self.store.ack(
            CRAWL, number, one.attempt, self.job, report=report, new=new, now=time.time()
        )
        self.done += size
        self.node.report(
            self.job, state="running", requests=self.done, done=self.done, items=self.done
        )

    def introduce(self, public: str = "", **fields: Any) -> None:
        """It ends as a worker of another project that has said whose code it is."""
        self.end(public=public or public_half(OTHERS_KEY), code={"version": __version__}, **fields)

    def work_off(self) -> ModelWorker:
        """Take what there is, batch by batch."""
        while self.lease():
            self.finish()
        return self

    def end(self, reason: str = "finished", **fields: Any) -> None:
        """It ends in order."""
        self.node.jobs[self.job].state = JobState.FINISHED
        counts = {"requests": self.done, "done": self.done, "items": self.done}
        self.node.report(
            self.job, **{"state": "ended", "finish_reason": reason, **counts, **fields}
        )


@dataclass(kw_only=True)
class Bench:
    """A scheduler, its nodes and its store."""

    scheduler: Scheduler
    nodes: list[ModelNode]
    store: Store  #: a connection of the test's own: the scheduler uses its one from a thread
    sender: ModelSender
    folder: Path

    async def seal(self, count: int = 1) -> None:
        """So many more batches, to be sent."""
        payload = {"DISTRIBUTED_START_URLS": '["http://web/0", "http://web/1"]'}
        for _ in range(count):
            self.scheduler.add(
                self.store.seal(CRAWL, NewBatch(payload=payload, size=2), (), {"sealed": 2})
            )

    async def seal_all(self, count: int) -> None:
        await self.seal(count)
        self.scheduler.no_more()

    async def work_off(self, count: int) -> None:
        """So many batches, the last ones, are done to the end."""
        await self.seal_all(count)
        await self.ended(whole=count)

    async def seal_and_start(self, count: int = 1) -> None:
        """So many batches, the last ones; the job of the first runs on the first node, and its report is known."""
        await self.seal_all(count)
        await until(lambda: self.nodes[0].posts != [], "posted")
        self.nodes[0].start("c.b1.a1", done=1)
        await until(lambda: self.states()[0] == "running", "its report is read")

    def add(self, *sizes: int, slot: str = "") -> None:
        """Batches of these sizes wait, to be leased."""
        payloads = [
            {"DISTRIBUTED_START_URLS": json.dumps([f"http://web/{n}" for n in range(size)])}
            for size in sizes
        ]
        new = [
            NewBatch(payload=p, size=size, slot=slot)
            for p, size in zip(payloads, sizes, strict=True)
        ]
        for batch in self.store.add_batches(CRAWL, new):
            self.scheduler.add(batch)

    @property
    def state(self) -> SchedulerState:
        return self.scheduler.state

    async def ended(self, *, whole: int | None = None) -> None:
        """All that there is comes to its end; with `whole`, that is so many batches, which are as `whole` says."""
        await asyncio.wait_for(self.scheduler.ended(), 20)
        if whole is not None:
            self.whole(whole)

    async def over(self, *, whole: int | None = None) -> None:
        """Nothing more is added, and it ends."""
        self.scheduler.no_more()
        await self.ended(whole=whole)

    async def leave(self, reason: str = "") -> None:
        """The scheduler stops, and both connections are closed."""
        await self.scheduler.stop(reason)
        self.state.store.close()
        self.store.close()

    def workers(self) -> list[ModelWorker]:
        """All that were posted and are not over, in the order of their numbers."""
        found = [
            ModelWorker(node=node, job=job.id, store=self.store)
            for node in self.nodes
            for job in node.jobs.values()
            if job.state is not JobState.FINISHED and ".w" in job.id
        ]
        return sorted(found, key=lambda one: int(one.job.split(".w")[1].split(".")[0]))

    def posts(self) -> list[str]:
        return [job for node in self.nodes for job in node.posts]

    def states(self) -> list[str]:
        return [batch.state.value for batch in self.store.batches(CRAWL)]

    def attempts(self, batch: int | None = None) -> list[Attempt]:
        return [a for a in self.store.attempts(CRAWL) if batch in (None, a.batch)]

    def merged(self) -> list[tuple[int, int]]:
        """Batch and item of everything that is accepted, as the output would have it."""
        parts = [self.folder / a.part for a in self.store.attempts(CRAWL, {AttemptState.ACCEPTED})]
        rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
        return sorted((row["batch"], row["item"]) for row in rows)

    def whole(self, batches: int, size: int = 2) -> None:
        """Every batch is done, and each of its items is there once."""
        assert self.state.status.fault is None
        assert self.state.stopped == ""
        assert self.states() == ["done"] * batches
        assert self.merged() == [(b, n) for b in range(1, batches + 1) for n in range(size)]
        assert self.state.counters.done == batches
        assert self.state.counters.items == batches * size


def members_of(nodes: list[ModelNode]) -> list[NodeState]:
    """These nodes as a scheduler knows them that has brought them the code."""
    return [NodeState(node=node.node, readiness=Readiness(prepared=True)) for node in nodes]


def make(tmp_path: Path, nodes: list[ModelNode], *, where: str = "", **options: Any) -> Bench:
    place = where or tmp_path / "store.db"
    store = open_store(place)
    if not store.crawls():
        store.add_crawl(Crawl(id=CRAWL, project="p", spider="s", created=1.0))
    sender = ModelSender(nodes)

    async def prepare(_: NodeState) -> str:
        return ""

    state = SchedulerState(
        spec=options.pop("spec", SPEC),
        members=options.pop("members", members_of(nodes)),
        store=StoreThread(open_store(place)), sender=sender, limits=options.pop("limits", QUICK),
        reach=options.pop("reach", None), sends=options.pop("sends", False),
        rules_file=options.pop("rules_file", None),
    )  # fmt: skip
    made = Scheduler(state=state, folder=tmp_path / "parts", **{"prepare": prepare, **options})
    return Bench(scheduler=made, nodes=nodes, store=store, sender=sender, folder=tmp_path / "parts")


async def left_behind(
    tmp_path: Path, *nodes: ModelNode, state: AttemptState = AttemptState.SENT
) -> tuple[Bench, str]:
    """What a producer leaves that died just after this step of its only batch on the first node; and the job's id."""
    before = make(tmp_path, list(nodes), producer="producer")
    before.scheduler.state.status.stop_sending()
    await before.seal()
    node, db, job = nodes[0], before.store, job_id(CRAWL, 1, 1)
    attempt = Attempt(
        batch=1, number=1, job=job, node=node.name, url=node.node.url, sent_at=time.time()
    )
    db.open_attempt(CRAWL, attempt)
    if state is not AttemptState.SENDING:
        db.sent(CRAWL, 1, 1)
    if state is AttemptState.RUNNING:
        db.running(CRAWL, 1, 1)
    return before, job


@asynccontextmanager
async def at_work(made: Bench) -> AsyncIterator[Bench]:
    """The scheduler at work; with what an earlier one left, if there is something."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "FRESH", 0.02)
        patch.setattr(monitor, "UNKNOWN_GRACE", 0.1)
        patch.setattr(part_fetch, "RETRY_PAUSE", 0.01)
        patch.setattr(staffing, "LEAVE", 0.2)
        await made.scheduler.recover()
        made.scheduler.start()
        try:
            yield made
        finally:
            made.sender.gate.set()
            await made.leave()


@asynccontextmanager
async def sending(
    tmp_path: Path, *nodes: ModelNode, producer: str = "producer", **options: Any
) -> AsyncIterator[Bench]:
    """A scheduler that sends batches."""
    async with at_work(make(tmp_path, list(nodes), producer=producer, **options)) as bench:
        yield bench


@asynccontextmanager
async def leasing(tmp_path: Path, *nodes: ModelNode, **options: Any) -> AsyncIterator[Bench]:
    """A scheduler that starts workers, which lease batches."""
    async with at_work(make(tmp_path, list(nodes), **{"reach": reach, **options})) as bench:
        yield bench


def reach(_: Node) -> Way:
    return Way(job_settings={"store": "here"})
