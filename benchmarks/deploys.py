"""Measures `sdist deploy --all` against the least that it can take, and against `scrapyd-deploy -a`.

The bound is a ready egg, uploaded to all nodes at once by threads that are there already: each node has to import the
project for itself. All ways deploy to the same nodes, take turns, and each run has new code, so that nothing is left
out because it is there already. A run that did not bring every spider to every node is no measurement.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

# What tests stand on serves here too: real nodes, each with a HOME of its own.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from measure import RunError, Took, adopt_orphans, cpu_of, run_all
from report import machine, shown, spread
from rig.commands import SDIST
from rig.nodes import Nodes
from rig.projects import Project
from scrapyd_dist.deploy.egg import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rig.nodes import ScrapydNode

WAYS = ("bound", "sdist", "scrapyd-deploy")
#: of the peer, for the environment that is made where there is none
CLIENT = "scrapyd-client==2.0.3"
SPIDERS = ["easy", "plain"]
_NAMES = {"bound": "a ready egg, uploaded to all at once", "sdist": "`sdist deploy --all`",
          "scrapyd-deploy": "`scrapyd-deploy -a`"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """One roll-out to all nodes, in seconds."""

    way: str
    pair: int
    wall_s: float
    #: of the command and of the nodes, which import the project
    cpu_s: float


class Bench:
    """The nodes, and one project for each way."""

    def __init__(self, folder: Path, nodes: int, timeout: float) -> None:
        self._folder, self._timeout = folder, timeout
        self._stack = ExitStack()
        maker = self._stack.enter_context(
            closing(Nodes(Path(sys.executable), folder / "nodes", fork=False))
        )
        self.nodes: list[ScrapydNode] = maker.fleet(nodes)
        self._projects: dict[str, Project] = {}
        self._client = ""
        self._runs = 0

    def close(self) -> None:
        """Stop the nodes."""
        self._stack.close()

    def prepare(self, way: str) -> None:
        """Make what a way needs; nothing of it is measured."""
        project = self._projects[way] = Project.demo(self._folder / way)
        project.targets(self.nodes)
        if way == "scrapyd-deploy":
            self._client = find_client(self._folder / "client", self._timeout)
        (project.path / ".sdist").mkdir()
        # A state folder that git ignores, as `sdist` makes it.
        (project.path / ".sdist" / ".gitignore").write_text("*\n", encoding="utf-8")

    def run(self, way: str, pair: int) -> Run:
        """Deploy once, that way, and check what came of it.

        Raises:
            RunError: when a node lacks a spider, or has more than the one version.
        """
        self._runs += 1
        project = self._projects[way]
        project.write(f"properties/run{self._runs}.py", f"NUMBER = {self._runs}\n")
        before = sum(cpu_of(node.pid) for node in self.nodes)
        took = self._upload(project) if way == "bound" else self._command(project, way)
        nodes_cpu = sum(cpu_of(node.pid) for node in self.nodes) - before
        self._check(way)
        return Run(way=way, pair=pair, wall_s=took.wall, cpu_s=took.cpu + nodes_cpu)

    def _upload(self, project: Project) -> Took:
        egg = build(project.path, "properties.settings")
        name = f"run{self._runs}"
        with ThreadPoolExecutor(max_workers=len(self.nodes)) as pool:
            list(pool.map(lambda node: node.api("daemonstatus.json"), self.nodes))
            wall, cpu = time.monotonic(), time.process_time()
            answers = list(
                pool.map(lambda node: node.add_version("properties", name, egg.data), self.nodes)
            )
            took = Took(wall=time.monotonic() - wall, cpu=time.process_time() - cpu)
        refused = [answer for answer in answers if answer["status"] != "ok"]
        if refused:
            raise RunError(f"the bound's egg was refused: {refused[0]}")
        return took

    def _command(self, project: Project, way: str) -> Took:
        command = [*SDIST, "deploy", "--all"] if way == "sdist" else [self._client, "-a"]
        output = self._folder / f"run{self._runs}"
        output.mkdir()
        return run_all([command], cwd=project.path, output=output, timeout=self._timeout)

    def _check(self, way: str) -> None:
        for node in self.nodes:
            versions = node.api("listversions.json", project="properties")["versions"]
            spiders = node.api("listspiders.json", project="properties")["spiders"]
            if len(versions) != 1 or sorted(spiders) != SPIDERS:
                raise RunError(
                    f"{way} left {node.name} with the versions {versions} and the spiders {spiders}"
                )
            node.api("delproject.json", project="properties")


def find_client(folder: Path, timeout: float) -> str:
    """The program `scrapyd-deploy`: that of this environment, else of one that is made in `folder`.

    Raises:
        RunError: pip could not install it.
    """
    here = Path(sys.executable).with_name("scrapyd-deploy")
    if here.exists():
        return str(here)
    folder.mkdir()
    for command in (
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [
            str(folder / "venv/bin/pip"),
            "install",
            "--quiet",
            CLIENT,
            f"scrapy=={version('scrapy')}",
        ],
    ):
        run_all([command], cwd=folder, output=folder, timeout=timeout)
    return str(folder / "venv/bin/scrapyd-deploy")


def measure(bench: Bench, ways: Sequence[str], pairs: int) -> list[Run]:
    """Run each way once per pair; the one that begins changes, so that none always gets the quiet moment."""
    runs = []
    for pair in range(pairs):
        turn = pair % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            run = bench.run(way, pair)
            runs.append(run)
            print(
                f"pair {pair + 1}/{pairs}  {way:14}  {run.wall_s:6.2f} s  CPU {run.cpu_s:6.2f} s",
                file=sys.stderr,
            )
    return runs


def summary(runs: Sequence[Run], base: str = "bound") -> dict[str, dict[str, Any]]:
    """Way -> spreads of wall and CPU seconds, and of their ratios to the base way of the same pair."""
    by_way: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_way[run.way].append(run)
    bases = {run.pair: run for run in by_way.get(base, ())}
    found: dict[str, dict[str, Any]] = {}
    for way in sorted(by_way, key=WAYS.index):
        rows = by_way[way]
        paired = [(row, bases[row.pair]) for row in rows if row.pair in bases]
        found[way] = {
            "runs": len(rows),
            "wall_s": spread([row.wall_s for row in rows]),
            "cpu_s": spread([row.cpu_s for row in rows]),
            "wall_ratio": spread([row.wall_s / basis.wall_s for row, basis in paired])
            if paired
            else None,
            "cpu_ratio": spread([row.cpu_s / basis.cpu_s for row, basis in paired])
            if paired
            else None,
        }
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """The summary as a Markdown table."""
    lines = [
        "| way | wall s | CPU s | wall / bound | CPU / bound | runs |",
        "|---|---|---|---|---|---|",
    ]
    for way, row in found.items():
        cells = (
            _NAMES[way], shown(row["wall_s"], 2), shown(row["cpu_s"], 1), shown(row["wall_ratio"], 2),
            shown(row["cpu_ratio"], 2), str(row["runs"]),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The options of the program."""
    parser = argparse.ArgumentParser(prog="python benchmarks/deploys.py", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10, help="real Scrapyd nodes on this machine")
    parser.add_argument(
        "--pairs", type=int, default=7, help="how often each way is run; they take turns"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="what to measure")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds until a run is given up"
    )
    parser.add_argument(
        "--goal", type=float, help="exit code 1 when the median of sdist / bound is above this"
    )
    parser.add_argument(
        "--short", action="store_true", help="two nodes, once, without scrapyd-deploy"
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    return parser


def main() -> int:
    """Run the program; 1 when a run did not do its work, or the goal was missed."""
    given = build_parser().parse_args()
    if given.short:
        vars(given).update(nodes=2, pairs=1, ways="bound,sdist")
    ways = given.ways.split(",")
    # However it is ended, the nodes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    try:
        with (
            TemporaryDirectory(prefix="sdist-bench-") as folder,
            closing(Bench(Path(folder), given.nodes, given.timeout)) as bench,
        ):
            for way in ways:
                bench.prepare(way)
            runs = measure(bench, ways, given.pairs)
    except RunError as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    found, about = summary(runs), machine()
    print(f"{given.nodes} nodes, {given.pairs} pairs, {about['cores']} cores, {about['date']}")
    print(table(found))
    if given.json:
        document = {"schema": 1, "machine": about, "nodes": given.nodes, "ways": found}
        given.json.write_text(
            json.dumps({**document, "runs": [asdict(run) for run in runs]}, indent=1), "utf-8"
        )
    ratios = [run.wall_s / base.wall_s for run in runs for base in runs
              if (run.way, base.way, run.pair) == ("sdist", "bound", base.pair)]  # fmt: skip
    return int(bool(given.goal and ratios and median(ratios) > given.goal))


if __name__ == "__main__":
    sys.exit(main())
