"""`python benchmarks/simulation.py` lets each way to place and to cut crawl on simulated fleets: a table and a plot."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from placement_plot import plot
from simulated import Machine, Outcome, Rule, Simulation

from scrapyd_dist.batches import Batch
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.readiness import Readiness

if TYPE_CHECKING:
    from collections.abc import Sequence

RULES = (
    Rule(placement="round-robin", adapt=False),
    Rule(placement="least-loaded", adapt=False),
    Rule(placement="by-capacity", adapt=False),
    Rule(placement="round-robin", adapt=True),
    Rule(placement="by-capacity", adapt=True),
)
#: seconds that the whole work takes when every slot works all the time
IDEAL = 300.0
KINDS = ("equal", "unequal", "unequal, 10 % die")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A rule on a kind of fleet: medians over the seeds."""

    nodes: int
    kind: str
    rule: str
    seconds: float
    ratio: float
    worst: float  #: ratio of the worst seed
    idle: float
    tail: float
    batches: int


def machines(nodes: int, kind: str, seed: int) -> list[Machine]:
    """A fleet: all alike, or with one to eight slots and a speed from slow to ten times that."""
    if kind == "equal":
        return [Machine(slots=2, speed=10.0)] * nodes
    dice = random.Random(seed)
    return [
        Machine(slots=dice.choice((1, 2, 2, 4, 8)), speed=dice.choice((2.0, 5.0, 10.0, 20.0)))
        for _ in range(nodes)
    ]


def outcome(nodes: int, kind: str, rule: Rule, seed: int, ideal: float = IDEAL) -> Outcome:
    """One simulated crawl."""
    fleet = machines(nodes, kind, seed)
    requests = round(sum(machine.slots * machine.speed for machine in fleet) * ideal)
    return Simulation(
        fleet, requests, rule, seed=seed, failures=0.1 if "die" in kind else 0.0
    ).run()


def row(nodes: int, kind: str, rule: Rule, seeds: Sequence[int]) -> Row:
    """The rule on as many fleets of this kind as there are seeds."""
    found = [outcome(nodes, kind, rule, seed) for seed in seeds]
    return Row(
        nodes=nodes,
        kind=kind,
        rule=str(rule),
        seconds=round(median(one.seconds for one in found), 1),
        ratio=round(median(one.ratio for one in found), 3),
        worst=round(max(one.ratio for one in found), 3),
        idle=round(median(one.idle for one in found), 3),
        tail=round(median(one.tail for one in found), 1),
        batches=round(median(one.batches for one in found)),
    )


def cost(nodes: int, kind: str) -> tuple[float, float]:
    """Milliseconds for one batch, and for two batches per node in one go, on a fleet of equal nodes that is empty."""
    placement = Placement(kind)
    members = [
        NodeState(node=Node.parse(f"n{n}:6800", slots=2), readiness=Readiness(prepared=True))
        for n in range(nodes)
    ]
    one, many = [Batch(number=1, size=9)], [Batch(number=n, size=9) for n in range(2 * nodes)]
    times = []
    for batches in (one, many):
        begun = time.perf_counter()
        for _ in range(5):
            placement.deal(batches, members)
        times.append((time.perf_counter() - begun) / 5 * 1000)
    return times[0], times[1]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| nodes | fleet | rule | seconds | / ideal (worst) | idle | tail s | batches |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        cells = (
            one.nodes, one.kind, one.rule, f"{one.seconds:.0f}", f"{one.ratio:.2f} ({one.worst:.2f})",
            f"{one.idle:.0%}", f"{one.tail:.0f}", one.batches,
        )  # fmt: skip
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python benchmarks/simulation.py", description=__doc__)
    parser.add_argument("--nodes", default="10,100,1000", help="sizes of the fleets")
    parser.add_argument(
        "--seeds",
        type=int,
        default=5,
        help="fleets of each kind; a tenth of that from 1000 nodes on",
    )
    parser.add_argument(
        "--rules", default="0,1,2,3,4", help="which of the rules, by their places in the table"
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    parser.add_argument("--plot", type=Path, help="file that gets the picture (SVG)")
    given = parser.parse_args()
    rows = []
    for nodes in map(int, given.nodes.split(",")):
        seeds = range(given.seeds if nodes < 1000 else max(1, given.seeds // 5))
        for kind in KINDS:
            for rule in (RULES[int(place)] for place in given.rules.split(",")):
                rows.append(row(nodes, kind, rule, seeds))
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    for kind in Placement.KINDS:
        one, many = cost(1000, kind)
        print(
            f"\n{kind}: one batch among 1000 nodes takes {one:.1f} ms, 2000 batches {many:.0f} ms"
        )
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in rows], indent=1), encoding="utf-8")
    if given.plot:
        given.plot.write_text(plot([asdict(one) for one in rows]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
