"""Keeps whether a node has the code of a crawl, and what speaks against giving it work."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Readiness:
    """Keeps whether a node has the crawl's code, why it gets no work, and what its workers lack."""

    prepared: bool = False  #: has the crawl's code
    unfit: str = ""  #: why it gets no work although it answers
    #: why its workers do not reach the store, in a crawl that sends it batches then
    unreached: str = ""
    throttle_problem: str = ""  #: why its workers cannot follow rules of the throttle
    lost_parts: int = 0  #: parts that could not be fetched from it since the last one that could
    _has_refused: bool = False  #: whether it has refused a job that it could have taken

    # its code

    def code_brought(self, problem: str = "") -> None:
        """Note that it has the code now, or the problem for which it does not get it."""
        self.unfit = problem
        self.prepared = not problem

    def code_lost(self) -> None:
        """Note that it may have lost the code, which is brought again."""
        self.prepared = False

    def start_over(self) -> None:
        """Note that it is entered in another way now: what was wrong may be right."""
        self.unfit = ""
        self.prepared = False

    # why it gets no work

    def mark_unfit(self, reason: str) -> None:
        """Give it no more work, for this reason."""
        self.unfit = reason

    def forgive_refusal(self) -> bool:
        """Return whether a refusal of a job is its first, which may be mended; only that one is."""
        is_first = not self._has_refused
        self._has_refused = True
        return is_first

    def part_lost(self) -> None:
        """Note that the part of an ended attempt cannot be fetched from it."""
        self.lost_parts += 1

    def part_fetched(self) -> None:
        """Note that an attempt there was accepted, with its part."""
        self.lost_parts = 0

    # what its workers reach

    def out_of_reach(self, reason: str) -> None:
        """Send it batches, as its workers do not reach the store, for this reason; empty: they do.

        A crawl whose workers all have to reach the store gives it no work instead, by
        `mark_unfit`.
        """
        self.unreached = reason

    def note_throttle(self, problem: str) -> None:
        """Note why its workers cannot follow rules of the throttle; empty when they can."""
        self.throttle_problem = problem

    def believe_worker(self, problem: str) -> None:
        """Note why a worker there has no lease, and cannot follow such rules, by its own words.

        The problem is empty when it has one; what was found out before is not undone.
        """
        if problem and not self.throttle_problem:
            self.throttle_problem = problem
