"""The item files of one crawl: where they are by the store, and as streams while they grow on their nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, CrawlState, home_of
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.delivery import FEEDS, PARTS, accepted_of, feeds_of, own_parts, read_back
from scrapyd_dist.items.json_lines import Runs, left_out
from scrapyd_dist.items.tail_reader import LocalFile, RemotePart, TailSource, shares
from scrapyd_dist.joblogs.worker_report import part_path
from scrapyd_dist.transports import sweep

from ..context import Context, with_settings
from ..crawls.producer_process import crawl_folder
from ..output import complain

_FEED_URL = "DISTRIBUTED_TARGET_FEED_URL"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One crawl, as the store has it."""

    crawl: Crawl
    attempts: tuple[Attempt, ...]
    root: Path  #: of its project

    @property
    def folder(self) -> Path:
        """The crawl's own folder in the state folder."""
        return crawl_folder(self.root, self.crawl.id)

    @property
    def accepted(self) -> list[Attempt]:
        """The attempts whose items count."""
        return accepted_of(self.attempts)

    @property
    def open(self) -> list[Attempt]:
        """The attempts that are out on nodes."""
        return [a for a in self.attempts if a.state in {AttemptState.SENT, AttemptState.RUNNING}]

    @property
    def own(self) -> list[Path]:
        """The files of the producer's own items."""
        return own_parts(self.folder / PARTS)

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.crawl.state is CrawlState.FINISHED

    def part(self, attempt: Attempt) -> Path | None:
        """The part of an accepted attempt on this machine; None where its items went to a feed URL."""
        return self.folder / PARTS / attempt.part if attempt.part else None

    @property
    def left_out(self) -> dict[int, Runs]:
        """Batch -> runs of its items that count no more, since their requests were tried again."""
        return left_out(self.accepted)

    def feeds(self) -> tuple[list[tuple[Path, Runs]], list[str]]:
        """The accepted feeds read back, each with what of it counts no more; a warning for each that could not be."""
        if not any(attempt.report.get("feeds") and not attempt.part for attempt in self.accepted):
            return [], []
        feed_url = self._feed_url()
        out = self.left_out
        runs = {uri: out.get(attempt.batch, []) for attempt in self.accepted for uri in feeds_of([attempt], feed_url)}
        copies, warnings = read_back(feeds_of(self.accepted, feed_url), feed_url, self.folder / FEEDS)
        return [(path, runs[uri]) for uri, path in copies], warnings

    def _feed_url(self) -> str:
        """The crawl's feed URL, with the password if there is one; it must not be shown."""
        found = str((self.crawl.options.get("settings") or {}).get(_FEED_URL) or "")
        if not found:
            lines, why = with_settings(self.root, "-m", "scrapy", "settings", "--get", _FEED_URL)
            if why:
                raise ConfigError(f"The project's settings cannot be loaded: {why}.")
            found = lines[-1] if lines and lines[-1] != "None" else ""
        if not found:
            raise ConfigError(
                f"The items of {self.crawl.id} are at the feed URL that the project had then, and its settings name "
                f"none now: put {_FEED_URL} back, or merge copies of the feeds; "
                f"{self.folder / 'manifest.json'} lists them."
            )
        return found


def stored(context: Context, names: Sequence[str]) -> dict[str, Stored]:
    """Those of the names that are crawls of the project, in the order of the names."""
    store = context.store_if_any
    if store is None:
        return {}
    crawls = {crawl.id: crawl for crawl in store.crawls()}
    return {
        name: Stored(crawl=crawls[name], attempts=tuple(store.attempts(name)), root=context.root)
        for name in names
        if name in crawls
    }


T = TypeVar("T")
#: nodes are asked at the same time, so many at most
THREADS = 32
#: seconds for which a node that could not be read is left alone
PAUSE = 10.0


@dataclass(kw_only=True, eq=False)
class ItemStream:
    """The items of one job, or one file of the producer."""

    node: str
    job: str
    tap: TailSource
    grows: bool = True  #: whether it may still grow


