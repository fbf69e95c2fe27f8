"""Takes a step with each batch of a frontier that no worker has, and says what came of it."""

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from scrapyd_dist.batches import OUT, Batch, BatchState, Crawl
from scrapyd_dist.errors import INTERRUPTED, PARTIAL, ConfigError, NothingMatched, StepRefused
from scrapyd_dist.frontier.intake import has_strategy
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.store import Store

from ..crawls.watcher import interruptible_pause
from ..output import Output, say, waiting

#: seconds between two lines about how far it is
TELL = 10.0
#: batches that are named where they were left
BATCHES_NAMED = 5


@dataclass(kw_only=True)
class BatchWalk:
    """What became of the batches."""

    total: int  #: batches that no worker had at the beginning
    done: list[Batch] = field(default_factory=list)
    left: list[Batch] = field(default_factory=list)  #: that workers have
    interrupted: bool = False

    @property
    def requests(self) -> int:
        """Return the number of requests in the batches that are done."""
        return sum(batch.size for batch in self.done)

    def words(self) -> tuple[str, str]:
        """Return what is done: so many requests, so many batches."""
        return counted(self.requests, "request"), counted(len(self.done), "batch", "batches")

    def end(self, output: Output, document: dict[str, Any], sentence: str) -> int:
        """Print the document, or this sentence and what was not done; gives the exit code."""
        left = [batch.number for batch in self.left]
        counts = {
            "batches": len(self.done),
            "requests": self.requests,
            "left": left,
            "interrupted": self.interrupted,
        }
        if not output.document({**document, **counts}):
            say(sentence)
        if left:
            named = some_of(list(map(str, left)), BATCHES_NAMED)
            say(
                f"Left as they are, because workers have them now: batch {named}. Say the same "
                "again later."
            )
        if self.interrupted:
            say(
                f"Interrupted after {len(self.done):,} of {self.total:,} batches; the same command "
                "goes on."
            )
            return INTERRUPTED
        if left:
            return PARTIAL
        return 0


def check_no_strategy(row: Crawl) -> None:
    """Refuse to change batches behind a strategy's back: its links would wait for ever."""
    if has_strategy(row):
        raise ConfigError(
            f"{row.id} is a crawling strategy's, which alone decides what is requested, and when. "
            f"`sdist strategy reset {row.id}` forgets all that it knows, and `sdist frontier "
            f"delete {row.id} --all` removes it as a whole."
        )


def batches_of(
    store: Store, frontier: str, slots: Collection[str], states: AbstractSet[BatchState]
) -> list[Batch]:
    """Return the batches in these slots that are in one of these states."""
    return [batch for batch in store.batches(frontier, states) if batch.slot in slots]


def walk(batches: Sequence[Batch], step: Callable[[Batch], None], doing: str) -> BatchWalk:
    """Take the step with each batch that no worker has; doing: as a word, deleted.

    `StepRefused` and `NothingMatched` of a step say that a worker was faster, or has ended the
    batch meanwhile.
    """
    idle = []
    leased = []
    for batch in batches:
        if batch.state in OUT:
            leased.append(batch)
        else:
            idle.append(batch)
    made = BatchWalk(total=len(idle))
    with interruptible_pause() as pause, waiting(TELL, first=TELL) as show:
        for batch in idle:
            try:
                pause(0)
            except KeyboardInterrupt:
                made.interrupted = True
                break
            try:
                step(batch)
            except (StepRefused, NothingMatched):
                made.left.append(batch)
            else:
                made.done.append(batch)
            show(f"{len(made.done):,} of {made.total:,} batches {doing}")
    made.left += leased
    return made
