"""A crawl in words: the line while it runs, and what is said at its end. Values in, text out."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import MISSES, Crawl, CrawlState
from scrapyd_dist.differences import texts
from scrapyd_dist.frontier.intake import has_strategy
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import (
    MISSED,
    KnownTotals,
    ended_in_words,
    number,
    succeeded,
    told,
    way_on,
)

#: states of a node that works on the crawl
USED = frozenset({"up", "draining"})
#: URLs of a kind that are named at the end
SHOWN = 5
#: characters of a URL or a reason that are shown
LONGEST = 300


def state_of(summary: Mapping[str, Any]) -> str:
    """The state of a crawl that its summary tells, also `paused`, and `finished, 8 failed` where that is missing."""
    return "paused" if rests(summary) else ended_in_words(summary)


def rests(summary: Mapping[str, Any]) -> bool:
    """Whether it is paused, and not at its end."""
    return bool(summary.get("paused")) and summary.get("state") in _GOES_ON


_GOES_ON = {state.value for state in CrawlState if not state.ended}
_SURE = {KnownTotals.AT_LEAST.value: "≥ ", KnownTotals.ESTIMATE.value: "≈ "}


def outlook(summary: Mapping[str, Any]) -> tuple[str, str]:
    """How many requests there will be and how long they may take, as far as both are known: `≈ 6,000`, `≈ 45 s to go`.

    `≥` is before a number that can only grow, `≈` before one that is judged by the part of the index that is walked.
    """
    known = summary.get("outlook") or {}
    mark = _SURE.get(str(known.get("sure")), "")
    expected = number(known, "requests") or number(summary, "requests", "total")
    eta = None if rests(summary) else known.get("eta_s")
    return f"{mark}{expected:,}", "" if eta is None else f"{mark}{clock(float(eta))} to go"


def per_second(rates: object, name: str) -> str:
    """A rate of a summary, as in `12/s` and `0.4/s`; nothing where there is none."""
    value = rates.get(name) if isinstance(rates, dict) else None
    if not value:
        return ""
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s"


def clock(seconds: float) -> str:
    """A span of time: `41 s`, `12:05` minutes, `1:02:03` hours."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return (
        f"{minutes}:{rest:02d} min"
        if minutes < 60
        else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"
    )


_SLOWEST = {
    "index": "index pages",
    "detail": "detail pages",
    "processor": "this machine's processor (nodes run here)",
}


def forecast(document: Mapping[str, Any], now: float) -> str:
    """The forecast of `sdist plan --probe`, in a few lines; `now` in seconds since the epoch."""
    probed, crawl, expected, seconds = (
        document["probed"],
        document["crawl"],
        document["expected"],
        document["seconds"],
    )
    per_page = document["targets_per_page"]
    end = "no end can be told without the number of index pages (--pages), or --limit"
    if seconds is not None:
        ends = datetime.fromtimestamp(now + seconds).astimezone()
        end = f"the crawl takes about {clock(seconds)}; started now, it ends at about {ends:%Y-%m-%d %H:%M:%S}"
    fetched = " and ".join(
        counted(probed[kind]["pages"], f"{kind} page") for kind in ("index", "detail")
    )
    workers = f"{counted(crawl['workers'], 'worker')} ({crawl['local']} here)"
    return "\n".join(
        [
            "Forecast"
            if expected is None
            else f"Forecast, for about {counted(expected, 'detail page')}",
            f"  index pages: {document['index_rate']:,.1f}/s, with {per_page:,.1f} target requests on each",
            f"  detail pages: {document['worker_rate']:,.1f}/s of one worker that has a processor for itself",
            f"  slowest: {_SLOWEST[document['bottleneck']]}",
            f"  {end}",
            f"  It rests on {fetched}, this machine's speed, and {workers}. No item was kept, and no pipeline ran.",
        ]
    )


def progress_line(crawl: Crawl) -> str:
    """One line about a crawl that runs."""
    summary = told(crawl)
    if not number(summary, "urls_found") and crawl.state is CrawlState.STARTING:
        return f"{crawl.id}: starting"
    expected, to_go = outlook(summary)
    nodes: Sequence[Mapping[str, Any]] = summary.get("nodes") or ()
    up = sum(node.get("state") in USED for node in nodes)
    total, batches = number(summary, "index", "total"), number(summary, "batches", "total")
    pieces = [
        state_of(summary),
        f"index {number(summary, 'index', 'pages'):,}{f'/{total:,}' if total else ''}",
        f"found {number(summary, 'urls_found'):,}",
        f"sent {number(summary, 'requests', 'sent'):,}",
        f"done {succeeded(summary):,} of {expected}",
        f"gone {number(summary, 'gone_urls'):,}" if number(summary, "gone_urls") else "",
        f"batches {number(summary, 'batches', 'done'):,}/{batches:,}" if batches else "",
        rated(summary, "pages"),
        rated(summary, "items"),
        rated(summary, "failed"),
        to_go,
        f"nodes {up}/{len(nodes)}" if nodes else "",
    ]
    return f"{crawl.id}: {' · '.join(piece for piece in pieces if piece)}"


def rated(summary: Mapping[str, Any], name: str) -> str:
    """`items 1,499 (12/s)`; errors only where there are any."""
    count = number(summary, "failed_urls") if name == "failed" else number(summary, name)
    rate = per_second(summary.get("per_s"), name)
    if name == "failed" and not count and not rate:
        return ""
    return f"{'errors' if name == 'failed' else name} {count:,}{f' ({rate})' if rate else ''}"


