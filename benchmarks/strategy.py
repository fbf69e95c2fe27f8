"""A crawl of a thousand generated sites by a strategy: what share of the allowed pages, how often, and in which order.

    python benchmarks/strategy.py            # four crawls, about an hour; prints the table
    python benchmarks/strategy.py --sites 100 --store redis --kills 0

Sites with robots.txt, links to each other, errors, redirects and traps (`tests/rig/webs.py`); real nodes with three
workers; a strategy that has pages near to a seed first. Each crawl is made as it is, and again with five kills at
random moments: of the strategy's process, of a worker, and of the store's server where there is one. The web's own log
is what counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

# The nodes, the web and the projects are those of the tests.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from report import machine
from rig.processes import node_python
from rig.web_crawls import STORE_SERVER, STRATEGY_PROCESS, WORKER, SiteOrder, WebCrawl
from rig.web_server import WebVerdict, judge_web

#: shares of the allowed pages between which something is killed
EARLIEST, LATEST = 0.02, 0.9
#: requests of a site that wait in batches: few, so that the order of small sites says something
AHEAD = 16
#: seconds for one crawl
PATIENCE = 3600.0


@dataclass(frozen=True, kw_only=True)
class BroadRun:
    """What one crawl came to."""

    store: str
    sites: int
    kills: int
    allowed: int  #: pages that it may fetch
    fetched: int  #: of these, those that it has
    unexpected: int  #: others, which it should not have
    again: int  #: fetches beyond those that a page may have
    seconds: float  #: from the first page to the last
    order: SiteOrder
    in_flight: int  #: how many pages of a site may overtake one
    items_differ: bool

    @property
    def row(self) -> str:
        """A line of the table."""
        cells = (
            self.store, self.kills, f"{self.sites:,}", f"{self.allowed:,}", f"{self.fetched / self.allowed:.2%}",
            self.unexpected, self.again, "no" if self.items_differ else "yes", f"{self.allowed / self.seconds:.0f}",
            f"{self.order.share:.2%}", f"{self.order.overtaken} / {self.in_flight}",
        )  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


HEAD = (
    "| store | kills | sites | allowed pages | fetched | others | fetched again | items exact | pages/s"
    " | pairs in order | overtaken, most / bound |\n|" + "---|" * 11
)


def measure(
    folder: Path, python: Path, *, store: str, sites: int, kills: int, seed: int
) -> BroadRun:
    """Make one crawl."""
    redis = store == "redis"
    dice = Random(seed)
    crawl = WebCrawl(
        folder, python, sites=sites, seed=seed, redis=redis, ahead=AHEAD, patience=PATIENCE
    )
    with closing(crawl):
        crawl.begin()
        kinds = [STRATEGY_PROCESS, WORKER, *([STORE_SERVER] if redis else [])]
        for moment in sorted(dice.uniform(EARLIEST, LATEST) for _ in range(kills)):
            crawl.kill_at(moment, what := dice.choice(kinds), dice)
            _tell(f"killed at {moment:.0%}: {what}")
        crawl.finish()
        hits = crawl.web.hits()
        pages = [hit.time for hit in hits if hit.is_page]
        verdict = judge_web(hits, crawl.allowed)
        _explain(verdict, items := crawl.wrong_items())
        return BroadRun(
            store=store, sites=sites, kills=kills, allowed=len(crawl.allowed),
            fetched=len(crawl.allowed) - len(verdict.missing), unexpected=len(verdict.unexpected),
            again=sum(verdict.repeated.values()), seconds=max(pages) - min(pages), order=crawl.order(),
            in_flight=crawl.in_flight, items_differ=bool(items),
        )  # fmt: skip


def _explain(verdict: WebVerdict, items: dict[str, list[str]]) -> None:
    for name, found in {
        **asdict(verdict),
        **{f"items {name}": urls for name, urls in items.items()},
    }.items():
        if found:
            _tell(f"{name}: {len(found)}, such as {list(found)[:5]}")


def _tell(text: str) -> None:
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the program; 0 when every crawl was exact."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/strategy.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument(
        "--store",
        choices=("sqlite", "redis"),
        action="append",
        help="one of them; both if left out",
    )
    parser.add_argument(
        "--kills", type=int, action="append", help="in one crawl; 0, and then 5, if left out"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the web and of the kills")
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    given = parser.parse_args()
    runs: list[BroadRun] = []
    with TemporaryDirectory(prefix="sdist-bench-") as temporary:
        python = node_python(Path(temporary))
        for store in given.store or ("sqlite", "redis"):
            for kills in given.kills or (0, 5):
                folder = Path(temporary) / f"run{len(runs)}"
                folder.mkdir()
                runs.append(
                    measure(
                        folder, python, store=store, sites=given.sites, kills=kills, seed=given.seed
                    )
                )
                print(f"{HEAD}\n{runs[-1].row}", flush=True)
    about = machine()
    print(f"\n{HEAD}")
    print(*(run.row for run in runs), sep="\n")
    print(f"\nMeasured on {about['date']} on {about['cores']} cores ({about['processor']}).")
    if given.json:
        document = {"schema": 1, "machine": about, "runs": [asdict(run) for run in runs]}
        given.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    good = all(
        run.fetched == run.allowed and not run.unexpected and not run.items_differ for run in runs
    )
    return 0 if good and all(run.order.overtaken <= run.in_flight for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
