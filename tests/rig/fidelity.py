"""A small project crawled by `scrapy crawl` and by `sdist crawl`, and in what the two crawls differ."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import pytest

from scrapyd_dist.errors import ConfigError

from .commands import SCRAPY, SDIST, Command, Result
from .crawls import crawls, misses_in
from .museum import PIECES, Museum
from .nodes import ScrapydNode
from .projects import Project
from .waiting import wait_for

#: how a crawl's batches reach the nodes -> the option of `sdist crawl`
MODES: Mapping[str, Sequence[str]] = {"auto": (), "push": ("--push",), "pull": ("--pull",)}
ITEMS = "items.jl"
#: what a crawl says of items that it may have several times
REPEATED = "is crawled once for each batch"
#: seconds that a crawl may take on a busy machine, and then its jobs
PATIENCE, PATIENCE_WITH_JOBS = 60, 20
#: a crawl that takes seconds, and whose work every node has a share of
SETTINGS: Mapping[str, Any] = {
    "TELNETCONSOLE_ENABLED": False,
    "RETRY_TIMES": 1,
    "DISTRIBUTED_POLL_INTERVAL": 0.2,
    "DISTRIBUTED_BATCH_SIZE": 3,
    "DISTRIBUTED_REQUEST_TIMEOUT": 10,
    "DISTRIBUTED_MIN_FREE": 1,
}
#: the module of a project whose crawl runs its jobs in its own process
ONE_PROCESS = "one_process"
START = """
import sys

sys.path.append({tests!r})

from rig.one_process import main

main(sys.argv[1:], spiders=["museum"])
"""
#: what the projects share: the site's address, and spiders that leave the reason of their end in a file
BASE = '''
import scrapy

SITE = {site!r}
REASONS = {reasons!r}


class Closing:
    """Each process appends the reason with which it closed its spider."""

    def closed(self, reason):
        with open(REASONS, "a") as file:
            file.write(reason + "\\n")


class Rooms(Closing, scrapy.Spider):
    """Walks the rooms, and scrapes their pieces; `wing` says where the links of a room lead."""

    name = "museum"
    wing = None

    async def start(self):
        yield scrapy.Request(f"{{SITE}}/rooms/0" + (f"?wing={{self.wing}}" if self.wing else ""))

    def parse(self, response):
        yield from response.follow_all(css="a.piece", callback=self.parse_piece)
        yield from response.follow_all(css="a[rel=next]")

    def parse_piece(self, response):
        yield {{"page": response.url, "name": response.css("h2::text").get()}}
'''
#: the spider of a project that does not bring its own
SPIDER = """
from small.base import Rooms


class Museum(Rooms):
    pass
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A project with one habit, and how its distributed crawl may differ from the plain one.

    `files` are files of its package: a module by its name (`spider`, `pipelines`, …), another file with its suffix.
    """

    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    callback: str = (
        "parse_piece"  #: whose requests go to the nodes; "": what the spider's kind says
    )
    arguments: Sequence[str] = ()  #: of both crawls
    stdin: str = ""  #: what both get as standard input; "{site}" is the site's address
    output: bool = True  #: whether both have `-O items.jl`
    handed_out: int = PIECES  #: the requests that go to the nodes, at least
    each_page_once: bool = False  #: whether no page may be fetched twice, where `pages` may differ
    differs: frozenset[str] = frozenset()  #: what may differ, by the names of `Outcome.differences`
    sentence: str = ""  #: what the distributed crawl says
    code: int = 0  #: its exit code
    refusals: Mapping[str, str] = field(
        default_factory=dict
    )  #: mode -> why the crawl is refused there, in words

    def __str__(self) -> str:
        return self.name


def rows_on_nodes(cases: Sequence[Case]) -> list[Any]:
    """The parameters `case` and `mode`: one mode of each case, chosen by its name."""
    rows = []
    for case in cases:
        mode = _mode_on_nodes(case)
        rows.append(pytest.param(case, mode, id=f"{case}-{mode}"))
    return rows


def rows_in_one_process(cases: Sequence[Case], quick: Sequence[tuple[Case, str]]) -> list[Any]:
    """The other modes of each case; `make test` runs those that are `quick`, `make full` the others."""
    quick_rows = [pytest.param(case, mode, id=f"{case}-{mode}") for case, mode in quick]
    rows = [
        pytest.param(case, mode, id=f"{case}-{mode}", marks=pytest.mark.full)
        for case in cases
        for mode in MODES
        if mode != _mode_on_nodes(case) and (case, mode) not in quick
    ]
    return [*quick_rows, *rows]


def _mode_on_nodes(case: Case) -> str:
    """Whatever other cases there are, it stays the same."""
    modes = list(MODES)
    return modes[crc32(case.name.encode()) % len(modes)]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a crawl."""

    code: int
    said: str
    reasons: frozenset[str]  #: those that any `closed(reason)` was given
    items: Counter[str]
    pages: Counter[str]  #: hits at the site
    handed_out: int  #: requests that went to the nodes
    misses: Mapping[str, str]  #: path of a page without a result -> why
    files: Mapping[
        str, Counter[str]
    ]  #: name -> lines, of what else was written into the folder `out`

    def differences(self, plain: Outcome) -> dict[str, str]:
        """Name -> in what it differs from the plain crawl, in words."""
        found = {
            "items": _lines_differ(self.items, plain.items),
            "pages": _lines_differ(self.pages, plain.pages),
            "files": _files_differ(self.files, plain.files),
            "reasons": _values_differ(sorted(self.reasons), sorted(plain.reasons)),
            "code": _values_differ(self.code, plain.code),
        }
        return {name: text for name, text in found.items() if text}


