"""`sdist items merge` and `sdist items tail`: one file of a crawl's items, and its newest ones."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.batches import Attempt
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import PARTIAL, ConfigError, NothingMatched
from scrapyd_dist.fleet.crawl_files import crawl_folder
from scrapyd_dist.items.delivery import fields_of
from scrapyd_dist.items.item_streams import ItemStream, ItemStreams
from scrapyd_dist.items.json_lines import FoundItem, item_in
from scrapyd_dist.items.merge_sources import (
    MergedFile,
    add_files,
    compare_crawls,
    compare_files,
    named_file,
    read_items,
)
from scrapyd_dist.items.merging import ItemOutput, UnwrittenItems, is_elsewhere
from scrapyd_dist.items.merging import merge as write
from scrapyd_dist.items.stored_crawl import StoredCrawl
from scrapyd_dist.jobs.job_list import TIMEOUT
from scrapyd_dist.plurals import counted

from ..context import Context
from ..crawls.crawl import SomeCrawl
from ..crawls.crawl_options import outputs_of, stdout_for
from ..crawls.producer_process import crawl_or_latest
from ..crawls.watcher import watch_row
from ..options import Timeout, argument, crawls, option
from ..output import Output, complain, put_values, say
from .item_pull import stored

#: complaints of a kind that are shown
_SHOWN = 10
#: seconds between two looks at files that grow
LOOK = 1.0


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
    named, and the exit code is 3. A line torn by a crash is left out and reported.

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
    items = read_items(files, key or ())
    accepted: list[Attempt] = []
    for crawl in crawls:
        accepted += crawl.accepted
    unwritten = UnwrittenItems()
    count = write(items, outputs, fields_of(accepted), unwritten=unwritten)
    problems += compare_files(files, items.found)
    if not problems:
        problems = compare_crawls(crawls, files, items.found)
    problems += unwritten.sentences()
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


def _find_files(
    context: Context, names: Sequence[str]
) -> tuple[list[StoredCrawl], list[MergedFile], list[str]]:
    """Return the crawls and the files behind the names, in their order, and what is wrong."""
    wanted = [name for name in names if not Path(name).is_file()]
    crawls = stored(context, wanted) if wanted else {}
    files: list[MergedFile] = []
    problems: list[str] = []
    for name in dict.fromkeys(names):
        if name in crawls:
            _remark_unfinished(crawls[name])
            add_files(crawls[name], files, problems)
        else:
            files.append(named_file(name))
    if not files and not problems:
        raise NothingMatched(
            f"{', '.join(names)}: no items have come home yet. `sdist status` says how the crawl"
            " stands."
        )
    return list(crawls.values()), files, problems


def _remark_unfinished(found: StoredCrawl) -> None:
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
    streams = ItemStreams(
        row,
        store,
        context.sender,
        context.all_nodes,
        crawl_folder(context.root, row.id) / PARTS,
        timeout,
        context.messenger,
    )
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
