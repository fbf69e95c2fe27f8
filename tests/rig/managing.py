"""A manager at work on nodes in memory, and workers there that lease from its store when a test tells them to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from scrapyd_dist import __version__
from scrapyd_dist.batches import Attempt, AttemptState, Crawl
from scrapyd_dist.frontier.backlog import Leased, Lessee, NewBatch
from scrapyd_dist.items import merging
from scrapyd_dist.keys import public_half
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling import monitor, scheduler
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.scheduler import Scheduler
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.reach import Way
from scrapyd_dist.store.worker_thread import StoreThread

from .coordination import CRAWL, HOME, QUICK
from .nodemodel import ModelNode, ModelSender

#: the key in the egg of another project
OTHERS_KEY = Fernet.generate_key()


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
        """It runs, and has reported nothing yet."""
        self.node.start(self.job)
        return self

    def lease(self, limit: int = 1, seconds: float = 60.0) -> list[Leased]:
        lessee = Lessee(job=self.job, node=self.node.name, url=self.node.node.url)
        leased = self.store.lease_next(CRAWL, lessee, slots=self.slots, seconds=seconds, limit=limit, now=time.time())
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
        described = {"file": name, "items": size, "bytes": len(lines), "sha256": hashlib.sha256(lines).hexdigest()}
        counts = {"requests": size, "done": size, "missed": 0, "pages": size, "items": size}
        report = {
            "schema": 1,
            "state": "ended",
            "updated": 1.0,
            "finish_reason": "finished",
            "part": described,
            **counts,
        }
        self.store.ack(CRAWL, number, one.attempt, self.job, report=report, new=new, now=time.time())
        self.done += size
        self.node.report(self.job, state="running", requests=self.done, done=self.done, items=self.done)

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
        self.node.report(self.job, **{"state": "ended", "finish_reason": reason, **counts, **fields})

    def die(self) -> None:
        self.node.die(self.job)


@dataclass(kw_only=True)
class Office:
    """A manager, its nodes and its store."""

    manager: Scheduler
    nodes: list[ModelNode]
    store: Store  #: a connection of the test's own: the manager uses its one from a thread
    sender: ModelSender
    folder: Path

    def add(self, *sizes: int, slot: str = "") -> None:
        """Batches of these sizes wait."""
        payloads = [{"DISTRIBUTED_START_URLS": json.dumps([f"http://web/{n}" for n in range(size)])} for size in sizes]
        new = [NewBatch(payload=p, size=size, slot=slot) for p, size in zip(payloads, sizes, strict=True)]
        for batch in self.store.add_batches(CRAWL, new, now=time.time()):
            self.manager.add(batch)

    async def leave(self, reason: str = "") -> None:
        """The manager stops, and both connections are closed."""
        await self.manager.stop(reason)
        self.manager.store.close()
        self.store.close()

    async def ended(self) -> None:
        await asyncio.wait_for(self.manager.ended(), 20)

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

    def attempts(self) -> list[Attempt]:
        return self.store.attempts(CRAWL)

    def merged(self) -> list[tuple[int, int]]:
        """Batch and item of everything that is accepted, as the output would have it."""
        parts = [self.folder / a.part for a in self.store.attempts(CRAWL, {AttemptState.ACCEPTED})]
        rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
        return sorted((row["batch"], row["item"]) for row in rows)


def make(tmp_path: Path, nodes: list[ModelNode], **options: Any) -> Office:
    store = open_store(tmp_path / "store.db")
    if not store.crawls():
        store.add_crawl(Crawl(id=CRAWL, project="p", spider="s", created=1.0))
    sender = ModelSender(nodes)

    async def prepare(_: NodeState) -> str:
        return ""

    def reach(_: Node) -> Way:
        return Way(told={"store": "here"})

    fields: dict[str, Any] = {
        "spec": JobRequest(crawl=CRAWL, home=HOME, project="p", spider="s", version="v1", args={"a": "1"}),
        "members": [NodeState(node=node.node, prepared=True) for node in nodes],
        "prepare": prepare,
        "reach": reach,
        "limits": QUICK,
        **options,
    }
    thread = StoreThread(open_store(tmp_path / "store.db"))
    made = Scheduler(store=thread, sender=sender, folder=tmp_path / "parts", **fields)
    return Office(manager=made, nodes=nodes, store=store, sender=sender, folder=tmp_path / "parts")


@asynccontextmanager
async def office(tmp_path: Path, *nodes: ModelNode, **options: Any) -> AsyncIterator[Office]:
    """A manager at work; with what an earlier one left, if there is something."""
    made = make(tmp_path, list(nodes), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "FRESH", 0.02)
        patch.setattr(monitor, "UNKNOWN_GRACE", 0.1)
        patch.setattr(merging, "RETRY_PAUSE", 0.01)
        patch.setattr(scheduler, "LEAVE", 0.2)
        await made.manager.recover()
        made.manager.start()
        try:
            yield made
        finally:
            made.sender.gate.set()
            await made.leave()
