"""What a worker's page costs in CPU seconds, and what the profiles and each of their elements take off it.

    python benchmarks/worker.py --pages 2000 --pairs 7

Every way crawls the same batch, as a job on a node does, with the same egg; they take turns, and the ratios are those
of the same turn. Each run has to bring exactly the site's items home, in the same account.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

# The site and the project are those of the tests.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from measure import RunError, Took, run_all
from report import machine, shown, spread
from rig.projects import Project
from rig.sites import SiteProcess
from scrapyd_dist.deploy.egg import BOOT_PREFIX, build
from scrapyd_dist.examples.pages import Site

from scrapyd_dist.payload import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: an extension of the project that puts single elements of the profile in
ELEMENTS = '''
"""Single elements of the profile, for a benchmark."""

from scrapy import signals
from scrapyd_dist.middlewares import addon


class Elements:
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        crawler.signals.connect(self.opened, signals.spider_opened)
        return self

    def opened(self, spider):
        elements = spider.settings.getlist("ELEMENTS")
        if "log" in elements:
            addon.log_no_more(spider)
        if "gc" in elements:
            addon.leave_what_stays()
'''
_AIOHTTP = json.dumps({"http": "scrapy.core.downloader.handlers._aiohttp.AiohttpDownloadHandler"})
_QUEUE = "scrapy.pqueues.ScrapyPriorityQueue"


class Way(NamedTuple):
    """One way to run the job."""

    says: str
    settings: Mapping[str, str]


#: a way that names no profile has none; "none" is what all others are compared with
WAYS = {
    "none": Way("Scrapy as it is", {}),
    "items16": Way("`CONCURRENT_ITEMS` 16 instead of 100", {"CONCURRENT_ITEMS": "16"}),
    "items": Way("`CONCURRENT_ITEMS` 4", {"CONCURRENT_ITEMS": "4"}),
    "item": Way("`CONCURRENT_ITEMS` 1", {"CONCURRENT_ITEMS": "1"}),
    "gc": Way("what stays is left out of garbage collection", {"ELEMENTS": "gc"}),
    "log": Way("no log records below `LOG_LEVEL`", {"ELEMENTS": "log"}),
    "usual": Way("**the profile `usual`**", {"DISTRIBUTED_PROFILE": "usual"}),
    "fast": Way("**the profile `fast`**", {"DISTRIBUTED_PROFILE": "fast"}),
    "debug": Way("`LOG_LEVEL` DEBUG", {"LOG_LEVEL": "DEBUG"}),
    "uvloop": Way(
        "`fast`, and uvloop", {"DISTRIBUTED_PROFILE": "fast", "ASYNCIO_EVENT_LOOP": "uvloop.Loop"}
    ),
    "reactorless": Way(
        "`fast`, and no Twisted reactor",
        {
            "DISTRIBUTED_PROFILE": "fast",
            "TWISTED_REACTOR_ENABLED": "0",
            "TELNETCONSOLE_ENABLED": "0",
        },
    ),
    "aiohttp": Way(
        "`fast`, and aiohttp downloads",
        {"DISTRIBUTED_PROFILE": "fast", "DOWNLOAD_HANDLERS": _AIOHTTP},
    ),
    "queue": Way(
        "`fast`, and a simple queue",
        {"DISTRIBUTED_PROFILE": "fast", "SCHEDULER_PRIORITY_QUEUE": _QUEUE},
    ),
}
#: what needs nothing but Scrapy 2.13 or later
MEASURED = "none,items16,items,gc,log,usual,fast,debug"


class Runs(NamedTuple):
    """What one way cost, turn by turn, in CPU seconds."""

    whole: list[float]
    #: a job of one page
    start: list[float]


class Worker:
    """A batch, and the egg whose worker crawls it."""

    def __init__(self, folder: Path, pages: int, timeout: float) -> None:
        self._folder, self._timeout, self._runs = folder, timeout, 0
        self.site = SiteProcess(folder / "site", Site(items=pages))
        project = Project.demo(folder / "project")
        project.write(f"{project.name}/elements.py", ELEMENTS)
        project.settings(EXTENSIONS={f"{project.name}.elements.Elements": 0})
        egg = build(project.path, f"{project.name}.settings")
        (folder / "worker.egg").write_bytes(egg.data)
        self._boot = BOOT_PREFIX + egg.content_hash

    def run(self, settings: Mapping[str, str], pages: int) -> Took:
        """Crawl the first so many pages.

        Raises:
            RunError: when not exactly their items came home.
        """
        self._runs += 1
        output = self._folder / f"run{self._runs}"
        log = output / "logs" / "properties" / "easy" / "job.log"
        log.parent.mkdir(parents=True)
        batch = encode([{"url": self.site.detail(number), "rule": 1} for number in range(pages)])
        job = json.dumps({"crawl": "c", "batch": 1, "attempt": 1})
        given = {
            "DISTRIBUTED_PROFILE": "none",
            **settings,
            **batch,
            "DISTRIBUTED_JOB": job,
            "LOG_FILE": str(log),
        }
        environment = [
            f"PYTHONPATH={self._folder / 'worker.egg'}",
            f"SCRAPY_SETTINGS_MODULE={self._boot}",
        ]
        command = ["env", *environment, sys.executable, "-m", "scrapy", "crawl", "easy"]
        command += [word for name, value in given.items() for word in ("-s", f"{name}={value}")]
        took = run_all([command], cwd=output, output=output, timeout=self._timeout)
        self._check(output / "logs" / "_sdist" / "c", pages)
        return took

    def _check(self, home: Path, pages: int) -> None:
        report = json.loads((home / "c.b1.a1.json").read_text(encoding="utf-8"))
        items = [
            json.loads(line)
            for line in (home / "c.b1.a1.jl").read_text(encoding="utf-8").splitlines()
        ]
        differences = self.site.differences(items, without=range(pages, self.site.site.items))
        account = [report[name] for name in ("requests", "done", "missed", "pages", "items")]
        if differences or account != [pages, pages, 0, pages, pages]:
            raise RunError(f"{len(items)} items, account {account}, {differences}")

    def close(self) -> None:
        """Stop the site."""
        self.site.close()


def measure(worker: Worker, ways: Sequence[str], pages: int, pairs: int) -> dict[str, Runs]:
    """Run each way once per turn; the one that begins changes."""
    found = {way: Runs([], []) for way in ways}
    for pair in range(pairs):
        turn = pair % len(ways)
        for way in [*ways[turn:], *ways[:turn]]:
            found[way].start.append(worker.run(WAYS[way].settings, 1).cpu)
            found[way].whole.append(worker.run(WAYS[way].settings, pages).cpu)
            print(
                f"pair {pair + 1}/{pairs}  {way:12} {found[way].whole[-1]:6.2f} CPU s",
                file=sys.stderr,
            )
    return found


def _ratios(runs: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    return spread([run / basis for run, basis in zip(runs, base, strict=True)])


def summary(found: Mapping[str, Runs], pages: int) -> dict[str, dict[str, Any]]:
    """Way -> milliseconds a page and seconds a start, and what they are of those without the profile."""
    base, rows = found["none"], {}
    cost = {
        way: [w - s for w, s in zip(runs.whole, runs.start, strict=True)]
        for way, runs in found.items()
    }
    for way, runs in found.items():
        rows[way] = {
            "page_ms": spread([seconds * 1000 / (pages - 1) for seconds in cost[way]]),
            "page_ratio": _ratios(cost[way], cost["none"]),
            "start_s": spread(runs.start),
            "start_ratio": _ratios(runs.start, base.start),
            "whole_ratio": _ratios(runs.whole, base.whole),
        }
    return rows


def table(rows: Mapping[str, Mapping[str, dict[str, float]]]) -> str:
    """The summary as a Markdown table."""
    lines = [
        "| way | CPU ms a page | of that without | CPU s a start | of that without | whole job |",
        "|---|" + "---|" * 5,
    ]
    for way, row in rows.items():
        cells = [shown(row["page_ms"], 2), shown(row["page_ratio"], 2), shown(row["start_s"], 2)]
        cells += [shown(row["start_ratio"], 2), shown(row["whole_ratio"], 2)]
        lines.append(f"| {WAYS[way].says} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the program; 0 when every run brought exactly its items home, else 1."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/worker.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--ways",
        default=MEASURED,
        help=f"what to measure, of {','.join(WAYS)}; always begins with none",
    )
    parser.add_argument("--pages", type=int, default=2000, help="pages of the batch")
    parser.add_argument(
        "--pairs", type=int, default=7, help="how often each way is run; they take turns"
    )
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds until a run is given up"
    )
    parser.add_argument(
        "--short", action="store_true", help="few pages, once: to see that everything works"
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    given = parser.parse_args()
    pages, pairs = (50, 1) if given.short else (given.pages, given.pairs)
    ways = list(dict.fromkeys(["none", *given.ways.split(",")]))
    try:
        with (
            TemporaryDirectory(prefix="sdist-bench-") as folder,
            closing(Worker(Path(folder), pages, given.timeout)) as worker,
        ):
            found = measure(worker, ways, pages, pairs)
    except RunError as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    rows, about = summary(found, pages), machine()
    print(
        f"{pages} pages, {pairs} pairs, {about['cores']} cores, Scrapy {about['scrapy']}, {about['date']}"
    )
    print(table(rows))
    if given.json:
        runs = {way: runs._asdict() for way, runs in found.items()}
        given.json.write_text(
            json.dumps(
                {"schema": 1, "machine": about, "pages": pages, "ways": rows, "runs": runs},
                indent=1,
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
