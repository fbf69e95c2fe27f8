"""`python tests/faults` breaks real crawls at seeded random moments, and prints what was lost or doubled."""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

# The nodes, the site and the projects are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from faults.kinds import KINDS, LONG, Kind
from faults.soak import soak
from faults.trial import Trial
from faults.verdict import FIGURES, Verdict, judge
from rig.processes import node_python

#: how batches reach the nodes
MODES = ("auto", "push", "pull")
#: what has to be the same for the figures of two runs to be added up: kind, mode and store
Row = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One crawl that is to be broken."""

    kind: Kind
    mode: str
    redis: bool  #: whether its store is a Redis server, or a file

    @property
    def row(self) -> Row:
        """Where its figures belong."""
        return self.kind.name, self.mode, "Redis" if self.redis else "SQLite"


def plan_runs(kinds: Sequence[Kind], modes: Sequence[str], store: str) -> list[Run]:
    """All different runs: each kind in each mode, the stores in turn; then those on the other store."""
    first, others = list[Run](), list[Run]()
    for number, kind in enumerate(kinds):
        stores = _stores_of(kind, store)
        for turn, mode in enumerate(modes):
            runs = [Run(kind=kind, mode=mode, redis=redis) for redis in stores]
            if runs:
                first.append(runs.pop((number + turn) % len(runs)))
            others += runs
    return [*first, *others]


def _stores_of(kind: Kind, store: str) -> list[bool]:
    """Return the stores that a kind can have, of those that were asked for: whether each is Redis."""
    asked = {"sqlite": [False], "redis": [True], "both": [False, True]}[store]
    return [redis for redis in asked if kind.redis in (None, redis)]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/faults", description=__doc__)
    parser.add_argument(
        "--runs",
        type=int,
        help="crawls in all; the kinds take turns (36, all different ones with --mode all, 1 with --long)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first crawl; each next one has the next"
    )
    parser.add_argument("--only", default="", help="only kinds whose name holds this text")
    parser.add_argument(
        "--store", choices=("sqlite", "redis", "both"), default="both", help="the stores, in turn"
    )
    parser.add_argument(
        "--mode",
        choices=(*MODES, "all"),
        default="auto",
        help="how batches reach the nodes; all: each kind in each mode, and then on the other store",
    )
    parser.add_argument("--at-once", type=int, default=1, help="crawls at the same time (1)")
    parser.add_argument("--long", action="store_true", help=f"only one kind: {LONG.name}")
    parser.add_argument(
        "--soak", type=float, nargs="?", const=60.0, metavar="MINUTES",
        help="instead: crawls, a consumer and plain jobs on three nodes for so long (60), and faults",
    )  # fmt: skip
    parser.add_argument(
        "--own-work",
        action="store_true",
        help="the project's pipeline and idle handler ask for pages of their own",
    )
    parser.add_argument("--keep", type=Path, help="folder in which all of each run is left")
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    return parser


def one(
    kind: Kind, seed: int, *, redis: bool, folder: Path, python: Path, options: argparse.Namespace
) -> Verdict:
    """The verdict on one crawl of this kind, in the mode of the options."""
    # A kind whose spider is of its own has no other one that asks for more.
    asks_for_more = options.own_work and "spider" not in kind.trial
    wanted = {"mode": options.mode, "asks_for_more": asks_for_more, **kind.trial}
    with ExitStack() as stack:
        trial = stack.enter_context(closing(Trial(folder, python, seed, redis=redis, **wanted)))
        if kind.around is not None:
            stack.enter_context(kind.around(trial))
        trial.begin()
        kind.strike(trial)
        done = trial.finish()
        verdict = judge(trial, done, bound=kind.bound)
        if not verdict.good:
            print(done.err[-3000:], file=sys.stderr)
        return verdict


def table(rows: dict[Row, Verdict]) -> str:
    """All figures, as Markdown."""
    lines = ["| what broke | mode | store | " + " | ".join(FIGURES) + " |"]
    lines.append("|---" * (3 + len(FIGURES)) + "|")
    for row, verdict in rows.items():
        cells = (*row, *(int(getattr(verdict, name)) for name in FIGURES.values()))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def make_run(
    runs: Sequence[Run], python: Path, kept: Path, options: argparse.Namespace, number: int
) -> tuple[Verdict | None, float]:
    """The verdict on the run of this number, None if it could not be made; and its seconds."""
    run = runs[number]
    began = time.monotonic()
    folder = kept / f"run{number}"
    folder.mkdir(parents=True)
    mode = argparse.Namespace(**{**vars(options), "mode": run.mode})
    try:
        verdict = one(
            run.kind,
            options.seed + number,
            redis=run.redis,
            folder=folder,
            python=python,
            options=mode,
        )
    except Exception:  # noqa: BLE001 - the others shall still run
        traceback.print_exc()
        return None, time.monotonic() - began
    return verdict, time.monotonic() - began


#: makes the run of a number; set before the processes begin that call it
_make: partial[tuple[Verdict | None, float]]


def _make_numbered(number: int) -> tuple[int, Verdict | None, float]:
    return number, *_make(number)


def results(count: int, at_once: int) -> Iterator[tuple[int, Verdict | None, float]]:
    """Number, verdict and seconds of so many runs, as they end; each in a process, if several run at once."""
    if at_once <= 1:
        yield from map(_make_numbered, range(count))
        return
    with ProcessPoolExecutor(at_once, mp_context=get_context("fork")) as pool:
        for done in as_completed([pool.submit(_make_numbered, at) for at in range(count)]):
            yield done.result()


def break_crawls(options: argparse.Namespace, temporary: Path) -> int:
    """Make all runs, and print their figures; 0 when every promise was kept."""
    global _make  # noqa: PLW0603 - what the forked processes are to call
    kinds = [kind for kind in ((LONG,) if options.long else KINDS) if options.only in kind.name]
    modes = MODES if options.mode == "all" else (options.mode,)
    different = plan_runs(kinds, modes, options.store)
    usual = len(different) if options.mode == "all" else 36
    runs = list(islice(cycle(different), options.runs or (1 if options.long else usual)))
    _make = partial(make_run, runs, node_python(temporary), options.keep or temporary, options)
    rows: dict[Row, Verdict] = {}
    failed = 0
    for number, verdict, seconds in results(len(runs), options.at_once):
        row = runs[number].row
        if verdict is None:
            failed += 1
            print(f"{number + 1:3} {' '.join(row[1:])} {row[0]}: FAILED TO RUN", flush=True)
            continue
        rows[row] = rows[row] + verdict if row in rows else verdict
        judged = "good" if verdict.good else f"BAD {verdict}"
        print(
            f"{number + 1:3} {' '.join(row[1:])} {row[0]}: {judged} ({seconds:.0f} s)", flush=True
        )
    total = sum(rows.values(), Verdict(runs=0))
    rows["all", "", ""] = total
    print(f"\n{table(rows)}")
    if options.json:
        options.json.write_text(
            json.dumps({"failed_to_run": failed, **asdict(total)}), encoding="utf-8"
        )
    return 0 if total.good and not failed else 1


def main() -> int:
    """Run them all; 0 when every promise was kept."""
    options = build_parser().parse_args()
    if options.soak is not None:
        with TemporaryDirectory(prefix="sdist-soak-") as temporary:
            return soak(
                Path(temporary), node_python(Path(temporary)), minutes=options.soak, seed=options.seed,
                redis=options.store == "redis", report=options.json,
            )  # fmt: skip
    with TemporaryDirectory(prefix="sdist-faults-") as temporary:
        return break_crawls(options, Path(temporary))


if __name__ == "__main__":
    sys.exit(main())
