"""What `sdist consume` works with at one frontier: its lock, its scheduler, its reports."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any, TypeAlias

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import UNFAIR
from scrapyd_dist.progress.node_progress import Progress
from scrapyd_dist.progress.summary import Snapshot, sample_of, summary
from scrapyd_dist.scheduling.argument_jobs import ArgumentScheduler
from scrapyd_dist.scheduling.pull import PullScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapyd_dist.batches import CrawlState
    from scrapyd_dist.items.delivery import Delivery
    from scrapyd_dist.scheduling.job_request import JobRequest
    from scrapyd_dist.scheduling.node_state import NodeState
    from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
    from scrapyd_dist.scheduling.worker_request import WorkerRequest
    from scrapyd_dist.transports import AsyncSender

    from ..producer.crawl_nodes import CrawlNodes
    from ..producer.crawl_repository import CrawlRepository
    from ..producer.crawl_request import CrawlRequest
    from ..producer.producer_options import ProducerOptions


class FrontierLock:
    """This process at a frontier."""

    def __init__(self, repository: CrawlRepository) -> None:
        self._repository = repository
        self._store = repository.thread.store

    async def take(self, frontier: str, spider: str, asked: CrawlRequest, before: tuple[int | None, str]) -> None:
        """From now on the row names this process.

        Args:
            frontier: whose row.
            spider: of the workers.
            asked: what the command line asks for.
            before: the process that the row named when it was seen that none works there; its machine.

        Raises:
            ConfigError: another one was faster.
        """
        claim = partial(self._store.claim, frontier, pid=os.getpid(), host=gethostname(), before=before)
        if not await self._repository.thread(claim):
            raise _taken(frontier)
        await self._repository.take_row(spider, asked)
        await self._repository.thread(self._store.want, self._repository.id, "")

    async def check(self) -> None:
        """Refuse to go on beside another process.

        Raises:
            ConfigError: the frontier is another one's now.
        """
        if not await self._is_mine():
            raise _taken(self._repository.id)

    async def end(self, state: CrawlState, *, code: int, message: str, summary: dict[str, Any] | None) -> None:
        """Nobody keeps workers running there any more, unless somebody else does."""
        if await self._is_mine():
            await self._repository.end(state, code=code, message=message, summary=summary)

    async def _is_mine(self) -> bool:
        row = await self._repository.thread(self._store.crawl, self._repository.id)
        return (row.pid, row.host) == (os.getpid(), gethostname())


def _taken(frontier: str) -> ConfigError:
    return ConfigError(
        f"Another process keeps the workers of the frontier {frontier} running now, and two would start too many."
        f" `sdist status {frontier}` says which one; stop it first, or let it do the work."
    )


@dataclass(kw_only=True)
class FrontierReporter:
    """Tells of one run of the manager."""

    repository: CrawlRepository
    manager: AnyManager
    show: Callable[[dict[str, Any]], None]  #: is given each summary
    begun: float  #: by the monotonic clock
    unheeded: str = ""  #: why its workers heed no rules of the throttle
    message: str = ""  #: one paragraph for people: why it stopped
    delivered: Delivery | None = None
    warnings: list[str] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    _progress: Progress = field(default_factory=Progress)

    async def begin(self) -> None:
        """Count what came home before, too."""
        self._progress.recall(await self.repository.accepted())

    async def tell(self, state: CrawlState, **changes: Any) -> None:
        """Write the summary down, with other changes of the row, and show it; a sample now and then."""
        # The account is that of those who fill the frontier.
        self._counts = await self.repository.thread(self.repository.thread.store.counts, self.repository.id)
        document = self.summary(state)
        await self.repository.enter(state, document, **changes)
        if self.repository.sample_due():
            await self.repository.sample(sample_of(document, {}))
        self.show(document)

    def summary(self, state: CrawlState) -> dict[str, Any]:
        """The summary document."""
        manager, work = self.manager, self.manager.work
        self._progress.look(manager.members, time.monotonic(), own_pages=0, own_items=0)
        return summary(
            Snapshot(
                crawl=self.repository.id,
                spider=manager.spec.spider,
                project=manager.spec.project,
                version=manager.spec.version,
                state=state.value,
                paused=manager.paused,
                duration=time.monotonic() - self.begun,
                counts=self._counts,
                buffered=0,
                waiting=work.waiting,
                waiting_requests=work.waiting_requests,
                batches=work.batches or 0,
                counters=manager.counters,
                members=manager.members,
                unheeded=self.unheeded,
                output=self.delivered.outputs if self.delivered else (),
                misses=self.delivered.misses if self.delivered else None,
                warnings=self.warnings,
                message=self.message,
                progress=self._progress,
            )
        )


#: what sees to the work at a frontier
AnyManager: TypeAlias = "PullScheduler | ArgumentScheduler"


def new_manager(
    options: ProducerOptions,
    spec: JobRequest,
    *,
    scaling: ScalingPolicy,
    fleet: CrawlNodes,
    members: list[NodeState],
    repository: CrawlRepository,
    sender: AsyncSender,
) -> AnyManager:
    """What starts jobs at this frontier and brings home what they did.

    Args:
        options: of the project.
        spec: what all jobs have in common; it says what the frontier's rows are.
        scaling: how many there may be.
        fleet: the nodes, which have the code.
        members: those that can be used.
        repository: the frontier's row and folder.
        sender: makes the calls.
    """
    if spec.rows:
        return ArgumentScheduler(
            spec=spec,
            members=members,
            store=repository.thread,
            sender=sender,
            folder=repository.parts,
            prepare=fleet.bring,
            listed=fleet.listed,
            key=fleet.prepared.key,
            limits=replace(options.limits, max_jobs=scaling.most),
            max_time=scaling.max_time,
        )
    return PullScheduler(
        spec=spec,
        members=members,
        store=repository.thread,
        sender=sender,
        folder=repository.parts,
        prepare=fleet.bring,
        reach=fleet.ways,
        scaling=_for_workers(scaling, options.scaling.terms),
        limits=options.limits,
        key=fleet.prepared.key,
        listed=fleet.listed,
    )


def check_staffing(asked: ScalingPolicy, terms: WorkerRequest) -> None:
    """Refuse what contradicts itself; before anything is done.

    Raises:
        ConfigError: workers cannot be started so.
    """
    if terms.fair != UNFAIR and asked.prefix:
        raise ConfigError(
            f"Workers that share slots fairly ({terms.fair}: --fair, DISTRIBUTED_FAIR) take from all of them, and"
            f" --slots {asked.prefix} binds each to one. Leave out one of the two; `-s DISTRIBUTED_FAIR=` takes back"
            " what the project's settings say."
        )


def _for_workers(asked: ScalingPolicy, terms: WorkerRequest) -> ScalingPolicy:
    return replace(asked, terms=terms, per_slot=0 if terms.fair else asked.per_slot)