def standing(crawl: Crawl) -> list[str]:
    """How a crawl that runs stands: a line about the whole, one for each node, one for each batch that lags behind."""
    lines = [progress_line(crawl)]
    for node in crawl.summary.get("nodes") or ():
        rates, failed = node.get("per_s"), number(node, "failed")
        cells = (
            str(node.get("name")),
            str(node.get("state") or ""),
            jobs_of(node),
            counted(number(node, "jobs"), "batch", "batches") + " done",
            f"pages {number(node, 'pages'):,} {per_second(rates, 'pages')}".rstrip(),
            f"items {number(node, 'items'):,} {per_second(rates, 'items')}".rstrip(),
            f"{f'errors {failed:,}' if failed else ''} {per_second(rates, 'failed')}".strip(),
            str(node.get("reason") or ("is sent its batches" if node.get("unreached") else "")),
        )
        lines.append(f"  {' · '.join(filter(None, cells))}")
    return [*lines, *(f"  {line}" for line in lagging(crawl.summary))]


def jobs_of(node: Mapping[str, Any]) -> str:
    """`2/4 running`, and where some wait for a process slot `2/2 running, 3 waiting`."""
    slots, waiting = node.get("slots"), number(node, "waiting")
    running = f"{number(node, 'running') - waiting}{f'/{slots}' if slots else ''} running"
    return f"{running}, {waiting} waiting" if waiting else running


def lagging(summary: Mapping[str, Any]) -> list[str]:
    """The batches that are far slower than the others, a line each."""
    lines = []
    for one in summary.get("stragglers") or ():
        slower = one.get("times_slower")
        how = f"{slower:g} times slower than usual" if slower else "nothing is done yet"
        lines.append(
            f"slow: batch {one.get('batch')} on {one.get('node')} for {clock(float(one.get('for_s') or 0))}, "
            f"{number(one, 'done'):,} of {number(one, 'of'):,} done, {how} ({one.get('job')})"
        )
    return lines


def closing(crawl: Crawl, misses: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """What came of a crawl that ended, in a few lines."""
    summary = told(crawl)
    outputs = ", ".join(map(_short, summary.get("output") or ()))
    took = (
        f" after {clock(float(summary['duration_s']))}"
        if summary.get("duration_s") is not None
        else ""
    )
    items = counted(number(summary, "items"), "item") + (f" in {outputs}" if outputs else "")
    pages = number(summary, "index", "pages")
    on = f" on {counted(pages, 'index page')}" if pages else ""
    aside = {
        "offsite": "offsite",
        "duplicate": "found twice",
        "refused": "refused",
        "local": "crawled by the producer",
    }
    rest = ", ".join(
        f"{number(summary, name):,} {label}"
        for name, label in aside.items()
        if number(summary, name)
    )
    found = counted(number(summary, "urls_distinct"), "URL")
    total, waiting = number(summary, "batches", "total"), number(summary, "batches", "waiting")
    whole = number(summary, "batches", "done")
    batches = (f"{whole:,} of " if whole < total else "") + counted(total, "batch", "batches")
    kind = "strategy" if has_strategy(crawl) else crawl.kind
    lines = [
        f"{kind.capitalize()} {crawl.id} {state_of(summary)}{took}: {items}.",
        f"  {found} found{on}; {succeeded(summary):,} done in {batches}{f' ({rest})' if rest else ''}.",
        *_missed(summary, list(misses)),
    ]
    all_done = crawl.state is CrawlState.FINISHED and total > 0 and not waiting
    for node in summary.get("nodes") or ():
        reason = f" ({node.get('state')}: {node.get('reason')})" if node.get("reason") else ""
        if all_done and not reason and not number(node, "jobs"):
            reason = " (nothing was left for it)"
        done, came = (
            counted(number(node, "jobs"), "batch", "batches"),
            counted(number(node, "items"), "item"),
        )
        lines.append(f"  {node.get('name')}: {done}, {came}{reason}")
    lines += [f"  Note: {note}" for note in notes(summary)]
    command = way_on(summary) if crawl.kind == "crawl" else ""
    if command and command not in crawl.message:
        lines.append(f"  Go on with: sdist {command}")
    return [*lines, *([crawl.message] if crawl.message else ())]


def differing(summary: Mapping[str, Any]) -> list[str]:
    """What differs from `scrapy crawl`, by name and in one line; nothing where nothing does."""
    names = [str(one.get("name")) for one in summary.get("differences") or ()]
    return [f"not as with scrapy crawl: {', '.join(names)}"] if names else []


def notes_at_start(summary: Mapping[str, Any]) -> list[str]:
    """What to know while a crawl runs: remarks on its code, and what differs from `scrapy crawl`."""
    return [*map(str, summary.get("code") or ()), *texts(summary.get("differences") or ())]


def notes(summary: Mapping[str, Any]) -> list[str]:
    """What to know of a crawl: remarks on its code, what differs from `scrapy crawl`, and warnings."""
    return [*notes_at_start(summary), *(summary.get("warnings") or ())]


def _missed(summary: Mapping[str, Any], misses: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for kind, name in MISSED.items():
        total = number(summary, name)
        if not total:
            continue
        lines.append(f"  {total:,} {MISSES[kind]}:")
        named = [miss for miss in misses if miss.get("kind") == kind][:SHOWN]
        lines += [
            "    " + "  ".join(filter(None, map(_cut, (miss.get("url"), miss.get("reason")))))
            for miss in named
        ]
        if total > len(named):
            lines.append(f"    and {total - len(named):,} more" if named else "    (not listed)")
    if lines and summary.get("misses"):
        lines.append(f"  All of them: {_short(summary['misses'])}")
    return lines


def _cut(text: str | None) -> str:
    """A text that fits on a screen; the list of misses has all of it."""
    said = text or ""
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}… ({len(said):,} characters)"


def _short(path: str) -> str:
    """A path as the user would write it from here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
