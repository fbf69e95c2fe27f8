"""`sdist items merge` and `sdist items tail`: one file of a crawl's items, and its newest ones."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, CrawlState, home_of
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import PARTIAL, ConfigError, NothingMatched
from scrapyd_dist.items.delivery import fields_of, own_parts
from scrapyd_dist.items.json_lines import FoundItem, Items, Runs, item_in
from scrapyd_dist.items.kept_parts import is_whole
from scrapyd_dist.items.merging import ItemOutput, is_elsewhere
from scrapyd_dist.items.merging import merge as write
from scrapyd_dist.items.tail_reader import LocalFile, RemotePart, TailSource, shares
from scrapyd_dist.joblogs.worker_report import part_path
from scrapyd_dist.jobs.job_list import TIMEOUT
from scrapyd_dist.nodes import nodes_by_url
from scrapyd_dist.plurals import counted
from scrapyd_dist.transports import sweep

from ..context import Context
from ..crawls.crawl import SomeCrawl
from ..crawls.crawl_options import outputs_of, stdout_for
from ..crawls.producer_process import crawl_folder, crawl_or_latest
from ..crawls.watcher import watch_row
from ..options import Timeout, argument, crawls, option
from ..output import Output, complain, put_values, say
from .item_pull import Stored, stored

#: endings of files of JSON lines
_LINES = {".jl", ".jsonl", ".jsonlines", ".part"}
#: complaints of a kind that are shown
_SHOWN = 10
#: seconds for which a node that could not be read is left alone
PAUSE = 10.0
#: seconds between two looks at files that grow
LOOK = 1.0
T = TypeVar("T")


def merge(
    context: Context,
    name: Annotated[
        list[str],
        argument("CRAWL|FILE", "Crawls, and files of JSON lines, such as pull leaves.", crawls),
    ],
    output: Annotated[
        list[str] | None,
        option("Add to this file: .jl, .jsonl, .json, .csv.", "--output", "-o", metavar="FILE"),
    ] = None,
    overwrite: Annotated[
        list[str] | None,
        option(
            "The same, and replace a file that is there.",
            "--overwrite-output",
            "-O",
            metavar="FILE",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        option(
            "Of items with the same value here the first counts; more fields make one key.",
            metavar="FIELD",
        ),
    ] = None,
    report: Output = Output(),
) -> int:
    """Make one file of the items of crawls, or of files, as `sdist crawl -o` does.

    Of a crawl only the parts that count are taken, and each is checked against
    the hash and the number of items that its worker reported: what differs is
    named, and the exit code is 3. A line torn by a crash is left out, and told.

    Example: sdist items merge easy-20260102T030405Z -O items.csv --key url
    """
    if not output and not overwrite:
        raise ConfigError(
            "Name the file that the items go to: -o items.jl, or -O to replace one that is there."
        )
    with stdout_for(output, overwrite, context, taken=report.as_json) as (new, over):
        return _merge(context, name, outputs_of(Path.cwd(), new, over), key, report)


def _merge(
    context: Context,
    name: Sequence[str],
    asked: Sequence[Mapping[str, Any]],
    key: Sequence[str] | None,
    report: Output,
) -> int:
    outputs = _outputs_at(asked)
    crawls, files, problems = _find_files(context, name)
    items = _items_of(files, key or ())
    accepted: list[Attempt] = []
    for crawl in crawls:
        accepted += crawl.accepted
    count = write(items, outputs, fields_of(accepted))
    problems += _compare_files(files, items.found)
    if not problems:
        problems = _compare_crawls(crawls, files, items.found)
    _show(count, outputs, items.found, problems, report)
    return PARTIAL if problems else 0


def _outputs_at(asked: Sequence[Mapping[str, Any]]) -> list[ItemOutput]:
    """Return the files that are written; ConfigError if one would not be on this machine."""
    away = [target["path"] for target in asked if is_elsewhere(target["path"])]
    if away:
        raise ConfigError(
            f"Items are merged into files of this machine, and {', '.join(away)} is none; name a"
            " file."
        )
    outputs = []
    for target in asked:
        output = ItemOutput.named(
            target["path"], overwrite=target["overwrite"], format=target["format"]
        )
        outputs.append(output)
    return outputs


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file of JSON lines that is merged."""

    path: Path
    label: str  #: what it is called in complaints
    crawl: str = ""  #: where it is one of a crawl
    reported: int | None = None  #: items, by the worker's report
    skip: Runs = field(default_factory=list)  #: items of it that count no more
    foreign: bool = False  #: whether it is not checked yet


