"""`python tests/faults` breaks real crawls at seeded random moments, and prints what was lost or doubled."""

import argparse
import json
import sys
import time
import traceback
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

# The nodes, the site and the projects are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# And so is what counts moments against a limit.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from faults.kinds import KINDS, LONG, Kind
from faults.soak import soak
from faults.trial import Trial
from faults.verdict import Verdict, judge
from rig.processes import node_python


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/faults", description=__doc__)
    parser.add_argument(
        "--runs", type=int, help="crawls in all; the kinds take turns (36, or 1 with --long)"
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
        choices=("auto", "push", "pull"),
        default="auto",
        help="how batches reach the nodes",
    )
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


def table(rows: dict[tuple[str, str], Verdict]) -> str:
    head = (
        "what broke",
        "store",
        "runs",
        "lost",
        "duplicated",
        "double-sent",
        "dead",
        "over the limit",
        "too long",
        "fetched again",
        "resumed",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (name, store), v in rows.items():
        bad = (v.lost, v.duplicated, v.double_sent, v.dead, v.over_limit, v.too_long)
        cells = (name, store, v.runs, *bad, v.refetched, v.resumes)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _has_store(kind: Kind, store: str) -> bool:
    """Whether a kind can run on one of these stores."""
    return store == "both" or kind.redis in (None, store == "redis")


def stores_of(kind: Kind, store: str, number: int) -> bool:
    """Whether this run of a kind has Redis as its store."""
    if kind.redis is not None:
        return kind.redis
    return store == "redis" or (store == "both" and number % 2 == 1)


def main() -> int:
    """Run them all; 0 when every promise was kept."""
    options = build_parser().parse_args()
    if options.soak is not None:
        with TemporaryDirectory(prefix="sdist-soak-") as temporary:
            return soak(
                Path(temporary), node_python(Path(temporary)), minutes=options.soak, seed=options.seed,
                redis=options.store == "redis", report=options.json,
            )  # fmt: skip
    known = (LONG,) if options.long else KINDS
    kinds = [
        kind for kind in known if options.only in kind.name and _has_store(kind, options.store)
    ]
    rows: dict[tuple[str, str], Verdict] = {}
    failed = 0
    with TemporaryDirectory(prefix="sdist-faults-") as temporary:
        python = node_python(Path(temporary))
        kept = options.keep or Path(temporary)
        for number in range(options.runs or (1 if options.long else 36)):
            kind, turn = kinds[number % len(kinds)], number // len(kinds)
            redis, began = stores_of(kind, options.store, turn + number), time.monotonic()
            folder = kept / f"run{number}"
            folder.mkdir(parents=True)
            try:
                verdict = one(
                    kind,
                    options.seed + number,
                    redis=redis,
                    folder=folder,
                    python=python,
                    options=options,
                )
            except Exception:  # noqa: BLE001 - the others shall still run
                traceback.print_exc()
                failed += 1
                continue
            key = (kind.name, "Redis" if redis else "SQLite")
            rows[key] = rows[key] + verdict if key in rows else verdict
            said = "good" if verdict.good else f"BAD {verdict}"
            print(
                f"{number + 1:3} {key[1]:6} {kind.name}: {said} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    total = sum(rows.values(), Verdict(runs=0))
    rows["all", ""] = total
    print(f"\n{table(rows)}")
    if options.json:
        options.json.write_text(
            json.dumps({"failed_to_run": failed, **asdict(total)}), encoding="utf-8"
        )
    return 0 if total.good and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
