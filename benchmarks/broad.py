"""A broad crawl over a fleet: first in, first out; round-robin; and fair leases; side by side on 1, 2 and 3 nodes.

    python benchmarks/broad.py            # about seven minutes; writes its part of docs/explanation/benchmarks.md
    python benchmarks/broad.py --short    # a first look, in seconds; writes nothing

1,000 hosts on one server (`broad_site.py`), with the delays of scrapy-bench: a mean of max(0.1, N(0.2, 4)) s for each
host, and N(mean, mean / 2) for each answer of it. Real Scrapyd nodes, one job at a time on each. And another site, of
which each tenth host hardly answers at all.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

# The nodes and the projects are those of the tests.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from broad_fleet import AT_ONCE, TOGETHER, WAYS, Fleet, Pace
from broad_site import EVERY, FAST, LEAST, MEAN, SIGMA, SLOW
from measure import RunError
from numbers_section import put_section
from report import machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: what it writes below, in docs/explanation/benchmarks.md
HEADING = "A broad crawl"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One site, and the crawlers that are measured on it."""

    law: str
    hosts: int
    each: int  #: links to each host
    on: Mapping[str, Sequence[int]]  #: way -> the numbers of nodes that it is measured on
    items: int  #: for each node: after so many the run is over,
    seconds: Mapping[str, float]  #: or after this time, by way
    usual: float  #: this time for all others
    settle: float  #: seconds that are not counted
    at_once: int = AT_ONCE  #: requests that a worker makes at one time


#: the first one is long enough for ways that wait for a slow host at a time
BROAD = Trial(
    law="broad",
    hosts=1000,
    each=TOGETHER,
    on={
        "pushed": (1, 3),
        "fifo": (1, 2, 3),
        "round-robin": (1, 2, 3),
        "spread": (1, 2, 3),
        "by-domain": (1, 3),
    },
    items=600,
    seconds={"pushed": 30.0},
    usual=18.0,
    settle=5.0,
)
FEW_SLOW = Trial(
    law="few-slow",
    hosts=100,
    each=2 * TOGETHER,
    on={"fifo": (1,), "round-robin": (1,), "spread": (1,), "by-domain": (1,)},
    items=4000,
    seconds={},
    usual=10.0,
    settle=6.0,
)
#: what `--short` measures instead: the second site, so small that processor time decides nothing
SHORT = Trial(
    law="few-slow",
    hosts=20,
    each=60,
    on={"round-robin": (1,), "spread": (1,)},
    items=60,
    seconds={},
    usual=5.0,
    settle=2.5,
    at_once=16,
)

Found = dict[tuple[str, int], Pace]


def measure(folder: Path, trial: Trial) -> Found:
    """All ways of a trial, in turn on each number of nodes."""
    found: Found = {}
    most = max(max(numbers) for numbers in trial.on.values())
    fleet = Fleet(
        folder, nodes=most, law=trial.law, hosts=trial.hosts, each=trial.each, at_once=trial.at_once
    )
    with closing(fleet):
        for nodes in range(1, most + 1):
            for way in (way for way, numbers in trial.on.items() if nodes in numbers):
                seconds = trial.seconds.get(way, trial.usual)
                pace = fleet.run(
                    WAYS[way],
                    nodes,
                    items=trial.items * nodes,
                    seconds=seconds,
                    settle=trial.settle,
                )
                found[way, nodes] = pace
                told = f"{pace.items} items in {pace.seconds:.1f} s: {pace.rate:.1f} a second"
                print(f"{trial.law}  {way:12} {nodes} nodes  {told}", file=sys.stderr, flush=True)
    return found


