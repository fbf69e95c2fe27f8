"""The same small step for many batches. Rule: each is whole in the store before the next begins, also at a Ctrl-C."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import NothingMatched, StepRefused

from ..crawls.interrupts import looked_out_for
from ..speaking import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapyd_dist.batches import Batch

#: seconds between two lines about how far it is
TELL = 10.0
#: batches that are named where they were left
SHOWN = 5
#: exit codes: some batches were left; interrupted
PARTIAL, INTERRUPTED = 3, 130


@dataclass(kw_only=True)
class Walk:
    """What became of the batches."""

    total: int
    done: list[Batch] = field(default_factory=list)
    left: list[Batch] = field(default_factory=list)  #: that workers have
    interrupted: bool = False

    @property
    def requests(self) -> int:
        """In those that are done."""
        return sum(batch.size for batch in self.done)

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.interrupted else PARTIAL if self.left else 0

    def document(self) -> dict[str, Any]:
        """The same in JSON."""
        return {
            "batches": len(self.done),
            "requests": self.requests,
            "left": [batch.number for batch in self.left],
            "interrupted": self.interrupted,
        }

    def complain(self) -> None:
        """Say what was not done."""
        if self.left:
            named = ", ".join(str(batch.number) for batch in self.left[:SHOWN])
            more = f" and {len(self.left) - SHOWN:,} more" if len(self.left) > SHOWN else ""
            say(f"Left as they are, because workers have them now: batch {named}{more}. Say the same again later.")
        if self.interrupted:
            say(f"Interrupted after {len(self.done):,} of {self.total:,} batches; the same command goes on.")


def walk(batches: Sequence[Batch], step: Callable[[Batch], None], doing: str) -> Walk:
    """Do it to one batch after the other.

    Args:
        batches: all of them.
        step: what is done to one, in one step of the store; `StepRefused` where a worker has it.
        doing: what is done, as a word: deleted.
    """
    made, told = Walk(total=len(batches)), time.monotonic()
    with looked_out_for() as ctrl_c:
        for batch in batches:
            try:
                ctrl_c.pause(0)
            except KeyboardInterrupt:
                made.interrupted = True
                return made
            try:
                step(batch)
            except (StepRefused, NothingMatched):  # a worker was faster, or has ended it meanwhile
                made.left.append(batch)
            else:
                made.done.append(batch)
            if time.monotonic() - told >= TELL:
                told = time.monotonic()
                say(f"{len(made.done):,} of {made.total:,} batches {doing}")
    return made
