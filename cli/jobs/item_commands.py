"""`sdist items merge` and `items tail`, and the group of the commands about items."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, CrawlState, home_of
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.items.delivery import fields_of, own_parts
from scrapyd_dist.items.json_lines import FoundItem, Items, Runs, item_in
from scrapyd_dist.items.kept_parts import is_whole
from scrapyd_dist.items.merging import ItemOutput, is_elsewhere
from scrapyd_dist.items.merging import merge as write
from scrapyd_dist.items.tail_reader import LocalFile, RemotePart, TailSource, shares
from scrapyd_dist.joblogs.worker_report import part_path
from scrapyd_dist.plurals import counted
from scrapyd_dist.transports import sweep

from ..context import Context
from ..crawls.crawl import SomeCrawl
from ..crawls.crawl_options import outputs_of, stdout_for
from ..crawls.producer_process import crawl_folder, crawl_or_latest
from ..crawls.watcher import looks
from ..options import Timeout, argument, crawls, option
from ..output import Output, complain, put_values, say
from .item_pull import Stored, stored
from .job_list import TIMEOUT

#: endings of files of JSON lines
_LINES = {".jl", ".jsonl", ".jsonlines", ".part"}
#: complaints of a kind that are shown
_SHOWN = 10


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
    if away := [one["path"] for one in asked if is_elsewhere(one["path"])]:
        raise ConfigError(
            f"Items are merged into files of this machine, and {', '.join(away)} is none; name a file."
        )
    outputs = [
        ItemOutput.named(one["path"], overwrite=one["overwrite"], format=one["format"])
        for one in asked
    ]
    crawls, files, problems = _asked(context, name)
    # The parts of a crawl have a hash that is right; what comes from elsewhere is looked into, line by line.
    skip = {file.path: file.skip for file in files if file.skip}
    unverified = [file.path for file in files if file.foreign]
    items = Items([file.path for file in files], key=key or (), unverified=unverified, skip=skip)
    count = write(
        items, outputs, fields_of(attempt for crawl in crawls for attempt in crawl.accepted)
    )
    problems = _compared(crawls, files, items.found, problems)
    _show(count, outputs, items.found, problems, report)
    return 3 if problems else 0


@dataclass(frozen=True, kw_only=True)
class _File:
    path: Path
    label: str
    crawl: str = ""  #: where it is one of a crawl
    said: int | None = None  #: items, by the worker's report
    skip: Runs = field(default_factory=list)  #: items of it that count no more
    foreign: bool = False  #: whether it is not checked yet


def _asked(context: Context, names: Sequence[str]) -> tuple[list[Stored], list[_File], list[str]]:
    """The crawls and the files behind the names, in their order, and what is wrong with some."""
    wanted = [name for name in names if not Path(name).is_file()]
    crawls = stored(context, wanted) if wanted else {}
    files: list[_File] = []
    problems: list[str] = []
    for name in dict.fromkeys(names):
        if name in crawls:
            crawl = crawls[name].crawl
            if not crawl.state.ended:
                home = f"these are the items of {counted(len(crawls[name].accepted), 'batch', 'batches')} so far"
                say(f"{crawl.id} is not finished ({crawl.state.value}): {home}.")
            elif crawl.exit_code:
                say(
                    f"{crawl.id} ended with exit code {crawl.exit_code}; `sdist status {crawl.id}` says what it lacks."
                )
            _of_crawl(crawls[name], files, problems)
        else:
            files.append(_given(name))
    if not files and not problems:
        raise NothingMatched(
            f"{', '.join(names)}: no items have come home yet. `sdist status` says how the crawl stands."
        )
    return list(crawls.values()), files, problems


def _given(name: str) -> _File:
    path = Path(name)
    if path.is_dir():
        raise ConfigError(f"{name} is a folder; name the files in it, as in {path / '*.jl'}.")
    if not path.is_file():
        raise NothingMatched(
            f"There is neither a file {name!r} nor a crawl of that name. `sdist crawls` lists the project's crawls."
        )
    if path.suffix.lower() not in _LINES:
        raise ConfigError(
            f"{name} is no file of JSON lines (.jl, .jsonl), and only such files can be merged."
        )
    return _File(path=path, label=name, foreign=True)


def _of_crawl(one: Stored, files: list[_File], problems: list[str]) -> None:
    """The files of a crawl's items; one that is not there any more is a problem."""
    crawl = one.crawl.id
    files += [
        _File(path=path, label=f"{crawl}, {path.name}", crawl=crawl, foreign=True)
        for path in one.own
    ]
    out = one.left_out
    for attempt in one.accepted:
        said, part = int(attempt.report.get("items") or 0), one.folder / PARTS / attempt.part
        if is_whole(part, attempt.report):
            files.append(
                _File(
                    path=part,
                    label=attempt.job,
                    crawl=crawl,
                    said=said,
                    skip=out.get(attempt.batch, []),
                )
            )
        elif attempt.part:  # else its items went to a feed URL
            why = (
                "is not what its worker wrote, and was left out"
                if part.exists()
                else "is not there any more"
            )
            problems.append(f"{attempt.job}: its part {part} {why} ({counted(said, 'item')})")
    copies, warnings = one.feeds()
    files += [
        _File(path=path, label=str(path), crawl=crawl, foreign=True, skip=skip)
        for path, skip in copies
    ]
    problems += warnings


