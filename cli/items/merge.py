"""`sdist items merge`: many item files become one. Rule: of a crawl only what was accepted counts, all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.items.json_lines import Items
from scrapyd_dist.items.merging import ItemOutput
from scrapyd_dist.items.merging import merge as write

from ..candidates import crawls
from ..context import Context
from ..crawls.crawl_options import output_of
from ..output import Output, complain, say
from .item_sources import stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapyd_dist.items.json_lines import FoundItem
    from scrapyd_dist.items.replaced import Runs

    from .item_sources import Stored

#: endings of files of JSON lines
_LINES = frozenset({".jl", ".jsonl", ".jsonlines", ".part"})
#: complaints of a kind that are shown
_SHOWN = 10


def merge(
    context: Context,
    name: Annotated[
        list[str],
        typer.Argument(
            metavar="CRAWL|FILE", autocompletion=crawls, help="Crawls, and files of JSON lines such as a pull leaves."
        ),
    ],
    output: Annotated[
        Optional[list[str]],
        typer.Option("--output", "-o", metavar="FILE", help="Write to this new file: .jl, .jsonl, .json, .csv."),
    ] = None,
    overwrite: Annotated[
        Optional[list[str]],
        typer.Option("--overwrite-output", "-O", metavar="FILE", help="The same, and replace a file that is there."),
    ] = None,
    key: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="FIELD", help="Of items with the same value here the first counts; more fields make one key."
        ),
    ] = None,
    report: Output = Output(),
) -> None:
    """Make one file of the items of crawls, or of files, as `sdist crawl -o` does.

    Of a crawl only the parts that count are taken, and each is checked against
    the number of items that its worker reported: what differs is named, and the
    exit code is 3. A line torn by a crash is left out, and told.

    Example: sdist items merge easy-20260102T030405Z -O items.csv --key url
    """
    outputs = _outputs(output or (), overwrite or ())
    crawls, files, problems = _asked(context, name)
    # The parts of a crawl have a hash that was right; what comes from elsewhere is looked into, line by line.
    skip = {file.path: file.skip for file in files if file.skip}
    items = Items([file.path for file in files], key=key or (), check=any(file.foreign for file in files), skip=skip)
    count = write(items, outputs)
    problems += _judged(files, items.found) or _totals(crawls, files, items.found, problems)
    _show(count, outputs, items.found, problems, report)
    raise typer.Exit(3 if problems else 0)


@dataclass(frozen=True, kw_only=True)
class _File:
    path: Path
    label: str
    crawl: str = ""  #: where it is one of a crawl
    said: int | None = None  #: items, by the worker's report
    skip: Runs = field(default_factory=list)  #: items of it that count no more
    foreign: bool = False  #: whether it is not checked yet


def _outputs(new: Sequence[str], over: Sequence[str]) -> list[ItemOutput]:
    if not new and not over:
        raise ConfigError("Name the file that the items go to: -o items.jl, or -O to replace one that is there.")
    asked = [output_of(Path.cwd(), text, overwrite=False) for text in new]
    asked += [output_of(Path.cwd(), text, overwrite=True) for text in over]
    return [ItemOutput.named(one["path"], overwrite=True, format=one["format"]) for one in asked]


def _asked(context: Context, names: Sequence[str]) -> tuple[list[Stored], list[_File], list[str]]:
    """The crawls and the files behind the names, in their order, and what is wrong with some."""
    wanted = [name for name in names if not Path(name).is_file()]
    crawls = stored(context, wanted) if wanted else {}
    files: list[_File] = []
    problems: list[str] = []
    for name in dict.fromkeys(names):
        if name in crawls:
            _tell(crawls[name])
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
        raise ConfigError(f"{name} is no file of JSON lines (.jl, .jsonl), and only such files can be merged.")
    return _File(path=path, label=name, foreign=True)


def _of_crawl(one: Stored, files: list[_File], problems: list[str]) -> None:
    """The files of a crawl's items; one that is not there any more is a problem."""
    crawl = one.crawl.id
    files += [_File(path=path, label=f"{crawl}, {path.name}", crawl=crawl) for path in one.own]
    out = one.left_out
    for attempt in one.accepted:
        said, part = int(attempt.report.get("items") or 0), one.part(attempt)
        if part is not None and part.is_file():
            files.append(_File(path=part, label=attempt.job, crawl=crawl, said=said, skip=out.get(attempt.batch, [])))
        elif part is not None:
            problems.append(f"{attempt.job}: its part {part} is not there any more ({said:,} items)")
    copies, warnings = one.feeds()
    files += [_File(path=path, label=str(path), crawl=crawl, foreign=True, skip=skip) for path, skip in copies]
    problems += warnings


def _tell(one: Stored) -> None:
    crawl = one.crawl
    if not crawl.state.ended:
        home = f"these are the items of {len(one.accepted):,} batches so far"
        say(f"{crawl.id} is not finished ({crawl.state.value}): {home}.")
    elif crawl.exit_code:
        say(f"{crawl.id} ended with exit code {crawl.exit_code}; `sdist status {crawl.id}` says what it lacks.")


def _judged(files: Sequence[_File], found: Sequence[FoundItem]) -> list[str]:
    """Where a file does not have what it should."""
    wrong = []
    for file, one in zip(files, found, strict=True):
        if file.said is not None and one.whole != file.said:
            wrong.append(f"{file.label}: its worker reported {file.said:,} items, and its part has {one.whole:,}")
        if one.bad:
            wrong.append(
                f"{file.label}: {one.bad:,} lines are no items and were left out, the first is line {one.first_bad:,}"
            )
    return wrong


def _totals(
    crawls: Sequence[Stored], files: Sequence[_File], found: Sequence[FoundItem], problems: Sequence[str]
) -> list[str]:
    """Where all files of a finished crawl do not have as many items as it ended with."""
    wrong = []
    for one in () if problems else crawls:
        said = int(one.crawl.summary.get("items") or 0)
        have = sum(
            its.whole - its.replaced for file, its in zip(files, found, strict=True) if file.crawl == one.crawl.id
        )
        if one.finished and said != have:
            wrong.append(f"{one.crawl.id}: it ended with {said:,} items, and its files have {have:,}")
    return wrong


def _torn(found: Sequence[FoundItem]) -> Iterator[str]:
    for one in found:
        if one.torn:
            yield f"{one.path}: a torn last line of {one.torn:,} bytes was left out"


def _show(
    count: int, outputs: Sequence[ItemOutput], found: Sequence[FoundItem], problems: Sequence[str], report: Output
) -> None:
    duplicates, torn = sum(one.duplicates for one in found), list(_torn(found))
    for text in [*torn[:_SHOWN], *([f"and {len(torn) - _SHOWN:,} more torn files"] if len(torn) > _SHOWN else [])]:
        say(text)
    for text in problems[:_SHOWN]:
        complain(text)
    if len(problems) > _SHOWN:
        complain(f"and {len(problems) - _SHOWN:,} more like these; --json lists all.")
    if report.document(_document(count, outputs, found, problems)):
        return
    aside = f", {duplicates:,} duplicates left out" if duplicates else ""
    say(f"{count:,} items of {len(found):,} files in {', '.join(str(one.path) for one in outputs)}{aside}.")


def _document(
    count: int, outputs: Sequence[ItemOutput], found: Sequence[FoundItem], problems: Sequence[str]
) -> dict[str, Any]:
    return {
        "items": count,
        "duplicates": sum(one.duplicates for one in found),
        "files": len(found),
        "torn": [str(one.path) for one in found if one.torn],
        "problems": list(problems),
        "output": [str(one.path) for one in outputs],
    }
