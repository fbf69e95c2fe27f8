"""Queues the batches that are about to be sent to nodes, and knows which of them are under way."""

from collections import OrderedDict
from collections.abc import Sequence, ValuesView
from dataclasses import dataclass, field

from scrapyd_dist.batches import Batch


@dataclass(kw_only=True)
class SendQueue:
    """Keeps some of the store's batches, in the order in which they are sent."""

    open: set[int] = field(default_factory=set)  #: numbers of batches that wait here, or are sent
    #: batch -> name of the node of its last attempt
    avoid: dict[int, str] = field(default_factory=dict)
    requests: int = 0  #: in the batches that wait
    #: by number, those that wait for a node, the next one first
    _waiting: OrderedDict[int, Batch] = field(default_factory=OrderedDict)

    @property
    def waiting(self) -> ValuesView[Batch]:
        """Return the batches that wait for a node, the next one first."""
        return self._waiting.values()

    def add(self, batch: Batch) -> None:
        """Let a batch wait, as the last one, unless it does already or is sent.

        Who seals a batch adds it when it is stored; who fills the queue may read it before that.
        """
        if batch.number in self.open:
            return
        self.open.add(batch.number)
        self._let_wait(batch)

    def take_up(self, batch: Batch) -> None:
        """Count a batch as under way that an earlier process has sent."""
        self.open.add(batch.number)

    def remove(self, batch: Batch) -> None:
        """Take a batch out that is sent now; it stays open."""
        del self._waiting[batch.number]
        self.requests -= batch.size

    def put_first(self, batch: Batch) -> None:
        """Let a batch that was not sent after all wait again, as the first one."""
        self._let_wait(batch)
        self._waiting.move_to_end(batch.number, last=False)

    def put_back(self, batch: Batch, avoid: str) -> bool:
        """Let a failed batch wait again, as the first one; its next node is not to be `avoid`.

        Returns False if it is not open any more, or waits already.
        """
        if batch.number not in self.open or batch.number in self._waiting:
            return False
        self.avoid[batch.number] = avoid
        self.put_first(batch)
        return True

    def _let_wait(self, batch: Batch) -> None:
        """Let a batch wait, and count its requests once."""
        if batch.number not in self._waiting:
            self.requests += batch.size
        self._waiting[batch.number] = batch

    def end_avoidance(self, node: str) -> None:
        """Let the batches that avoid this node go there again: it has got the code anew."""
        for number in [number for number, avoided in self.avoid.items() if avoided == node]:
            del self.avoid[number]

    def replace(self, batch: Batch, pieces: Sequence[Batch]) -> None:
        """Let the pieces of a batch wait in its place, as the first ones."""
        if batch.number in self.open:
            for piece in reversed(pieces):
                # Who fills the queue may have read it from the store before, and it may be sent.
                if piece.number not in self.open or piece.number in self._waiting:
                    self.open.add(piece.number)
                    self.put_first(piece)

    def forget(self, batch: int) -> None:
        """Forget a batch that is done, dead, or nowhere."""
        self.open.discard(batch)
        self.avoid.pop(batch, None)