def _items_of(files: Sequence[_File], key: Sequence[str]) -> Items:
    """Return the items of the files, each once by its key.

    The parts of a crawl have a hash that is right; what comes from elsewhere is looked into, line
    by line.
    """
    paths = []
    unverified = []
    skip = {}
    for file in files:
        paths.append(file.path)
        if file.foreign:
            unverified.append(file.path)
        if file.skip:
            skip[file.path] = file.skip
    return Items(paths, key=key, unverified=unverified, skip=skip)


def _find_files(
    context: Context, names: Sequence[str]
) -> tuple[list[Stored], list[_File], list[str]]:
    """Return the crawls and the files behind the names, in their order, and what is wrong."""
    wanted = [name for name in names if not Path(name).is_file()]
    crawls = stored(context, wanted) if wanted else {}
    files: list[_File] = []
    problems: list[str] = []
    for name in dict.fromkeys(names):
        if name in crawls:
            _remark_unfinished(crawls[name])
            _add_files(crawls[name], files, problems)
        else:
            files.append(_given(name))
    if not files and not problems:
        raise NothingMatched(
            f"{', '.join(names)}: no items have come home yet. `sdist status` says how the crawl"
            " stands."
        )
    return list(crawls.values()), files, problems


def _remark_unfinished(found: Stored) -> None:
    crawl = found.crawl
    if not crawl.state.ended:
        batches = counted(len(found.accepted), "batch", "batches")
        say(
            f"{crawl.id} is not finished ({crawl.state.value}): these are the items of {batches} so"
            " far."
        )
    elif crawl.exit_code:
        say(
            f"{crawl.id} ended with exit code {crawl.exit_code}; `sdist status {crawl.id}` says"
            " what it lacks."
        )


def _given(name: str) -> _File:
    path = Path(name)
    if path.is_dir():
        raise ConfigError(f"{name} is a folder; name the files in it, as in {path / '*.jl'}.")
    if not path.is_file():
        raise NothingMatched(
            f"There is neither a file {name!r} nor a crawl of that name. `sdist crawls` lists the"
            " project's crawls."
        )
    if path.suffix.lower() not in _LINES:
        raise ConfigError(
            f"{name} is no file of JSON lines (.jl, .jsonl), and only such files can be merged."
        )
    return _File(path=path, label=name, foreign=True)


def _add_files(found: Stored, files: list[_File], problems: list[str]) -> None:
    """Add the files of a crawl's items; one that is not there any more is a problem."""
    crawl = found.crawl.id
    for path in found.own:
        label = f"{crawl}, {path.name}"
        files.append(_File(path=path, label=label, crawl=crawl, foreign=True))
    skip = found.left_out
    for attempt in found.accepted:
        reported = int(attempt.report.get("items") or 0)
        part = found.folder / PARTS / attempt.part
        if is_whole(part, attempt.report):
            file = _File(
                path=part,
                label=attempt.job,
                crawl=crawl,
                reported=reported,
                skip=skip.get(attempt.batch, []),
            )
            files.append(file)
        elif attempt.part:  # else its items went to a feed URL
            why = "is not there any more"
            if part.exists():
                why = "is not what its worker wrote, and was left out"
            problems.append(f"{attempt.job}: its part {part} {why} ({counted(reported, 'item')})")
    copies, warnings = found.feeds()
    for path, runs in copies:
        files.append(_File(path=path, label=str(path), crawl=crawl, foreign=True, skip=runs))
    problems += warnings


def _compare_files(files: Sequence[_File], found: Sequence[FoundItem]) -> list[str]:
    """Return where a file lacks what it should have."""
    problems = []
    for file, read in zip(files, found, strict=True):
        if file.reported is not None and read.whole != file.reported:
            problems.append(
                f"{file.label}: its worker reported {counted(file.reported, 'item')}, and its part"
                f" has {read.whole:,}"
            )
        if read.bad:
            bad = counted(
                read.bad, "line is no item and was left out", "lines are no items and were left out"
            )
            problems.append(f"{file.label}: {bad}, the first is line {read.first_bad:,}")
    return problems


def _compare_crawls(
    crawls: Sequence[Stored], files: Sequence[_File], found: Sequence[FoundItem]
) -> list[str]:
    """Return where all files of a finished crawl lack together what it should have."""
    items = Counter[str]()
    for file, read in zip(files, found, strict=True):
        items[file.crawl] += read.whole - read.replaced
    problems = []
    for entry in crawls:
        crawl = entry.crawl
        expected = int(crawl.summary.get("items") or 0)
        if crawl.state is CrawlState.FINISHED and items[crawl.id] != expected:
            problems.append(
                f"{crawl.id}: it ended with {counted(expected, 'item')}, and its files have"
                f" {items[crawl.id]:,}"
            )
    return problems


