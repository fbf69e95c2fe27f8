"""Prepare the nodes of a crawl, and post its first workers, while Scrapy still makes the engine.

A process that `sdist` has started for a new crawl has passed its checks when Scrapy reads its
add-ons. From then on a thread does what the start does in its turn: it claims the row, and brings
the nodes the code. Then each node with a free process slot gets one worker. It is listed in the
store before it is posted, so the scheduler takes it up as one of an earlier process, and it makes
no request before the crawl's row says that the crawl has begun. Where that is refused, or begins
with other settings, such a worker ends by itself (`worker/lease_session`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import ClassVar, Protocol, TypeVar
from weakref import WeakKeyDictionary

from scrapy.crawler import Crawler

from scrapyd_dist.batches import WorkerEntry, worker_id
from scrapyd_dist.errors import NodeError
from scrapyd_dist.scheduling.job_request import JobRequest, call_for_worker
from scrapyd_dist.scheduling.liveness import skew_of
from scrapyd_dist.scheduling.node_state import NodeState, WorkerRun
from scrapyd_dist.scheduling.rules_watch import RulesWatch
from scrapyd_dist.scheduling.scaling_policy import ALL
from scrapyd_dist.scheduling.scheduler import ANNOUNCE
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.transports import sweep
from scrapyd_dist.transports.requests import RequestsTransport

from .crawl_nodes import PRODUCER, CrawlNodes
from .crawl_repository import CrawlRepository
from .crawl_request import CrawlRequest

logger = logging.getLogger(__name__)
T = TypeVar("T")
#: of messages about a crawl that is refused, and what is true once workers were posted
_NOTHING = "Nothing was started."
_ONLY_WORKERS = "No request was made; the workers that were posted before end without one."
#: seconds that a node gets to answer here: the crawl begins when all have, and asks in its turn
PATIENCE = 5.0
#: seconds after which Python lets another thread go on, while modules are imported beside the early
#: start: it has little to do between two answers, and would wait for each turn
SWITCH_INTERVAL = 0.0005


class EarlySteps(Protocol):
    """What a start does in its turn, and can do earlier."""

    async def open_row(self, request: CrawlRequest) -> CrawlRepository:
        """Open the store, and let the crawl's row name this process."""

    async def find_nodes(self, request: CrawlRequest, repository: CrawlRepository) -> CrawlNodes:
        """Find the nodes, and bring them the code."""

    async def describe_jobs(self, nodes: CrawlNodes) -> JobRequest:
        """Return what all jobs of the crawl have in common."""