def _compared(
    crawls: Sequence[Stored],
    files: Sequence[_File],
    found: Sequence[FoundItem],
    problems: list[str],
) -> list[str]:
    """Add where a file lacks what it should have; else where a finished crawl's files do, together."""
    for file, one in zip(files, found, strict=True):
        if file.said is not None and one.whole != file.said:
            problems.append(
                f"{file.label}: its worker reported {counted(file.said, 'item')}, and its part has {one.whole:,}"
            )
        if one.bad:
            what = (
                f"{counted(one.bad, 'line is no item and was left out', 'lines are no items and were left out')},"
                f" the first is line {one.first_bad:,}"
            )
            problems.append(f"{file.label}: {what}")
    if problems:
        return problems
    for crawl in (one.crawl for one in crawls if one.crawl.state is CrawlState.FINISHED):
        said = int(crawl.summary.get("items") or 0)
        have = sum(
            its.whole - its.replaced
            for file, its in zip(files, found, strict=True)
            if file.crawl == crawl.id
        )
        if said != have:
            problems.append(
                f"{crawl.id}: it ended with {counted(said, 'item')}, and its files have {have:,}"
            )
    return problems


def _show(
    count: int,
    outputs: Sequence[ItemOutput],
    found: Sequence[FoundItem],
    problems: Sequence[str],
    report: Output,
) -> None:
    duplicates, torn = sum(one.duplicates for one in found), [one for one in found if one.torn]
    for one in torn[:_SHOWN]:
        say(f"{one.path}: a torn last line of {one.torn:,} bytes was left out")
    if len(torn) > _SHOWN:
        say(f"and {len(torn) - _SHOWN:,} more torn files")
    for text in problems[:_SHOWN]:
        complain(text)
    if len(problems) > _SHOWN:
        complain(f"and {len(problems) - _SHOWN:,} more like these; --json lists all.")
    document = {
        "items": count,
        "duplicates": duplicates,
        "files": len(found),
        "torn": [str(one.path) for one in torn],
        "problems": list(problems),
        "output": [str(one.path) for one in outputs],
    }
    if report.document(document):
        return
    aside = f", {duplicates:,} duplicates left out" if duplicates else ""
    say(
        f"{counted(count, 'item')} of {counted(len(found), 'file')} in"
        f" {', '.join(str(one.path) for one in outputs)}{aside}."
    )


T = TypeVar("T")
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
            while (
                lines := self._ask([stream], lambda one: one.tap.more()).get(stream.job)
            ) is not None:
                yield stream, lines

    def news(self, row: Crawl) -> Iterator[tuple[ItemStream, list[bytes]]]:
        """All whole lines that came since the last time."""
        self._find(row)
        streams = [
            stream
            for stream in self._streams.values()
            if self._paused.get(stream.node, 0) < time.monotonic()
        ]
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
                self._begin("producer", path.stem, LocalFile(path=path))
        out = self._store.attempts(self._crawl.id, {AttemptState.SENT, AttemptState.RUNNING})
        for attempt in out:
            node = self._nodes.get(attempt.url)
            if attempt.job not in self._known and node is not None:
                remote = part_path(self._home, attempt.job)
                part = RemotePart(
                    sender=self._sender, node=node, path=remote, timeout=self._timeout
                )
                self._begin(attempt.node, attempt.job, part)
        batches = row.summary.get("batches") or {}
        if batches.get("done") != self._done or row.state.ended:
            self._done = batches.get("done") or 0
            for attempt in [one for one in self._accepted() if one.part]:
                home = LocalFile(path=self._parts / attempt.part)
                if attempt.job in self._streams:
                    self._streams[attempt.job].tap.reader = home
                elif attempt.job not in self._known:  # it was sent and came home between two looks
                    self._begin(attempt.node, attempt.job, home)
        still = {attempt.job for attempt in out}
        for job, stream in self._streams.items():
            stream.grows = job in still or (stream.node == "producer" and not row.state.ended)

    def _begin(self, node: str, job: str, reader: LocalFile | RemotePart) -> None:
        self._known.add(job)
        self._streams[job] = ItemStream(node=node, job=job, tap=TailSource(reader))

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

    def _ask(
        self, streams: Sequence[ItemStream], question: Callable[[ItemStream], T]
    ) -> dict[str, T]:
        """What the streams answer, by job, in their order; a node that cannot be read is told once."""
        found: dict[str, T] = {}
        for answer in sweep(streams, question, threads=32):
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


#: seconds between two looks at files that grow
LOOK = 1.0


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
        for now in looks(context.root, store, row.id):
            for stream, lines in streams.news(now):
                show.lines(stream, lines)
            if now.state.ended:
                break
            time.sleep(LOOK)
    elif not show.count and items:
        say(f"{row.id} has no items yet that could be read here.")
    return 3 if streams.broken else 0


class Show:
    """Prints items, and whose they are where that changes."""

    def __init__(self, *, with_node: bool) -> None:
        self._with_node = with_node
        self._last: tuple[str, str] | None = None
        self.count = 0

    def lines(self, stream: ItemStream, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        self.count += len(lines)
        if self._with_node:
            marks, items = (
                {"_node": stream.node, "_job": stream.job},
                [(item_in(line), line) for line in lines],
            )
            put_values(
                "\n".join(
                    line.decode("utf-8", "replace")
                    if item is None
                    else json.dumps({**marks, **item}, ensure_ascii=False)
                    for item, line in items
                )
            )
            return
        if self._last != (stream.node, stream.job):
            self._last = stream.node, stream.job
            say(f"==> {stream.node} {stream.job} <==")
        put_values("\n".join(line.decode("utf-8", "replace").rstrip("\r") for line in lines))
