"""Keeps whether a scheduler may begin something, and why it ends."""

import asyncio
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class RunStatus:
    """Keeps how far a scheduler has come between its start and its end."""

    closed: bool = False  #: this process adds no more batches
    sending: bool = True  #: batches may be given out
    paused: bool = False  #: a user paused the crawl
    goal: str = ""  #: the goal that is reached: nothing more is begun
    #: the reason for which the project's own code has closed the crawl: likewise
    closed_by: str = ""
    stopped: str = ""  #: why it stopped before the end
    fault: BaseException | None = None  #: an internal error, never a node's
    #: nothing is left to do, or it was stopped
    done: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)  #: all loops end

    @property
    def ends_early(self) -> bool:
        """Return whether nothing more is begun, and what is under way ends the crawl."""
        return bool(self.goal or self.closed_by)

    @property
    def gives_out(self) -> bool:
        """Return whether batches may be sent, and workers started."""
        return self.sending and not self.paused and not self.ends_early

    def end_intake(self) -> None:
        """Note that this process adds no more batches."""
        self.closed = True

    def pause(self, *, paused: bool) -> None:
        """Note whether a user has paused the crawl."""
        self.paused = paused

    def reach_goal(self, goal: str) -> None:
        """Note which goal is reached; empty: none, as less has come home than was reported."""
        self.goal = goal

    def close_crawl(self, reason: str) -> None:
        """Note the reason for which the project's own code has closed the crawl."""
        self.closed_by = reason

    def finish(self) -> None:
        """Note that nothing is left to do."""
        self.done.set()

    def stop_sending(self) -> None:
        """Give out nothing more."""
        self.sending = False

    def note_stop(self, reason: str) -> None:
        """Note why not all was done."""
        self.stopped = reason

    def note_fault(self, error: BaseException) -> None:
        """Keep an internal error; the first one counts."""
        self.fault = self.fault or error

    def end(self) -> None:
        """End all loops, and those who wait for the end."""
        self.over.set()
        self.done.set()
