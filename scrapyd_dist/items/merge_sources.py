"""Says what is merged into one file of items: parts and files, and what of them is wrong.

The rule it keeps: what comes home with a hash is compared with it, what comes from elsewhere is
looked into line by line, and what differs is named.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.items.json_lines import FoundItem, Items, Runs
from scrapyd_dist.items.kept_parts import is_whole
from scrapyd_dist.items.stored_crawl import StoredCrawl
from scrapyd_dist.plurals import counted

#: endings of files of JSON lines
_LINES = {".jl", ".jsonl", ".jsonlines", ".part"}


@dataclass(frozen=True, kw_only=True)
class MergedFile:
    """A file of JSON lines that is merged."""

    path: Path
    label: str  #: what it is called in complaints
    crawl: str = ""  #: where it is one of a crawl
    reported: int | None = None  #: items, by the worker's report
    skip: Runs = field(default_factory=list)  #: items of it that count no more
    foreign: bool = False  #: whether it is not checked yet


def read_items(files: Sequence[MergedFile], key: Sequence[str]) -> Items:
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


def named_file(name: str) -> MergedFile:
    """Return a file that was named itself; ConfigError or NothingMatched if it is not one."""
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
    return MergedFile(path=path, label=name, foreign=True)


def add_files(found: StoredCrawl, files: list[MergedFile], problems: list[str]) -> None:
    """Add the files of a crawl's items; one that is not there any more is a problem."""
    crawl = found.crawl.id
    for path in found.own:
        label = f"{crawl}, {path.name}"
        files.append(MergedFile(path=path, label=label, crawl=crawl, foreign=True))
    skip = found.left_out
    for attempt in found.accepted:
        reported = int(attempt.report.get("items") or 0)
        part = found.folder / PARTS / attempt.part
        if is_whole(part, attempt.report):
            file = MergedFile(
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
        files.append(MergedFile(path=path, label=str(path), crawl=crawl, foreign=True, skip=runs))
    problems += warnings


def compare_files(files: Sequence[MergedFile], found: Sequence[FoundItem]) -> list[str]:
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


def compare_crawls(
    crawls: Sequence[StoredCrawl], files: Sequence[MergedFile], found: Sequence[FoundItem]
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
