"""The order of every run: check, claim, prepare, begin; the work; then what it has comes home.

A crawl walks an index and fills its own frontier; a consumption works on what others have found, or
what a strategy decides. Both start with the steps of `RunStart`, and each step of theirs is a
method there. A plan checks what a crawl checks, and stops before the row is claimed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Generic, TypeVar

from scrapyd_dist.batches import CANCEL, PAUSE

from .crawl_repository import CrawlRepository
from .lifecycle import Lifecycle
from .status_reporter import BaseReporter

CheckedT = TypeVar("CheckedT")
PreparedT = TypeVar("PreparedT")
RunT = TypeVar("RunT")


class RunPhase(Enum):
    """Says how far a run is; the phases follow each other in this order."""

    CHECKING = "checking"  #: what was asked for is checked, and nothing is written
    CLAIMING = "claiming"  #: the row in the store gets to name this process
    PREPARING = "preparing"  #: the nodes are found, and get the code
    BEGINNING = "beginning"  #: what an earlier process has left is taken up
    RUNNING = "running"  #: the fleet works; what fails from now on refuses nothing
    CLOSING = "closing"  #: the run is about to end, and what it has is not complete yet
    ENDED = "ended"  #: the row has its end


class RunStart(ABC, Generic[CheckedT, PreparedT, RunT]):
    """Starts a run step by step, or refuses it."""

    def __init__(self) -> None:
        self.phase = RunPhase.CHECKING
        self.repository: CrawlRepository | None = None  #: once there is a row that is to be ended

    async def start(self) -> RunT:
        """Return the run, in which the fleet works; DistError if it may not begin."""
        checked = self.check()
        self.phase = RunPhase.CLAIMING
        self.repository = await self.claim(checked)
        self.phase = RunPhase.PREPARING
        prepared = await self.prepare(checked, self.repository)
        self.phase = RunPhase.BEGINNING
        run = await self.begin(checked, prepared)
        self.phase = RunPhase.RUNNING
        return run

    @abstractmethod
    def check(self) -> CheckedT:
        """Return what was asked for, once all has passed that needs neither store nor nodes.

        DistError if something has not. Nothing is written.
        """

    @abstractmethod
    async def claim(self, checked: CheckedT) -> CrawlRepository:
        """Open the store, and let the row name this process; DistError if that cannot be."""

    @abstractmethod
    async def prepare(self, checked: CheckedT, repository: CrawlRepository) -> PreparedT:
        """Find the nodes, and bring them the code; DistError if none can be used."""

    @abstractmethod
    async def begin(self, checked: CheckedT, prepared: PreparedT) -> RunT:
        """Take up what an earlier process has left, and let the fleet work.

        DistError if the items would have no way home.
        """


class BaseRun(Lifecycle):
    """Does what a crawl and a consumption have in common once they have begun."""

    def __init__(self, reporter: BaseReporter) -> None:
        super().__init__()
        self.phase = RunPhase.RUNNING
        self.repository = reporter.repository
        self._scheduler = reporter.scheduler

    @property
    def is_over(self) -> bool:
        """Whether the row has its end."""
        return self.phase is RunPhase.ENDED

    @abstractmethod
    def cancel(self) -> None:
        """End the run, as a user has asked for; a second call does nothing."""

    def rest(self, *, paused: bool) -> None:
        """Give out no more work, or go on with that."""
        self._scheduler.set_paused(paused=paused)

    async def obey(self) -> None:
        """Do what users ask of a running crawl or frontier through its row in the store."""
        wanted = await self.repository.wanted()
        is_paused = self._scheduler.state.paused
        if wanted == CANCEL:
            self.cancel()
        elif (wanted == PAUSE) != is_paused:
            self.rest(paused=not is_paused)
