"""A coordinator at work on nodes in memory, with short patience, and what its store and its folder have in the end."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, home_of
from scrapyd_dist.items import merging
from scrapyd_dist.scheduling import monitor
from scrapyd_dist.scheduling.base import SchedulerLimits
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.scheduler import Scheduler
from scrapyd_dist.store import open_store
from scrapyd_dist.store.worker_thread import StoreThread

from .nodemodel import ModelNode, ModelSender

T = TypeVar("T")
CRAWL = "c"
HOME = home_of(CRAWL, 1.0)
QUICK = SchedulerLimits(
    poll=0.01, request_timeout=1, node_timeout=0.1, fleet_timeout=0.3, start_timeout=60, max_attempts=3
)


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
class Bench:
    """A coordinator, its nodes and its store."""

    coordinator: Scheduler
    nodes: list[ModelNode]
    store: StoreThread
    sender: ModelSender
    folder: Path

    async def seal(self, size: int = 2) -> int:
        urls = [f"http://web/{n}" for n in range(size)]
        batch = await self.store(
            self.store.store.seal,
            CRAWL,
            {"DISTRIBUTED_START_URLS": json.dumps(urls)},
            size=size,
            fingerprints=(),
            now=time.time(),
            counts={"sealed": size},
        )
        self.coordinator.add(batch)
        return batch.number

    async def seal_all(self, count: int) -> None:
        for _ in range(count):
            await self.seal()
        self.coordinator.no_more()

    async def ended(self) -> None:
        await asyncio.wait_for(self.coordinator.ended(), 20)

    def states(self) -> list[str]:
        return [batch.state.value for batch in self.store.store.batches(CRAWL)]

    def attempts(self, batch: int | None = None) -> list[Attempt]:
        return [a for a in self.store.store.attempts(CRAWL) if batch in (None, a.batch)]

    def merged(self) -> list[tuple[int, int]]:
        """Batch and item of everything that is accepted, as the output would have it."""
        parts = [self.folder / a.part for a in self.store.store.attempts(CRAWL, {AttemptState.ACCEPTED})]
        rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
        return sorted((row["batch"], row["item"]) for row in rows)

    def whole(self, batches: int, size: int = 2) -> None:
        """Every batch is done, and each of its items is there once."""
        assert self.coordinator.fault is None
        assert self.coordinator.stopped == ""
        assert self.states() == ["done"] * batches
        assert self.merged() == [(b, n) for b in range(1, batches + 1) for n in range(size)]
        assert self.coordinator.counters.done == batches
        assert self.coordinator.counters.items == batches * size

    def posts(self) -> list[str]:
        return [job for node in self.nodes for job in node.posts]


async def _prepared(_: NodeState) -> str:
    return ""


def make(
    tmp_path: Path,
    nodes: list[ModelNode],
    limits: SchedulerLimits,
    *,
    where: str = "",
    **options: Any,
) -> Bench:
    store = StoreThread(open_store(where or tmp_path / "store.db"))
    if not store.store.crawls():
        store.store.add_crawl(Crawl(id=CRAWL, project="p", spider="s", created=1.0))
    sender = ModelSender(nodes)
    fields: dict[str, Any] = {
        "spec": JobRequest(crawl=CRAWL, home=HOME, project="p", spider="s", version="v1"),
        "members": [NodeState(node=node.node, prepared=True) for node in nodes],
        "prepare": _prepared,
        "producer": "producer",
        **options,
    }
    made = Scheduler(store=store, sender=sender, folder=tmp_path / "parts", limits=limits, **fields)
    return Bench(coordinator=made, nodes=nodes, store=store, sender=sender, folder=tmp_path / "parts")


@asynccontextmanager
async def bench(
    tmp_path: Path, *nodes: ModelNode, limits: SchedulerLimits = QUICK, **options: Any
) -> AsyncIterator[Bench]:
    """A coordinator at work; with what an earlier one left, if there is something."""
    made = make(tmp_path, list(nodes), limits, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "FRESH", 0.02)
        patch.setattr(monitor, "UNKNOWN_GRACE", 0.1)
        patch.setattr(merging, "RETRY_PAUSE", 0.01)
        await made.coordinator.recover()
        made.coordinator.start()
        try:
            yield made
        finally:
            made.sender.gate.set()
            await made.coordinator.stop("")
            made.store.close()