class EarlyStart:
    """The early part of one crawl's start; the start waits for each of its steps."""

    _all: ClassVar[WeakKeyDictionary[Crawler, EarlyStart]] = WeakKeyDictionary()

    def __init__(self, request: CrawlRequest, steps: EarlySteps) -> None:
        self.request = request
        self._steps = steps
        self._row: Future[CrawlRepository] = Future()
        self._nodes: Future[CrawlNodes] = Future()
        self._over: Future[None] = Future()
        self._repository: CrawlRepository | None = None
        self._spec: JobRequest | None = None  #: of the workers that were posted
        self._posted: Sequence[WorkerRun] = ()
        self._is_unwanted = False  #: whether no worker is to be posted any more

    @classmethod
    def for_crawler(cls, crawler: Crawler) -> EarlyStart | None:
        """Return that of this crawler; None where everything is done in its turn."""
        return cls._all.get(crawler)

    @classmethod
    def end_all(cls) -> None:
        """End what was begun in this process.

        A row that is claimed after it has got its end would have none.
        """
        for early in [*cls._all.values()]:
            early.end()

    def end(self) -> None:
        """Let no worker be posted any more, and wait for what is under way, `PATIENCE` at most."""
        self._is_unwanted = True
        wait_for([self._over], PATIENCE)

    def begin(self, crawler: Crawler) -> None:
        """Let a thread do it, for this crawler."""
        self._all[crawler] = self
        threading.Thread(target=self._run, name="sdist-early-start", daemon=True).start()

    def _run(self) -> None:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        try:
            asyncio.run(self._work())
        finally:
            sys.setswitchinterval(usual)
            self._row.cancel()  # no change where it is known what the step came to
            self._nodes.cancel()
            self._over.set_result(None)

    async def _work(self) -> None:
        repository = await _settle(self._row, self._steps.open_row(self.request))
        if repository is None:
            return
        self._repository = repository
        if self._is_unwanted:
            return
        nodes = await _settle(self._nodes, self._steps.find_nodes(self.request, repository))
        if nodes is None:
            return
        try:
            await self._post(nodes)
        except Exception:
            logger.exception("No worker was posted before the crawl has begun")

    # what the start asks for

    async def row(self) -> CrawlRepository:
        """Return the crawl's row as it was claimed; errors are those of the step."""
        return await asyncio.wrap_future(self._row)

    async def nodes(self) -> CrawlNodes:
        """Return the nodes as they were prepared; errors are those of the step."""
        return await asyncio.wrap_future(self._nodes)

    async def settle(self, spec: JobRequest) -> None:
        """Wait for the posts; workers that do not run as `spec` says are withdrawn."""
        await asyncio.wrap_future(self._over)
        if self._spec is not None and replace(self._spec, ways=None) != replace(spec, ways=None):
            logger.info("Workers were posted with other settings than the crawl has now")
            await self.withdraw()

    async def withdraw(self) -> bool:
        """Let the workers that were posted end without a request: they are listed no more.

        Returns whether there are any.
        """
        self._is_unwanted = True
        await asyncio.wrap_future(self._over)
        if self._repository is None:
            return False
        store = self._repository.thread
        posted = self._posted
        for worker in posted:
            await store(store.store.remove_worker, self._repository.id, worker.job)
        self._posted = ()
        return bool(posted)

    async def leave(self, crawler: Crawler) -> None:
        """Withdraw the workers, and leave the store: the start does all in its turn."""
        await self.withdraw()
        del self._all[crawler]
        if self._repository is not None:
            self._repository.thread.close()

    # the first workers

    async def _post(self, nodes: CrawlNodes) -> None:
        """Post one worker to each node with a free process slot."""
        options = nodes.request.options
        if not (options.leases and options.limits.wait):
            return
        free = await self._free_members(nodes)
        if options.scaling.most:
            del free[options.scaling.most :]
        if free and not self._is_unwanted:
            await self._list_workers(nodes, free)
            await self._send_workers(nodes)

    async def _list_workers(self, nodes: CrawlNodes, free: Sequence[NodeState]) -> None:
        """List a worker for each of these nodes in the store."""
        crawl = nodes.repository.id
        store = nodes.repository.thread
        self._spec = spec = await self._steps.describe_jobs(nodes)
        # Until the scheduler says so itself, workers have to know that batches will come.
        await store(store.store.register_producer, crawl, PRODUCER, ANNOUNCE * 3)
        _, last = await store(store.store.workers, crawl)
        start = nodes.request.options.limits.start_timeout
        workers = []
        for number, member in enumerate(free, last + 1):
            workers.append(_new_worker(spec, member, number, start))
        self._posted = workers
        entries = [worker.entry for worker in workers]
        await store(store.store.add_workers, crawl, entries, last=entries[-1].number)

    async def _send_workers(self, nodes: CrawlNodes) -> None:
        """Post the listed workers; one that its node has certainly not taken is listed no more."""
        store = nodes.repository.thread
        rules = RulesWatch(store=store)
        await rules.follow()
        sender = RequestsTransport()

        def send(worker: WorkerRun) -> None:
            """Post a worker to its node."""
            assert self._spec is not None
            way = rules.joined_to(nodes.ways(worker.member.node).job_settings)
            terms = nodes.request.options.scaling.terms
            call = call_for_worker(self._spec, worker, terms, {**way, "early": True})
            sender.send(worker.member.node, call, timeout=PATIENCE)

        for answer in await asyncio.to_thread(lambda: list(sweep(self._posted, send))):
            if answer.error is not None and not answer.error.maybe_accepted:
                # Another one is posted in its turn, and what is wrong told then.
                logger.info("%s: no early worker: %s", answer.asked.member.node, answer.error)
                await store(store.store.remove_worker, nodes.repository.id, answer.asked.job)

    async def _free_members(self, nodes: CrawlNodes) -> list[NodeState]:
        """Return the nodes that would start a worker at once."""
        store = nodes.repository.thread
        records = await store(store.store.nodes)
        drained = {record.name for record in records if record.draining is not None}
        members = filter(lambda member: _is_able(member, nodes), nodes.prepared.members)
        able = [member for member in members if member.node.name not in drained]
        answers = await asyncio.to_thread(lambda: list(sweep(able, _ask_load)))
        loads = {answer.asked: answer.value for answer in answers}
        return [member for member in able if _has_free_slot(member, loads[member])]


def tell_of_workers(message: str) -> str:
    """Return why a crawl is refused, with what is true of workers that were posted before."""
    return message.replace(_NOTHING, _ONLY_WORKERS)


async def _settle(future: Future[T], step: Awaitable[T]) -> T | None:
    """Let a future have what a step comes to; return that, None where the step has failed."""
    try:
        result = await step
    except BaseException as error:  # noqa: BLE001  (it is raised where it is waited for)
        future.set_exception(error)
        return None
    future.set_result(result)
    return result


def _is_able(member: NodeState, nodes: CrawlNodes) -> bool:
    """Tell whether a node gets work, and its workers reach the store."""
    if member.readiness.unreached or nodes.ways(member.node).reason:
        return False
    return member.usable


def _ask_load(member: NodeState) -> Load | None:
    """Return the load of a node, and note how far its clock is off; None without an answer."""
    before = time.time()
    try:
        load = RequestsTransport().send(member.node, api.daemonstatus(), timeout=PATIENCE)
    except NodeError:
        return None
    skew = skew_of(load.date, (before + time.time()) / 2)
    if skew is not None:
        member.liveness.note_skew(skew)
    return load


def _has_free_slot(member: NodeState, load: Load | None) -> bool:
    """Tell whether a process slot is free there for certain: nothing is taken from others."""
    if load is None or load.pending:
        return False
    return load.running < (member.capacity.stated or member.capacity.learned or 1)


def _new_worker(spec: JobRequest, member: NodeState, number: int, start: float) -> WorkerRun:
    """Return a worker that is to be posted to this node, where it has so many seconds to start."""
    entry = WorkerEntry(
        number=number,
        job=worker_id(spec.home, number),
        url=member.node.url,
        pool=ALL,
        since=time.time(),
        version=spec.version or "",
    )
    return WorkerRun.of_entry(entry, member, start_by=entry.since + start)
