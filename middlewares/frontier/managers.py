"""Who works at a frontier: workers that lease its requests, or a job for each of its rows of arguments.

All in which the two differ for `sdist consume` is here, so that the life of its process is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.values import UNFAIR
from scrapyd_dist.managing.manager import Manager
from scrapyd_dist.managing.rows import RowJobs

if TYPE_CHECKING:
    from scrapyd_dist.coordination.fleet import Member
    from scrapyd_dist.coordination.posting import JobSpec
    from scrapyd_dist.managing.staffing import Staffing
    from scrapyd_dist.managing.terms import WorkerTerms
    from scrapyd_dist.transports import AsyncSender

    from ..producer.fleet import Fleet
    from ..producer.options import Options
    from ..producer.record import Record

#: what sees to the work at a frontier
AnyManager: TypeAlias = "Manager | RowJobs"


def new_manager(
    options: Options,
    spec: JobSpec,
    *,
    staffing: Staffing,
    fleet: Fleet,
    members: list[Member],
    record: Record,
    sender: AsyncSender,
) -> AnyManager:
    """What starts jobs at this frontier and brings home what they did.

    Args:
        options: of the project.
        spec: what all jobs have in common; it says what the frontier's rows are.
        staffing: how many there may be.
        fleet: the nodes, which have the code.
        members: those that can be used.
        record: the frontier's row and folder.
        sender: makes the calls.
    """
    if spec.rows:
        return RowJobs(
            spec=spec, members=members, store=record.thread, sender=sender, folder=record.parts, prepare=fleet.bring,
            listed=fleet.listed, key=fleet.prepared.key, limits=replace(options.limits, max_jobs=staffing.most),
            max_time=staffing.max_time,
        )  # fmt: skip
    return Manager(
        spec=spec, members=members, store=record.thread, sender=sender, folder=record.parts, prepare=fleet.bring,
        reach=fleet.ways, staffing=_for_workers(staffing, options.staffing.terms), limits=options.limits,
        key=fleet.prepared.key, listed=fleet.listed,
    )  # fmt: skip


def check_staffing(asked: Staffing, terms: WorkerTerms) -> None:
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


def _for_workers(asked: Staffing, terms: WorkerTerms) -> Staffing:
    return replace(asked, terms=terms, per_slot=0 if terms.fair else asked.per_slot)