class ItemStreams:
    """All files of one crawl's items; timeout: seconds that a node gets for each block."""

    def __init__(self, context: Context, crawl: Crawl, timeout: float) -> None:
        self._store, self._crawl, self._timeout = context.store, crawl, timeout
        self._sender, self._nodes = context.sender, {node.url: node for node in context.all_nodes}
        self._parts = crawl_folder(context.root, crawl.id) / PARTS
        self._home = home_of(crawl.id, crawl.created)
        self._streams: dict[str, ItemStream] = {}  #: those that are read on, by job
        self._known: set[str] = set()  #: jobs whose items were shown or passed over
        self._done = -1  #: batches that were done at the last look
        self._paused: dict[str, float] = {}  #: node -> until when it is left alone, monotonic
        self.broken: dict[str, str] = {}  #: the nodes that cannot be read now, and why

    def last(self, count: int) -> Iterator[tuple[ItemStream, list[bytes]]]:
        """The last items: of those that grow as evenly as it goes, and where these are few, of the newest before."""
        accepted = self._accepted()
        self._known |= {attempt.job for attempt in accepted}
        self._find(self._store.crawl(self._crawl.id))
        growing = list(self._streams.values())
        home = list(self._before(accepted, count - self._share(growing, count)))
        for stream in [*reversed(home), *growing]:
            while (lines := self._ask([stream], lambda one: one.tap.more()).get(stream.job)) is not None:
                yield stream, lines

    def news(self, row: Crawl) -> Iterator[tuple[ItemStream, list[bytes]]]:
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
                self._begin(ItemStream(node="producer", job=path.stem, tap=TailSource(LocalFile(path=path))))
        out = self._store.attempts(self._crawl.id, {AttemptState.SENT, AttemptState.RUNNING})
        for attempt in out:
            node = self._nodes.get(attempt.url)
            if attempt.job not in self._known and node is not None:
                remote = part_path(self._home, attempt.job)
                part = RemotePart(sender=self._sender, node=node, path=remote, timeout=self._timeout)
                self._begin(ItemStream(node=attempt.node, job=attempt.job, tap=TailSource(part)))
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
                self._begin(ItemStream(node=attempt.node, job=attempt.job, tap=TailSource(reader)))

    def _begin(self, stream: ItemStream) -> None:
        self._known.add(stream.job)
        self._streams[stream.job] = stream

    def _accepted(self) -> list[Attempt]:
        return self._store.attempts(self._crawl.id, {AttemptState.ACCEPTED})

    def _share(self, growing: Sequence[ItemStream], count: int) -> int:
        """Set those that grow to their share of the last items; gives how many that is."""
        have = self._ask(growing, lambda stream: stream.tap.seek_last(count))
        given = dict(zip(have, shares(list(have.values()), count), strict=True))
        less = [stream for stream in growing if given.get(stream.job, 0) < have.get(stream.job, 0)]
        self._ask(less, lambda stream: stream.tap.seek_last(given[stream.job]))
        return sum(given.values())

    def _before(self, accepted: Sequence[Attempt], count: int) -> Iterator[ItemStream]:
        """The parts at home that have the last items, newest first."""
        for attempt in sorted(accepted, key=lambda one: one.ended_at or 0.0, reverse=True):
            if count <= 0:
                return
            if attempt.part:
                tap = TailSource(LocalFile(path=self._parts / attempt.part))
                count -= tap.seek_last(count)
                yield ItemStream(node=attempt.node, job=attempt.job, tap=tap, grows=False)

    def _ask(self, streams: Sequence[ItemStream], question: Callable[[ItemStream], T]) -> dict[str, T]:
        """What the streams answer, by job, in their order; a node that cannot be read is told once."""
        found: dict[str, T] = {}
        for answer in sweep(streams, question, threads=THREADS):
            stream = answer.asked
            if answer.error is None:
                self.broken.pop(stream.node, None)
                found[stream.job] = answer.value  # type: ignore[assignment]  # an answer without an error has a value
                continue
            self._paused[stream.node] = time.monotonic() + PAUSE
            if self.broken.get(stream.node) != answer.error.short:
                self.broken[stream.node] = answer.error.short
                complain(str(answer.error))
        return {stream.job: found[stream.job] for stream in streams if stream.job in found}
