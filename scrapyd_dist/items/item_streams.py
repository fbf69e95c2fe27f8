"""Reads the newest items of a crawl while it runs: from its nodes, and from what has come home."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, home_of
from scrapyd_dist.items.delivery import own_parts
from scrapyd_dist.items.tail_reader import LocalFile, RemotePart, TailSource, shares
from scrapyd_dist.joblogs.worker_report import part_path
from scrapyd_dist.messenger import Messenger
from scrapyd_dist.nodes import Node, PresentNodes
from scrapyd_dist.store import Store
from scrapyd_dist.transports import Sender, sweep

T = TypeVar("T")
#: seconds for which a node that could not be read is left alone
PAUSE = 10.0


@dataclass(kw_only=True, eq=False)
class ItemStream:
    """The items of one job, or one file of the producer."""

    node: str  #: its name; `producer` for the producer
    job: str  #: its id; for the producer the name of the file without its ending
    tap: TailSource
    grows: bool = True  #: whether it may still grow


class ItemStreams:
    """Reads all files of one crawl's items, wherever they are.

    parts: the folder of the files that have come home; timeout: seconds that a node gets for each
    block; messenger: gets to know which nodes cannot be read.
    """

    def __init__(
        self,
        crawl: Crawl,
        store: Store,
        sender: Sender,
        nodes: Iterable[Node],
        parts: Path,
        timeout: float,
        messenger: Messenger,
    ) -> None:
        self._store = store
        self._crawl = crawl
        self._timeout = timeout
        self._sender = sender
        self._messenger = messenger
        self._nodes = PresentNodes(nodes)
        self._parts = parts
        self._home = home_of(crawl.id, crawl.created)
        self._streams: dict[str, ItemStream] = {}  #: those that are read on, by job
        self._known: set[str] = set()  #: jobs whose items were shown or passed over
        self._done = -1  #: batches that were done at the last look
        self._paused: dict[str, float] = {}  #: node -> until when it is left alone, monotonic
        self.broken: dict[str, str] = {}  #: the nodes that cannot be read now, and why

    def last(self, count: int) -> Iterator[tuple[ItemStream, list[bytes]]]:
        """Generate the last items, of those files that grow as evenly as it goes.

        Where these have few, the rest is of the newest files before.
        """
        accepted = self._accepted()
        for attempt in accepted:
            self._known.add(attempt.job)
        self._find(self._store.crawl(self._crawl.id))
        growing = list(self._streams.values())
        home = list(self._find_newest(accepted, count - self._share(growing, count)))
        for stream in [*reversed(home), *growing]:
            while (lines := self._read_more([stream]).get(stream.job)) is not None:
                yield stream, lines

    def news(self, row: Crawl) -> Iterator[tuple[ItemStream, list[bytes]]]:
        """Generate all whole lines that came since the last time; row: the crawl as it is now."""
        self._find(row)
        streams = []
        for stream in self._streams.values():
            is_paused = self._paused.get(stream.node, 0) >= time.monotonic()
            if not is_paused:
                streams.append(stream)
        while streams:
            found = self._read_more(streams)
            going_on = []
            for stream in streams:
                lines = found.get(stream.job)
                if lines:
                    yield stream, lines
                elif lines is None and stream.job in found and not stream.grows:
                    del self._streams[stream.job]
                if lines is not None:
                    going_on.append(stream)
            streams = going_on

    def _find(self, row: Crawl) -> None:
        """Note what is new, what has come home, and what is over."""
        for path in own_parts(self._parts):
            if path.stem not in self._known:
                self._begin("producer", path.stem, LocalFile(path=path))
        out = self._store.attempts(self._crawl.id, {AttemptState.SENT, AttemptState.RUNNING})
        still_out = set[str]()
        for attempt in out:
            still_out.add(attempt.job)
            self._find_remote(attempt)
        self._find_accepted(row)
        for job, stream in self._streams.items():
            is_fed = stream.node == "producer" and not row.state.ended
            stream.grows = job in still_out or is_fed

    def _find_remote(self, attempt: Attempt) -> None:
        """Begin to read the part of an attempt that its node still writes."""
        node = self._nodes.find(attempt.node, attempt.url)
        if attempt.job in self._known or node is None:
            return
        remote = part_path(self._home, attempt.job)
        part = RemotePart(sender=self._sender, node=node, path=remote, timeout=self._timeout)
        self._begin(attempt.node, attempt.job, part)

    def _find_accepted(self, row: Crawl) -> None:
        """Read from home what has come home, if any batch was done since the last look."""
        batches = row.summary.get("batches") or {}
        if batches.get("done") != self._done or row.state.ended:
            self._done = batches.get("done") or 0
            for attempt in self._accepted():
                self._find_home(attempt)

    def _find_home(self, attempt: Attempt) -> None:
        """Read the part of an accepted attempt from the file that has come home."""
        if not attempt.part:
            return
        home = LocalFile(path=self._parts / attempt.part)
        if attempt.job in self._streams:
            self._streams[attempt.job].tap.reader = home
        elif attempt.job not in self._known:  # it was sent and came home between two looks
            self._begin(attempt.node, attempt.job, home)

    def _begin(self, node: str, job: str, reader: LocalFile | RemotePart) -> None:
        self._known.add(job)
        self._streams[job] = ItemStream(node=node, job=job, tap=TailSource(reader))

    def _accepted(self) -> list[Attempt]:
        return self._store.attempts(self._crawl.id, {AttemptState.ACCEPTED})

    def _share(self, growing: Sequence[ItemStream], count: int) -> int:
        """Set those that grow to their share of the last items; returns how many that is."""
        have = self._sweep(growing, lambda stream: stream.tap.seek_last(count))
        given = dict(zip(have, shares(list(have.values()), count), strict=True))
        less = [stream for stream in growing if given.get(stream.job, 0) < have.get(stream.job, 0)]
        self._sweep(less, lambda stream: stream.tap.seek_last(given[stream.job]))
        return sum(given.values())

    def _find_newest(self, accepted: Sequence[Attempt], count: int) -> Iterator[ItemStream]:
        """Generate the parts at home that have the last items, newest first."""
        by_end = sorted(accepted, key=lambda attempt: attempt.ended_at or 0.0, reverse=True)
        for attempt in by_end:
            if count <= 0:
                return
            if attempt.part:
                tap = TailSource(LocalFile(path=self._parts / attempt.part))
                count -= tap.seek_last(count)
                yield ItemStream(node=attempt.node, job=attempt.job, tap=tap, grows=False)

    def _read_more(self, streams: Sequence[ItemStream]) -> dict[str, list[bytes] | None]:
        """Return the next lines of each stream, by job; None at its end."""
        return self._sweep(streams, lambda stream: stream.tap.more())

    def _sweep(
        self, streams: Sequence[ItemStream], question: Callable[[ItemStream], T]
    ) -> dict[str, T]:
        """Return what the streams answer, by job, in their order.

        A node that cannot be read is complained of once, and left alone for a while.
        """
        found: dict[str, T] = {}
        for answer in sweep(streams, question, threads=32):
            stream = answer.asked
            if answer.error is None:
                self.broken.pop(stream.node, None)
                # An answer without an error has a value.
                found[stream.job] = answer.value  # type: ignore[assignment]
                continue
            self._paused[stream.node] = time.monotonic() + PAUSE
            if self.broken.get(stream.node) != answer.error.short:
                self.broken[stream.node] = answer.error.short
                self._messenger.complain(str(answer.error))
        in_order = {}
        for stream in streams:
            if stream.job in found:
                in_order[stream.job] = found[stream.job]
        return in_order
