"""The files of one crawl's items as streams: a part grows on its node, is whole there, and is then here, same bytes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from scrapyd_dist.batches import AttemptState, home_of
from scrapyd_dist.items.delivery import PARTS, own_parts
from scrapyd_dist.items.newest import LocalFile, RemotePart, Tap, shares
from scrapyd_dist.jobs.outcome import part_path
from scrapyd_dist.scrapyd.sweep import sweep

from ..speaking import complain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Attempt, Crawl
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.store import Store
    from scrapyd_dist.transports import Sender

T = TypeVar("T")

#: nodes are asked at the same time, so many at most
THREADS = 32
#: seconds for which a node that could not be read is left alone
PAUSE = 10.0


@dataclass(kw_only=True)
class Stream:
    """The items of one job, or one file of the producer."""

    node: str
    job: str
    tap: Tap
    grows: bool = True  #: whether somebody may still write it


class Streams:
    """All files of one crawl's items.

    Args:
        store: has the crawl.
        crawl: its row.
        folder: its own, in the state folder.
        sender: the way to the nodes.
        nodes: those of the project, by their address.
        timeout: seconds for each block.

    Attributes:
        broken: the nodes that cannot be read now, and why.
    """

    def __init__(
        self, *, store: Store, crawl: Crawl, folder: Path, sender: Sender, nodes: dict[str, Node], timeout: float
    ) -> None:
        self._store, self._crawl, self._parts = store, crawl, folder / PARTS
        self._sender, self._nodes, self._timeout = sender, nodes, timeout
        self._home = home_of(crawl.id, crawl.created)
        self._streams: dict[str, Stream] = {}  #: those that are read on, by job
        self._known: set[str] = set()  #: jobs whose items were shown or passed over
        self._done = -1  #: batches that were done at the last look
        self._paused: dict[str, float] = {}  #: node -> until when it is left alone, monotonic
        self.broken: dict[str, str] = {}

    def last(self, count: int) -> Iterator[tuple[Stream, list[bytes]]]:
        """The last items: of those that grow as evenly as it goes, and where these are few, of the newest before."""
        row = self._store.crawl(self._crawl.id)
        accepted = self._accepted()
        self._known |= {attempt.job for attempt in accepted}
        self._find(row)
        growing = list(self._streams.values())
        rest = count - self._share(growing, count)
        home = list(self._before(accepted, rest))
        for stream in [*reversed(home), *growing]:
            yield from self._drained(stream)

    def news(self, row: Crawl) -> Iterator[tuple[Stream, list[bytes]]]:
        """All whole lines that came since the last time."""
        self._find(row)
        streams = [stream for stream in self._streams.values() if self._paused.get(stream.node, 0) < time.monotonic()]
        while streams:
            found = self._ask(streams, lambda stream: stream.tap.more())
            for stream in streams:
                lines = found.get(stream.job)
                if lines:
                    yield stream, lines
                elif lines is None and stream.job in found and not stream.grows:
                    del self._streams[stream.job]
            streams = [stream for stream in streams if found.get(stream.job) is not None]

    def _find(self, row: Crawl) -> None:
        """Note what is new, what has come home, and what is over."""
        for path in own_parts(self._parts):
            if path.stem not in self._known:
                self._begin(Stream(node="producer", job=path.stem, tap=Tap(LocalFile(path=path))))
        out = self._store.attempts(self._crawl.id, {AttemptState.SENT, AttemptState.RUNNING})
        for attempt in out:
            node = self._nodes.get(attempt.url)
            if attempt.job not in self._known and node is not None:
                self._begin(Stream(node=attempt.node, job=attempt.job, tap=Tap(self._remote(node, attempt))))
        batches = row.summary.get("batches") or {}
        if batches.get("done") != self._done or row.state.ended:
            self._done = batches.get("done") or 0
            self._come_home()
        still = {attempt.job for attempt in out}
        for job, stream in self._streams.items():
            stream.grows = job in still or (stream.node == "producer" and not row.state.ended)

    def _come_home(self) -> None:
        for attempt in self._accepted():
            if not attempt.part:
                continue
            reader = LocalFile(path=self._parts / attempt.part)
            if attempt.job in self._streams:
                self._streams[attempt.job].tap.reader = reader
            elif attempt.job not in self._known:  # it was sent and came home between two looks
                self._begin(Stream(node=attempt.node, job=attempt.job, tap=Tap(reader)))

    def _begin(self, stream: Stream) -> None:
        self._known.add(stream.job)
        self._streams[stream.job] = stream

    def _remote(self, node: Node, attempt: Attempt) -> RemotePart:
        path = part_path(self._home, attempt.job)
        return RemotePart(sender=self._sender, node=node, path=path, timeout=self._timeout)

    def _accepted(self) -> list[Attempt]:
        return self._store.attempts(self._crawl.id, {AttemptState.ACCEPTED})

    def _share(self, growing: Sequence[Stream], count: int) -> int:
        """Set those that grow to their share of the last items; gives how many that is."""
        have = self._ask(growing, lambda stream: stream.tap.seek_last(count))
        given = dict(zip(have, shares(list(have.values()), count), strict=True))
        less = [stream for stream in growing if given.get(stream.job, 0) < have.get(stream.job, 0)]
        self._ask(less, lambda stream: stream.tap.seek_last(given[stream.job]))
        return sum(given.values())

    def _before(self, accepted: Sequence[Attempt], count: int) -> Iterator[Stream]:
        """The parts at home that have the last items, newest first."""
        for attempt in sorted(accepted, key=lambda one: one.ended_at or 0.0, reverse=True):
            if count <= 0:
                return
            if attempt.part:
                tap = Tap(LocalFile(path=self._parts / attempt.part))
                count -= tap.seek_last(count)
                yield Stream(node=attempt.node, job=attempt.job, tap=tap, grows=False)

    def _drained(self, stream: Stream) -> Iterator[tuple[Stream, list[bytes]]]:
        while (lines := self._ask([stream], lambda one: one.tap.more()).get(stream.job)) is not None:
            yield stream, lines

    def _ask(self, streams: Sequence[Stream], question: Callable[[Stream], T]) -> dict[str, T]:
        """What the streams answer, by job, in their order; a node that cannot be read is told once."""
        found: dict[str, T] = {}
        for answer in sweep(range(len(streams)), lambda at: question(streams[at]), threads=THREADS):
            stream = streams[answer.asked]
            if answer.error is None:
                self.broken.pop(stream.node, None)
                found[stream.job] = answer.value  # type: ignore[assignment]  # an answer without an error has a value
                continue
            self._paused[stream.node] = time.monotonic() + PAUSE
            if self.broken.get(stream.node) != answer.error.short:
                self.broken[stream.node] = answer.error.short
                complain(str(answer.error))
        return {stream.job: found[stream.job] for stream in streams if stream.job in found}
