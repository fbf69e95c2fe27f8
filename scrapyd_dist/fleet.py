"""The nodes of one crawl as they are now, and which of them gets the next batch. Values and decisions, no IO."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.api import Load
    from scrapyd_dist.batches import Batch
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.outcome import Report

#: process slots of a node that does not say: what Scrapyd makes of one processor
SLOTS_UNKNOWN = 4
#: jobs that may wait on a node beyond its process slots, so that a freed slot never waits for us
AHEAD = 2


@dataclass(kw_only=True)
class Out:
    """One attempt that is out on a node."""

    batch: Batch
    number: int  #: of the attempt
    job: str
    member: Member
    since: float  #: seconds since the epoch when it was sent
    start_by: float  #: seconds since the epoch, by our clock, after which it must not start
    posted: bool = False  #: the fate of its post is known; until then only who posts it may end it
    report: Report | None = None
    changed: float = 0.0  #: when its report last changed, by our clock
    unknown_since: float | None = None  #: since when the node says it knows no such job

    def heard(self, report: Report, now: float) -> bool:
        """Take in a report; whether it is the first one."""
        first = self.report is None
        if first or self.report != report:
            self.changed = now
        self.report = report
        return first

    def left(self, now: float) -> float:
        """Seconds until it ends, judged by its pace so far; 0 when nothing is known."""
        if self.report is None or not self.report.ended_requests:
            return 0.0
        elapsed = max(now - self.since, 0.001)
        return elapsed * (self.report.requests - self.report.ended_requests) / self.report.ended_requests


@dataclass(kw_only=True, eq=False)
class Member:
    """One node as this crawl knows it."""

    node: Node
    out: dict[str, Out] = field(default_factory=dict)
    slots: int = 0
    down_since: float | None = None
    down_reason: str = ""
    prepared: bool = False  #: has the crawl's code
    unfit: str = ""  #: why it gets no work though it answers
    refusals: int = 0  #: jobs it refused with Scrapyd's own words
    skew: float = 0.0  #: its clock minus ours, seconds
    cancel_later: list[str] = field(default_factory=list)  #: jobs given up while it could not be reached
    jobs: int = 0  #: accepted attempts
    items: int = 0  #: of accepted attempts
    _crowded: int | None = None  #: jobs that ran at the last look while others waited

    def __post_init__(self) -> None:
        self.slots = self.slots or self.node.slots or SLOTS_UNKNOWN

    @property
    def up(self) -> bool:
        return self.down_since is None

    @property
    def usable(self) -> bool:
        return self.up and self.prepared and not self.unfit

    def room(self) -> int:
        """How many more jobs it may be given now."""
        return self.slots + AHEAD - len(self.out) if self.usable else 0

    def seen(self, load: Load) -> None:
        """It answered. Learns its process slots, unless the target states them: Scrapyd does not tell."""
        self.down_since, self.down_reason = None, ""
        if self.node.slots is not None:
            return
        crowded = load.running if load.pending else None
        if load.running > self.slots:
            self.slots = load.running
        elif crowded and crowded == self._crowded:
            self.slots = crowded
        elif not load.pending and load.running == self.slots:
            self.slots += 1
        self._crowded = crowded

    def missed(self, reason: str, now: float) -> None:
        """It did not answer."""
        if self.down_since is None:
            self.down_since = now
        self.down_reason = reason

    def progress(self) -> tuple[int, int, int]:
        """Requests ended, pages and items of the attempts that are out."""
        reports = [out.report for out in self.out.values() if out.report]
        return (
            sum(report.ended_requests for report in reports),
            sum(report.pages for report in reports),
            sum(report.items for report in reports),
        )


class Placement:
    """Which node gets the next batch: `round-robin`, or `least-loaded`: fewest jobs per process slot."""

    KINDS = ("round-robin", "least-loaded")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._turn = 0

    def choose(self, members: Sequence[Member], *, avoid: str = "") -> Member | None:
        """A node with room, or None.

        Args:
            members: all nodes, always in the same order.
            avoid: the name of a node to be taken only when no other has room.
        """
        free = [member for member in members if member.room() > 0]
        others = [member for member in free if member.node.name != avoid]
        free = others or ([] if self._others_left(members, avoid) else free)
        if not free:
            return None
        if self._kind == "least-loaded":
            return min(free, key=lambda member: len(member.out) / member.slots)
        order = list(members)
        member = min(free, key=lambda one: (order.index(one) - self._turn) % len(order))
        self._turn = order.index(member) + 1
        return member

    @staticmethod
    def _others_left(members: Sequence[Member], avoid: str) -> bool:
        """Whether waiting for another node makes sense."""
        return bool(avoid) and any(member.usable and member.node.name != avoid for member in members)