def table(found: Found, base: str) -> str:
    """Items per second, and how they compare: with the base way on as many nodes, and with one node."""
    numbers = sorted({nodes for _, nodes in found})
    heads = [
        "way",
        *(f"{nodes} node{'s' * (nodes > 1)}" for nodes in numbers),
        f"/ {WAYS[base].says}, on as many nodes",
    ]
    heads += [f"{numbers[-1]} nodes / 1"] * (numbers[-1] > 1)
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---|" * (len(heads) - 1)]
    for way in dict.fromkeys(way for way, _ in found):
        rates = {nodes: found[way, nodes].rate for nodes in numbers if (way, nodes) in found}
        last = max(rates)
        cells = [
            WAYS[way].says,
            *(f"{rates[nodes]:.1f}" if nodes in rates else "-" for nodes in numbers),
        ]
        cells.append(_ratio(rates[last], found.get((base, last))))
        cells += [f"{rates[last] / rates[1]:.2f}" if rates.get(1) else "-"] * (numbers[-1] > 1)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(rate: float, base: Pace | None) -> str:
    return f"{rate / base.rate:.2f}" if base is not None and base.rate else "-"


def section(broad: Found, few_slow: Found) -> str:
    """What the documents say of it."""
    about = machine()
    versions = f"Python {about['python']}, Scrapy {about['scrapy']}"
    law = f"a mean of max({LEAST}, N({MEAN}, {SIGMA:g})) s for each host, N(mean, mean / 2) for each of its answers"
    long = f"{BROAD.usual:g} s, {BROAD.seconds['pushed']:g} s where batches are sent"
    return f"""\
{BROAD.hosts:,} hosts on one server, with the delays of scrapy-bench: {law}. {TOGETHER} links to a host are found together.
Real Scrapyd nodes with one job at a time, `CONCURRENT_REQUESTS = {BROAD.at_once}`, no retries. Items per second at the site,
after {BROAD.settle:g} s, until it had served {BROAD.items} for each node or the time was up ({long}).

{table(broad, "pushed")}

*First in, first out* has batches of 100 in the order in which links were found, and Scrapy's old queue. *Round-robin* sorts
links and queue by host in turn, whatever is in flight. An average answer takes 1.7 s, so {BROAD.at_once} requests at a time
are about 70 a second on each node. The ways differ where a host's turn comes before it has answered. {FEW_SLOW.hosts} hosts, every
{EVERY}th of which takes {SLOW:g} s and all others {FAST:g} s, after {FEW_SLOW.settle:g} s:

{table(few_slow, "round-robin")}

In round-robin every host gets as many requests as the slowest can answer: the downloader is full of requests to slow hosts.

`benchmarks/broad.py`; {about["date"]}, {about["cores"]} cores ({about["processor"]}), which the site, the nodes and
the store share; one run of each; {versions}.
"""


def _document(trials: Mapping[str, Found]) -> dict[str, Any]:
    rows = [
        {
            "law": law,
            "way": way,
            "nodes": nodes,
            "items": pace.items,
            "seconds": round(pace.seconds, 2),
        }
        for law, found in trials.items()
        for (way, nodes), pace in found.items()
    ]
    return {"schema": 1, "machine": machine(), "rows": rows}


def main() -> int:
    """Run the program; 0 when all runs could be measured."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/broad.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--short", action="store_true", help="few hosts, one node: to see that everything works"
    )
    parser.add_argument(
        "--docs", type=Path, default=DOCS, help="folder whose explanation/benchmarks.md is written"
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    given = parser.parse_args()
    trials = {}
    try:
        for trial in (SHORT,) if given.short else (BROAD, FEW_SLOW):
            with TemporaryDirectory(prefix="sdist-bench-") as folder:
                trials[trial.law] = measure(Path(folder), trial)
    except (RunError, AssertionError) as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    for found in trials.values():
        print(table(found, next(iter(found))[0]), end="\n\n")
    if given.json:
        given.json.write_text(json.dumps(_document(trials), indent=1), encoding="utf-8")
    if not given.short:
        put_section(
            given.docs / "explanation" / "benchmarks.md",
            HEADING,
            section(trials[BROAD.law], trials[FEW_SLOW.law]),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
