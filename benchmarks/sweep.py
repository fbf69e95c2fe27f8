"""Measures one look at all nodes: of ten that answer late, and of 200 of which 50 are dead.

The nodes are fake ones on loopback, so that the sweep is measured and not the daemons. Side by side: what `sdist nodes`
does, and asking one node after the other. Goals: 1.5 times one answer; three connect time-outs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

# What tests stand on serves here too.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from report import machine, shown, spread
from rig.manynodes import BlackHole, ManyNodes, refusing

from scrapyd_dist.fleet.node_poll import ask_nodes
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports.requests import RequestsTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapyd_dist.nodes import Node

#: seconds before a late node answers, and in which a connection has to come about
LATENCY, CONNECT = 0.2, 2.0


def sweep_late(count: int, rounds: int) -> dict[str, Any]:
    """Seconds for `count` nodes that answer after LATENCY, swept and one after the other."""
    sender = RequestsTransport()
    with closing(ManyNodes(latency=LATENCY)) as many:
        nodes = [many.node(f"web{n}") for n in range(count)]
        swept, single = [], []
        for _ in range(rounds):
            swept.append(_timed(lambda: _swept(sender, nodes, "project")))
            single.append(_timed(lambda: [sender.send(node, api.daemonstatus()) for node in nodes]))
    return {
        "nodes": count,
        "answer_s": LATENCY,
        "sweep_s": spread(swept),
        "one_by_one_s": spread(single),
    }


def sweep_dead(alive: int, dead: int, rounds: int) -> dict[str, Any]:
    """Seconds until the first and the last answer of a fleet of which `dead` nodes are dead, half of them silently."""
    sender = RequestsTransport(connect_timeout=CONNECT)
    with ExitStack() as stack:
        many, hole = (
            stack.enter_context(closing(ManyNodes())),
            stack.enter_context(closing(BlackHole())),
        )
        nodes = [(hole.node if n % 2 else refusing)(f"dead{n}") for n in range(dead)]
        nodes += [many.node(f"web{n}") for n in range(alive)]
        took, first = [], []
        for _ in range(rounds):
            began = time.monotonic()
            answers = (
                time.monotonic() - began
                for one in ask_nodes(sender, nodes, None, 10)
                if one.load is not None
            )
            first.append(next(answers))
            list(answers)
            took.append(time.monotonic() - began)
    return {
        "alive": alive,
        "dead": dead,
        "connect_s": CONNECT,
        "first_row_s": spread(first),
        "sweep_s": spread(took),
    }


def _swept(sender: RequestsTransport, nodes: Sequence[Node], project: str) -> None:
    answered = {one.node for one in ask_nodes(sender, nodes, project, 10) if one.load is not None}
    if len(answered) != len(nodes):
        raise SystemExit(
            f"only {len(answered)} of {len(nodes)} nodes answered: that is no measurement"
        )


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    sweep_late(2, 1)  # the first sweep imports things
    late, dead = sweep_late(10, options.rounds), sweep_dead(150, 50, max(1, options.rounds // 2))
    print("| what | s | goal |\n|---|---|---|")
    print(
        f"| ten nodes that answer after {LATENCY} s, swept | {shown(late['sweep_s'], 3)} | {1.5 * LATENCY:.2f} |"
    )
    print(f"| the same, one after the other | {shown(late['one_by_one_s'], 2)} | |")
    print(
        f"| 200 nodes, 50 dead, to connect within {CONNECT:g} s | {shown(dead['sweep_s'], 2)} | {3 * CONNECT:g} |"
    )
    print(f"| the first of these that answers | {shown(dead['first_row_s'], 3)} | |")
    if options.json:
        found = {"machine": machine(), "late": late, "dead": dead}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