def _values_differ(ours: object, plain: object) -> str:
    return "" if ours == plain else f"{ours}, plain {plain}"


def _lines_differ(ours: Counter[str], plain: Counter[str]) -> str:
    missing = plain - ours
    extra = ours - plain
    if not missing and not extra:
        return ""
    counts = (
        f"{ours.total()}, plain {plain.total()}: {missing.total()} missing, {extra.total()} extra"
    )
    return f"{counts}; missing such as {[*missing][:2]}, extra such as {[*extra][:2]}"


def _files_differ(ours: Mapping[str, Counter[str]], plain: Mapping[str, Counter[str]]) -> str:
    texts = {name: _lines_differ(ours[name], plain[name]) for name in ours.keys() & plain.keys()}
    texts |= dict.fromkeys(plain.keys() - ours.keys(), "is not there")
    texts |= dict.fromkeys(ours.keys() - plain.keys(), "is there")
    return "; ".join(f"{name}: {text}" for name, text in sorted(texts.items()) if text)


class Comparison:
    """Crawls projects both ways; the plain crawl of each is done once."""

    def __init__(self, folder: Path, nodes: Sequence[ScrapydNode], museum: Museum) -> None:
        self._folder, self._nodes, self._museum = folder, nodes, museum
        self._plain: dict[str, Outcome] = {}

    def plain(self, case: Case) -> Outcome:
        """What `scrapy crawl` does."""
        if case.name not in self._plain:
            self._plain[case.name] = self._crawl(case, "plain", [*SCRAPY, "crawl", "museum"])
        return self._plain[case.name]

    def distributed(self, case: Case, mode: str) -> Outcome:
        """What `sdist crawl` does in this mode, with the jobs on the nodes."""
        target = ["--callback", case.callback] if case.callback else []
        return self._crawl(
            case, mode, [*SDIST, "crawl", "museum", *target, *MODES[mode], "--no-progress"]
        )

    def in_one_process(self, case: Case, mode: str) -> Outcome:
        """What `scrapy crawl` does with the add-on and this mode, with the jobs in its own process."""
        given = {"LOG_LEVEL": "INFO", "DISTRIBUTED_MODE": mode}
        if case.callback:
            given["DISTRIBUTED_TARGET_CALLBACKS"] = case.callback
        words = [word for name, value in given.items() for word in ("-s", f"{name}={value}")]
        program = [sys.executable, "-m", ONE_PROCESS, "crawl", "museum"]
        return self._crawl(case, f"{mode}-{ONE_PROCESS}", [*program, *words])

    def check(self, case: Case, mode: str) -> None:
        """See that the crawl on nodes does what the plain one does, or differs as the case says."""
        self._check(case, self.distributed(case, mode), mode)

    def check_in_one_process(self, case: Case, mode: str) -> None:
        """The same of the crawl in one process."""
        self._check(case, self.in_one_process(case, mode), mode)

    def _check(self, case: Case, ours: Outcome, mode: str) -> None:
        plain = self.plain(case)
        assert plain.items or plain.files, f"the plain crawl brought nothing\n{plain.said}"
        if mode in case.refusals:
            assert ours.code == ConfigError.exit_code, f"exit code {ours.code}\n{ours.said}"
            assert case.refusals[mode] in _one_line(ours.said), (
                f"refused for another reason\n{ours.said}"
            )
            assert not ours.pages, f"refused when pages had been fetched\n{ours.said}"
            return
        differences = ours.differences(plain)
        unexpected = {name: text for name, text in differences.items() if name not in case.differs}
        assert unexpected == {}, f"{unexpected}\n{ours.said}"
        assert plain.reasons <= ours.reasons, f"closed with {set(ours.reasons)}\n{ours.said}"
        repeated = [page for page, hits in ours.pages.items() if hits > 1]
        assert not case.each_page_once or not repeated, f"fetched again: {repeated}\n{ours.said}"
        assert ours.handed_out >= case.handed_out, (
            f"{ours.handed_out} requests handed out\n{ours.said}"
        )
        assert case.sentence in _one_line(ours.said), (
            f"it does not say: {case.sentence}\n{ours.said}"
        )
        if "items" not in case.differs:
            assert REPEATED not in _one_line(ours.said), f"repeats of which are none\n{ours.said}"
        assert ours.code == case.code, f"exit code {ours.code}\n{ours.said}"

    def _crawl(self, case: Case, way: str, words: Sequence[str]) -> Outcome:
        project = self._project(case, self._folder / f"{case.name}-{way}")
        feed = ["-O", ITEMS] if case.output else []
        self._museum.forget()
        line = [*words, *case.arguments, *feed]
        stdin = project.path.parent / "stdin.txt"
        stdin.write_text(case.stdin.format(site=self._museum.url))
        command = Command(
            line, cwd=project.path, folder=project.output, home=project.home, fork=True, stdin=stdin
        )
        try:
            with closing(command):
                result = command.wait(PATIENCE)
            wait_for(self._idle, PATIENCE_WITH_JOBS, "the end of all jobs")
        except AssertionError:
            for node in self._nodes:
                node.clear()  # the next crawl finds idle nodes
            raise
        return self._outcome(project, result)

    def _idle(self) -> bool:
        return not any(node.jobs("pending") or node.jobs("running") for node in self._nodes)

    def _project(self, case: Case, folder: Path) -> Project:
        folder.mkdir()
        modules = {"spider": SPIDER, **case.files}
        spiders = {"museum": modules.pop("spider")}
        project = Project.small(folder / "project", "small", spiders, {**SETTINGS, **case.settings})
        project.write(
            "small/base.py", BASE.format(site=self._museum.url, reasons=str(_reasons(project)))
        )
        for name, text in modules.items():
            file = name if "." in name else f"{name}.py"
            project.write(f"small/{file}", text)
        project.write(f"{ONE_PROCESS}.py", START.format(tests=str(Path(__file__).parents[1])))
        project.targets(self._nodes)
        return project

    def _outcome(self, project: Project, result: Result) -> Outcome:
        reasons = _reasons(project)
        items = project.path / ITEMS
        ended = [crawl.summary for crawl in crawls(project) if "misses" in crawl.summary]
        missed = [row for summary in ended for row in misses_in(summary)]
        return Outcome(
            code=result.code,
            said=f"{result.out}\n{result.err}",
            reasons=frozenset(reasons.read_text("utf-8").split() if reasons.exists() else ()),
            items=_lines(items) if items.exists() else Counter(),
            pages=self._museum.hits(),
            handed_out=max(
                (crawl.summary.get("sealed", 0) for crawl in crawls(project)), default=0
            ),
            misses={urlsplit(row["url"]).path: row["reason"] for row in missed},
            files=_files(project.path / "out"),
        )


def _reasons(project: Project) -> Path:
    return project.path.parent / "reasons.txt"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _files(folder: Path) -> dict[str, Counter[str]]:
    return {
        str(path.relative_to(folder)): _lines(path) for path in folder.rglob("*") if path.is_file()
    }


def _lines(path: Path) -> Counter[str]:
    """The lines of a file, those of JSON with sorted keys; bytes that are no text are kept as escapes."""
    text = path.read_bytes().decode("utf-8", "backslashreplace")
    return Counter(map(_with_sorted_keys, text.splitlines()))


def _with_sorted_keys(line: str) -> str:
    try:
        return json.dumps(json.loads(line), sort_keys=True)
    except ValueError:
        return line
