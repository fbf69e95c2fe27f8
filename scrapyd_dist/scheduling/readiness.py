"""Keeps whether a node has the code of a crawl, and what speaks against giving it work."""

from dataclasses import dataclass

#: most seconds between two tries to bring the code to a node that does not answer amid each
LONGEST_REST = 60.0


@dataclass(kw_only=True)
class Readiness:
    """Keeps whether a node has the crawl's code, why it gets no work, and what its workers lack."""

    prepared: bool = False  #: has the crawl's code
    unfit: str = ""  #: why it gets no work although it answers
    #: why its workers do not reach the store, in a crawl that sends it batches then
    unreached: str = ""
    throttle_problem: str = ""  #: why its workers cannot follow rules of the throttle
    lost_parts: int = 0  #: parts that could not be fetched from it since the last one that could
    late: str = ""  #: why the last try to bring the code came to no end
    _rest: float = 0.0  #: seconds from that try to the next one
    _rest_ends: float = 0.0  #: seconds since the epoch until which there is no further try
    _has_refused: bool = False  #: whether it has refused a job that it could have taken

    # its code

    def code_brought(self, problem: str = "") -> None:
        """Note that it has the code now, or the problem for which it does not get it."""
        self.unfit = problem
        self.prepared = not problem
        self._end_rest()

    def code_late(self, reason: str, now: float, rest: float) -> None:
        """Note that it did not answer amid the try to bring the code, for this reason.

        The next try comes after `rest` seconds, and after twice as many each further time.
        """
        self.late = reason
        self._rest = min(self._rest * 2 or rest, LONGEST_REST)
        self._rest_ends = now + self._rest

    def is_resting(self, now: float) -> bool:
        """Return whether it is too early for the next try to bring the code."""
        return now < self._rest_ends

    def _end_rest(self) -> None:
        """Let the next try to bring the code be as the first one."""
        self.late = ""
        self._rest = 0.0
        self._rest_ends = 0.0

    def code_lost(self) -> None:
        """Note that it may have lost the code, which is brought again."""
        self.prepared = False

    def start_over(self) -> None:
        """Note that it is entered in another way now: what was wrong may be right."""
        self.unfit = ""
        self.prepared = False
        self._end_rest()

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
