"""How exactly a fleet keeps a limit: workers that always want more than they may, beside Scrapy Cluster's way.

    python benchmarks/throttle.py            # about six minutes; writes the table and the pictures into docs/
    python benchmarks/throttle.py --short    # a first look, in seconds; writes nothing

Real `scrapy crawl` processes with the add-on, on a store of each engine; and processes that ask Redis as Scrapy Cluster
does (`cluster_rival.py`), as fast as they can. All of them fetch from one site, which writes down what came when.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

# The site, the server and the projects are those of the tests.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "tests"))

from measure import RunError
from numbers_section import put_section
from permits import HEADS as PERMIT_HEADS
from permits import line as permit_line
from permits import rows as permit_rows
from report import machine
from rig.waiting import wait_for
from rolling import most_in_window, part_apart, per_second, percentile, within
from throttle_plot import Change, Style, changed, styles
from throttled import Crawler, Seen, Track

from scrapyd_dist.store import open_store
from scrapyd_dist.throttle.permits import Limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.store import Store

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: what `--ways` takes, and what a table calls it
WAYS = {
    "cluster": "Scrapy Cluster's way, Redis, eager pollers",
    "sqlite": "`scrapy crawl`, SQLite",
    "redis": "`scrapy crawl`, Redis",
    "pollers-sqlite": "our store alone, SQLite, eager pollers",
    "pollers-redis": "our store alone, Redis, eager pollers",
}
LIMIT = Limit(hits=20, window=4.0)
#: gaps at the site that are shorter than this part of window / hits are counted as too short
EVEN = 0.95
#: the steps of the live change: hits per 2 seconds, each for so many seconds
CHANGES, CHANGE_WINDOW = (10, 40, 20), 2.0
#: seconds for each way to take permits as fast as it goes
FASTEST = 0.7
#: of the four styles
STYLE_LIMIT = Limit(hits=10, window=2.0)
#: seconds in which all four have opened their connections
SETTLED = 1.0
ADDRESSES = ("127.0.0.2", "127.0.0.3")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What so many workers of one way did."""

    way: str
    workers: int
    granted: float  #: of the configured rate
    most_grants: int  #: in any rolling window
    most_hits: int  #: at the site, in any window shortened by twice `late_ms`
    late_ms: float  #: p99 of the time from permit to hit
    even: float  #: part of the gaps at the site that are long enough
    asks: float  #: questions to the store for each permit
    commands: float  #: Redis commands for each permit, all told; 0 for a file
    denied: float  #: denials for each permit


def row(way: str, workers: int, seen: Seen, limit: Limit, seconds: float) -> Row:
    """The figures of a run. In its first window the workers open their connections: the site is judged after that."""
    begin = seen.begin + limit.window
    granted = within(seen.grants.values(), begin, seconds)
    came = [
        (seen.hits[page], seen.hits[page] - at)
        for page, at in seen.grants.items()
        if page in seen.hits and at >= begin
    ]
    late, hits = percentile([delay for _, delay in came], 0.99), [hit for hit, _ in came]
    return Row(
        way=way,
        workers=workers,
        granted=len(granted) * limit.window / (limit.hits * seconds),
        most_grants=most_in_window(seen.grants.values(), limit.window),
        most_hits=most_in_window(hits, limit.window - 2 * late),
        late_ms=late * 1000,
        even=part_apart(hits, EVEN * limit.window / limit.hits),
        asks=seen.asks / seen.given,
        commands=seen.commands / seen.given,
        denied=seen.denied / seen.given,
    )


def measure(track: Track, way: str, workers: int, limit: Limit, seconds: float) -> Row:
    """Run so many workers of one way."""
    longer = seconds + limit.window
    if way == "cluster":
        seen = track.poll("cluster", "redis", workers, limit, longer)
    elif way.startswith("pollers-"):
        seen = track.poll("ours", way.removeprefix("pollers-"), workers, limit, longer)
    else:
        seen = track.crawl(way, workers, limit, longer)
    return row(way, workers, seen, limit, seconds)