def _show(
    count: int,
    outputs: Sequence[ItemOutput],
    found: Sequence[FoundItem],
    problems: Sequence[str],
    report: Output,
) -> None:
    duplicates = 0
    torn = []
    for read in found:
        duplicates += read.duplicates
        if read.torn:
            torn.append(str(read.path))
            if len(torn) <= _SHOWN:
                say(f"{read.path}: a torn last line of {read.torn:,} bytes was left out")
    if len(torn) > _SHOWN:
        say(f"and {len(torn) - _SHOWN:,} more torn files")
    for text in problems[:_SHOWN]:
        complain(text)
    if len(problems) > _SHOWN:
        complain(f"and {len(problems) - _SHOWN:,} more like these; --json lists all.")
    paths = [str(output.path) for output in outputs]
    document = {
        "items": count,
        "duplicates": duplicates,
        "files": len(found),
        "torn": torn,
        "problems": list(problems),
        "output": paths,
    }
    if report.document(document):
        return
    aside = f", {duplicates:,} duplicates left out" if duplicates else ""
    merged = f"{counted(count, 'item')} of {counted(len(found), 'file')}"
    say(f"{merged} in {', '.join(paths)}{aside}.")


@dataclass(kw_only=True, eq=False)
class ItemStream:
    """The items of one job, or one file of the producer."""

    node: str  #: its name; `producer` for the producer
    job: str  #: its id; for the producer the name of the file without its ending
    tap: TailSource
    grows: bool = True  #: whether it may still grow


class ItemStreams:
    """Reads all files of one crawl's items, wherever they are.

    timeout: seconds that a node gets for each block.
    """

    def __init__(self, context: Context, crawl: Crawl, timeout: float) -> None:
        self._store = context.store
        self._crawl = crawl
        self._timeout = timeout
        self._sender = context.sender
        self._nodes = nodes_by_url(context.all_nodes)
        self._parts = crawl_folder(context.root, crawl.id) / PARTS
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
        node = self._nodes.get(attempt.url)
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
                complain(str(answer.error))
        in_order = {}
        for stream in streams:
            if stream.job in found:
                in_order[stream.job] = found[stream.job]
        return in_order


def tail(
    context: Context,
    crawl: SomeCrawl = None,
    follow: Annotated[bool, option("Go on until the crawl is over.", "--follow", "-f")] = False,
    items: Annotated[int, option("How many items, over all nodes.", "--items", "-n", min=0)] = 10,
    with_node: Annotated[
        bool, option("Put the node and the job into each item, as _node and _job.")
    ] = False,
    timeout: Timeout = TIMEOUT,
) -> int:
    """Show the newest items of a crawl over all nodes, as JSON lines, while it runs or later.

    Standard output has the items and nothing else; which node and job they are of
    goes to standard error. A batch that fails is crawled again, so while a crawl
    runs an item may come twice; `sdist items merge` has each once.

    Example: sdist items tail -f easy-20260102T030405Z | jq .price
    """
    store = context.store
    row = crawl_or_latest(store, crawl)
    streams = ItemStreams(context, row, timeout)
    show = Show(with_node=with_node)
    for stream, lines in streams.last(items):
        show.lines(stream, lines)
    if follow:
        for now in watch_row(context.root, store, row.id):
            for stream, lines in streams.news(now):
                show.lines(stream, lines)
            if now.state.ended:
                break
            time.sleep(LOOK)
    elif not show.count and items:
        say(f"{row.id} has no items yet that could be read here.")
    return PARTIAL if streams.broken else 0


class Show:
    """Prints items, and whose they are where that changes; with_node: in each item instead."""

    def __init__(self, *, with_node: bool) -> None:
        self._with_node = with_node
        self._last: tuple[str, str] | None = None
        self.count = 0  #: of the items that were printed

    def lines(self, stream: ItemStream, lines: Sequence[bytes]) -> None:
        """Print lines of a stream, each of which is an item."""
        if not lines:
            return
        self.count += len(lines)
        if self._with_node:
            marks = {"_node": stream.node, "_job": stream.job}
            put_values("\n".join(_marked(line, marks) for line in lines))
            return
        if self._last != (stream.node, stream.job):
            self._last = (stream.node, stream.job)
            say(f"==> {stream.node} {stream.job} <==")
        put_values("\n".join(_text(line).rstrip("\r") for line in lines))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _marked(line: bytes, marks: Mapping[str, str]) -> str:
    """Return the line with these fields before its own; as it is if it is no item."""
    item = item_in(line)
    if item is None:
        return _text(line)
    return json.dumps({**marks, **item}, ensure_ascii=False)
