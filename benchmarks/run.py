"""`python benchmarks/run.py` measures plain Scrapy, the bound and `sdist crawl` side by side, on one site."""

import argparse
import json
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

# The nodes, the site and the projects are those of the tests.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from kinds import FORMS, Way
from measure import RunError, adopt_orphans
from report import machine, summary, table
from scrapyd_dist.examples.pages import UrlStyle
from ways import Bench, Options, Run

#: what `--short` changes: seconds instead of minutes, to see that the benchmark works
SHORT = {"items": 300, "pairs": 1, "shards": 4, "batch_size": 100}


def build_parser() -> argparse.ArgumentParser:
    """The options of the program."""
    parser = argparse.ArgumentParser(prog="python benchmarks/run.py", description=__doc__)
    parser.add_argument(
        "--ways", default="plain,bound,sdist2,sdist3,push2", help=f"what to measure: {FORMS}"
    )
    parser.add_argument("--items", type=int, default=10_000, help="detail pages of the site")
    parser.add_argument(
        "--pairs", type=int, default=7, help="how often each way is run; they take turns"
    )
    parser.add_argument("--per-page", type=int, default=30, help="links on an index page")
    parser.add_argument(
        "--url-style",
        choices=get_args(UrlStyle),
        default="numbered",
        help="how the site's detail URLs look",
    )
    parser.add_argument(
        "--latency", type=float, default=0.0, help="seconds before each answer of the site"
    )
    parser.add_argument("--shards", type=int, default=20, help="shards of the index crawl")
    parser.add_argument(
        "--batch-size",
        type=int,
        help="URLs in a batch; by default as many as the crawl finds right",
    )
    parser.add_argument("--max-proc", type=int, default=1, help="jobs at the same time on one node")
    parser.add_argument(
        "--poll-interval", type=float, default=0.5, help="poll_interval of the nodes, in seconds"
    )
    parser.add_argument(
        "--index-weight", type=float, default=3.0,
        help="detail pages that an index page counts for in the bound's shares; 0 gives each process equally many",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, default=1800, help="seconds until a run is given up"
    )
    parser.add_argument(
        "--short", action="store_true", help="a small site, once: to see that everything works"
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    parser.add_argument("extra", nargs="*", help="more options of `sdist crawl`, behind --")
    return parser


def measure(bench: Bench, ways: list[str], pairs: int) -> list[Run]:
    """Run each way once per pair; the one that begins changes, so that none always gets the quiet moment."""
    runs = []
    for pair in range(pairs):
        turn = pair % len(ways)
        for way in ways[turn:] + ways[:turn]:
            run = bench.run(way, pair)
            runs.append(run)
            print(
                f"pair {pair + 1}/{pairs}  {way:8}  {run.wall_s:7.2f} s  CPU {run.cpu_s:7.2f} s",
                file=sys.stderr,
            )
    return runs


def main() -> int:
    """Run the program; 0 when every run brought exactly the site's items home, else 1."""
    parser = build_parser()
    given = parser.parse_args()
    if given.short:
        vars(given).update(SHORT)
    options = Options(
        **{name: getattr(given, name) for name in Options.__dataclass_fields__ if name != "extra"},
        extra=tuple(given.extra),
    )
    ways = given.ways.split(",")
    try:
        _ = [Way.named(name) for name in ways]
    except ValueError as error:
        parser.error(str(error))
    adopt_orphans()
    try:
        with (
            TemporaryDirectory(prefix="sdist-bench-") as folder,
            closing(Bench(Path(folder), options)) as bench,
        ):
            for way in ways:
                bench.prepare(way)
            runs = measure(bench, ways, given.pairs)
    except RunError as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    ordered = sorted(runs, key=lambda run: (ways.index(run.way), run.pair))
    found, about = summary(ordered), machine()
    print(
        f"{options.items} items, {given.pairs} pairs, {about['cores']} cores, Scrapy {about['scrapy']}, {about['date']}"
    )
    print(table(found))
    if given.json:
        document = {"schema": 1, "machine": about, "options": asdict(options), "ways": found}
        given.json.write_text(
            json.dumps({**document, "runs": [run.row() for run in ordered]}, indent=1),
            encoding="utf-8",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