def table(rows: Sequence[Row], limit: Limit) -> str:
    """The rows as Markdown."""
    heads = (
        "workers", "granted / configured", f"most grants in {limit.window:g} s, of {limit.hits}",
        "most hits in the shorter window", "p99 of (hit - grant)", f"gaps >= {EVEN * limit.window / limit.hits:g} s",
        "questions per permit", "Redis commands per permit", "denials per permit",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---|" * 8]
    for one in rows:
        cells = (
            f"{WAYS[one.way]}, {one.workers}", f"{one.granted:.1%}", one.most_grants, one.most_hits,
            f"{one.late_ms:.1f} ms", f"{one.even:.1%}", f"{one.asks:,.2f}" if one.asks < 10 else f"{one.asks:,.0f}",
            "-" if not one.commands else f"{one.commands:,.1f}" if one.commands < 100 else f"{one.commands:,.0f}",
            f"{one.denied:,.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


# the pictures


def live_change(track: Track, engine: str, seconds: float) -> Change:
    """Two workers whose limit is changed by `sdist throttle set`, and changed back a little."""
    store, domain = track.store(engine), "127.0.0.1"
    settings = {
        "DISTRIBUTED_THROTTLE_HITS": CHANGES[0],
        "DISTRIBUTED_THROTTLE_WINDOW": CHANGE_WINDOW,
    }
    racing = track.start([Crawler()] * 2, store, settings)
    racing.go()
    wait_for(racing.underway, 60, "the first request")
    moments: list[float] = []
    with closing(open_store(store)) as opened:
        for hits in CHANGES[1:]:
            time.sleep(seconds)
            version = opened.rules().version
            words = ("--hits", str(hits), "--window", f"{CHANGE_WINDOW:g}")
            change = track.sdist("throttle", "set", domain, *words, store=store)
            wait_for(partial(_is_newer, opened, version), 60, "the change")
            moments.append(time.time())
            track.finish([change], 60)
    time.sleep(seconds)
    seen = racing.end()
    begin, end = min(seen.hits.values()), max(seen.hits.values())
    ends = [moment - begin for moment in moments]
    return Change(
        rates=per_second(seen.hits.values(), begin, end - begin),
        limits=[(at, hits / CHANGE_WINDOW) for at, hits in zip([0.0, *ends], CHANGES, strict=True)],
    )


def _is_newer(store: Store, version: int) -> bool:
    return store.rules().version > version


def four_styles(track: Track, engine: str, seconds: float) -> list[Style]:
    """Two spiders on two addresses under each of the four styles."""
    found = []
    for name, per_spider, per_ip in (
        ("one budget", False, False),
        ("per spider", True, False),
        ("per address", False, True),
        ("per both", True, True),
    ):
        settings = {
            "DISTRIBUTED_THROTTLE_HITS": STYLE_LIMIT.hits, "DISTRIBUTED_THROTTLE_WINDOW": STYLE_LIMIT.window,
            "DISTRIBUTED_THROTTLE_PER_SPIDER": per_spider, "DISTRIBUTED_THROTTLE_PER_IP": per_ip,
        }  # fmt: skip
        crawlers = [
            Crawler(spider, address) for spider in ("eager", "other") for address in ADDRESSES
        ]
        racing = track.start(crawlers, track.store(engine), settings)
        racing.go()
        wait_for(racing.underway, 60, "the first request")
        time.sleep(seconds + SETTLED + 0.5)
        seen = racing.end()
        budgets = (1 + per_spider) * (1 + per_ip)
        begin = min(seen.hits.values()) + SETTLED
        found.append(
            Style(
                name=name,
                rates=per_second(seen.hits.values(), begin, seconds, step=1.0),
                limit=budgets * STYLE_LIMIT.hits / STYLE_LIMIT.window,
            )
        )
    return found


def pictures(track: Track, engine: str, seconds: float, folder: Path) -> list[str]:
    """Draw both, and say what is on them."""
    change, four = live_change(track, engine, seconds), four_styles(track, engine, seconds)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "throttle-change.svg").write_text(changed(change), encoding="utf-8")
    (folder / "throttle-styles.svg").write_text(styles(four), encoding="utf-8")
    return [
        f"{one.name}: {sum(one.rates) / len(one.rates):.1f} a second, of {one.limit:g}"
        for one in four
    ]


# the program


def section(rows: Sequence[Row], limit: Limit, seconds: float) -> str:
    """What the documents say of it. How fast permits can be taken is measured here."""
    about = machine()
    rate = limit.hits / limit.window
    styles_limit = f"{STYLE_LIMIT.hits} hits per {STYLE_LIMIT.window:g} s"
    versions = f"Python {about['python']}, Scrapy {about['scrapy']}"
    fastest = "\n".join([PERMIT_HEADS, *map(permit_line, permit_rows(FASTEST))])
    return f"""\
Workers that always have more to ask for than they may, under {limit.hits} hits per {limit.window:g} s ({rate:g} a
second, even), for {seconds:g} s; each is a process of its own, and all crawl one site. *Granted*: permits that were
used, of those that the limit allows. *Most grants*: in any rolling window, by the store's clock (of Scrapy Cluster's
way: by that of its clients). *Most hits*: at the site, by its own log, in any window that is shorter by twice the p99
of the time from the permit to the hit. The first window, in which workers open their connections, counts for the
grants alone. *Questions*: steps of the store that asked for permits. *Redis commands*: all that clients sent to the
server, with the look at the rules that each worker takes once a second. Scrapy Cluster's way (its steps, written anew)
needs 16 commands for a permit and 4 for a denial; a worker of ours is never denied, since the answer is a moment.

{table(rows, limit)}

![Requests at the site per second, before and after two changes of the limit](../pictures/throttle-change.svg)

Two workers, while `sdist throttle set` changes their limit twice: requests at the site in each half second, and the
limit from the moment on at which it stood in the store.

![Requests at the site per second under each of the four styles](../pictures/throttle-styles.svg)

Four processes, two spiders on two addresses, under {styles_limit}: one budget for all of them, one for each spider, for
each address, and for each spider on each address.

How many permits one process can take from the store, at full speed, under a limit that is never reached:

{fastest}

Measured on {about["date"]} on {about["cores"]} cores ({about["processor"]}), {versions}.

    python benchmarks/throttle.py
"""


def build_parser() -> argparse.ArgumentParser:
    """The options of the program."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/throttle.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--ways", default="cluster,sqlite,redis", help=f"what to measure, of {', '.join(WAYS)}"
    )
    parser.add_argument("--workers", default="1,2,4,8", help="how many of each")
    parser.add_argument("--hits", type=int, default=LIMIT.hits, help="of the limit")
    parser.add_argument(
        "--window", type=float, default=LIMIT.window, help="of the limit, in seconds"
    )
    parser.add_argument("--seconds", type=float, default=16.0, help="that each is measured")
    parser.add_argument(
        "--pictures",
        type=float,
        default=6.0,
        help="seconds for each part of a picture; 0: draw none",
    )
    parser.add_argument(
        "--short", action="store_true", help="two workers, few seconds, no pictures, no documents"
    )
    parser.add_argument(
        "--docs",
        type=Path,
        default=DOCS,
        help="folder whose explanation/throttle.md and pictures are written",
    )
    parser.add_argument("--json", type=Path, help="file that gets all figures")
    return parser


def main() -> int:
    """Run the program; 0 when all runs could be measured."""
    given = build_parser().parse_args()
    if given.short:
        vars(given).update(workers="2", hits=20, window=1.0, seconds=2.0, pictures=0.0)
    limit = Limit(hits=given.hits, window=given.window)
    try:
        with (
            TemporaryDirectory(prefix="sdist-bench-") as folder,
            closing(Track(Path(folder))) as track,
        ):
            rows = []
            for way in given.ways.split(","):
                for workers in map(int, given.workers.split(",")):
                    rows.append(measure(track, way, workers, limit, given.seconds))
                    print(table(rows[-1:], limit).splitlines()[-1], file=sys.stderr, flush=True)
            told = (
                pictures(track, "redis", given.pictures, given.docs / "pictures")
                if given.pictures
                else []
            )
    except (RunError, RuntimeError, AssertionError) as error:
        print(f"The benchmark stopped: {error}", file=sys.stderr)
        return 1
    print(table(rows, limit), *told, sep="\n")
    if given.json:
        document = {"schema": 1, "machine": machine(), "rows": [asdict(one) for one in rows]}
        given.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    if given.pictures:
        put_section(
            given.docs / "explanation" / "throttle.md",
            "Numbers",
            section(rows, limit, given.seconds),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
