"""A crawl in words: the line while it runs, and what is said at its end. Values in, text out."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import MISSES, Crawl, CrawlState
from scrapyd_dist.differences import texts
from scrapyd_dist.frontier.intake import has_strategy
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.crawl_outcome import NEW_CODE, next_command
from scrapyd_dist.progress.crawl_words import outlook, state_of
from scrapyd_dist.progress.rates import describe_rate, rate_number
from scrapyd_dist.progress.summary_document import MISSED, count_done, count_in, summary_of
from scrapyd_dist.time_spans import describe_span

#: states of a node that works on the crawl
USED = frozenset({"up", "draining"})
#: states of a node that gets no work, and has not left
_TROUBLES = frozenset({"down", "unfit", "wedged"})
#: URLs of a kind that are named at the end
SHOWN = 5
#: characters of a URL or a reason that are shown
LONGEST = 300
#: the bottleneck of a forecast, for people
_SLOWEST = {
    "index": "index pages",
    "detail": "detail pages",
    "processor": "this machine's processor (nodes run here)",
}
#: counts of URLs that did not go into batches -> what is said of them at the end
_ASIDE = {
    "offsite": "offsite",
    "duplicate": "found twice",
    "refused": "refused",
    "local": "crawled by the producer",
}


def rate_in(rates: object, name: str) -> str:
    """Return a rate of a summary as a number per minute; nothing where there is none.

    rates: what a summary has as `per_s`.
    """
    value = _find_rate(rates, name)
    return rate_number(value) if value else ""


def rate_of(rates: object, name: str) -> str:
    """Return a rate of a summary as in `720/min`; nothing where there is none."""
    value = _find_rate(rates, name)
    return describe_rate(value) if value else ""


def _find_rate(rates: object, name: str) -> float:
    """Return a rate of a summary per minute; 0 where there is none."""
    value = rates.get(name) if isinstance(rates, dict) else None
    return 60 * value if value else 0.0


def forecast(document: Mapping[str, Any], now: float) -> str:
    """Return the forecast of `sdist plan --probe`, in a few lines; now: seconds since the epoch."""
    heading = "Forecast"
    if document["expected"] is not None:
        heading += f", for about {counted(document['expected'], 'detail page')}"
    index_pages = counted(document["probed"]["index"]["pages"], "index page")
    detail_pages = counted(document["probed"]["detail"]["pages"], "detail page")
    crawl = document["crawl"]
    workers = f"{counted(crawl['workers'], 'worker')} ({crawl['local']} here)"
    per_page = f"{document['targets_per_page']:,.1f} target requests on each"
    per_worker = f"{describe_rate(60 * document['worker_rate'])} of one worker"
    index_rate = describe_rate(60 * document["index_rate"])
    basis = f"{index_pages} and {detail_pages}, this machine's speed, and {workers}"
    lines = [
        heading,
        f"  index pages: {index_rate}, with {per_page}",
        f"  detail pages: {per_worker} that has a processor for itself",
        f"  slowest: {_SLOWEST[document['bottleneck']]}",
        f"  {_forecast_end(document['seconds'], now)}",
        f"  It rests on {basis}. No item was kept, and no pipeline ran.",
    ]
    return "\n".join(lines)


def _forecast_end(seconds: float | None, now: float) -> str:
    if seconds is None:
        return "no end can be told without the number of index pages (--pages), or --limit"
    ends = datetime.fromtimestamp(now + seconds).astimezone()
    return (
        f"the crawl takes about {describe_span(seconds)}; started now, it ends at about "
        f"{ends:%Y-%m-%d %H:%M:%S}"
    )


def progress_line(crawl: Crawl) -> str:
    """Return one line about a crawl that runs."""
    summary = summary_of(crawl)
    if not count_in(summary, "urls_found") and crawl.state is CrawlState.STARTING:
        return f"{crawl.id}: starting"
    expected, to_go = outlook(summary)
    pieces = [
        state_of(summary),
        _index_piece(summary),
        f"found {count_in(summary, 'urls_found'):,}",
        f"sent {count_in(summary, 'requests', 'sent'):,}",
        f"done {count_done(summary):,} of {expected}",
    ]
    gone = count_in(summary, "gone_urls")
    if gone:
        pieces.append(f"gone {gone:,}")
    batches = count_in(summary, "batches", "total")
    if batches:
        pieces.append(f"batches {count_in(summary, 'batches', 'done'):,}/{batches:,}")
    pieces += [pace(summary), to_go]
    nodes: Sequence[Mapping[str, Any]] = summary.get("nodes") or ()
    if nodes:
        up = sum(node.get("state") in USED for node in nodes)
        pieces.append(f"nodes {up}/{len(nodes)}")
    return f"{crawl.id}: {' · '.join(filter(None, pieces))}"


def _index_piece(summary: Mapping[str, Any]) -> str:
    pages = count_in(summary, "index", "pages")
    total = count_in(summary, "index", "total")
    if total:
        return f"index {pages:,}/{total:,}"
    return f"index {pages:,}"


def rated(summary: Mapping[str, Any], name: str) -> str:
    """Return a count with its rate, as in `items 1,499 (12/s)`; errors only where there are any."""
    count = count_in(summary, "failed_urls" if name == "failed" else name)
    rate = rate_of(summary.get("per_s"), name)
    text = f"{count:,} ({rate})" if rate else f"{count:,}"
    if name != "failed":
        return f"{name} {text}"
    if count or rate:
        return f"errors {text}"
    return ""


def pace(summary: Mapping[str, Any]) -> str:
    """Return pages, items and, where there are any, errors, each with its rate."""
    pieces = [rated(summary, name) for name in ("pages", "items", "failed")]
    return " · ".join(filter(None, pieces))


def crawled_by(summary: Mapping[str, Any]) -> list[str]:
    """Return the spider of a crawl and where its items go, in a line; none where none is known."""
    pieces = []
    if summary.get("spider"):
        pieces.append(f"spider {summary['spider']}")
    outputs = list(map(_short, summary.get("output") or ()))
    if outputs:
        pieces.append(f"items go to {', '.join(outputs)}")
    return [" · ".join(pieces)] if pieces else []


def troubles(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each node that does not work, and what becomes of its work."""
    nodes = summary.get("nodes") or ()
    outcome = "its work waits for a node"
    if any(node.get("state") == "up" for node in nodes):
        outcome = "its work goes elsewhere"
    sentences = []
    for node in nodes:
        state = str(node.get("state") or "")
        if state in _TROUBLES:
            reason = str(node.get("reason") or "").partition(". ")[0].rstrip(".")
            why = f" ({reason})" if reason else ""
            sentences.append(f"{node.get('name')} is {state}{why}; {outcome}")
    return sentences


def standing(crawl: Crawl) -> list[str]:
    """Return how a crawl that runs stands.

    That is a line about the whole, one for each node, and one for each batch that lags behind.
    """
    lines = [progress_line(crawl)]
    lines += map(_standing_of_node, crawl.summary.get("nodes") or ())
    lines += [f"  {line}" for line in lagging(crawl.summary)]
    return lines


def _standing_of_node(node: Mapping[str, Any]) -> str:
    rates = node.get("per_s")
    failed = count_in(node, "failed")
    errors = ""
    if failed:
        errors = f"errors {failed:,}"
    reason = str(node.get("reason") or "")
    if not reason and node.get("state") == "left":
        reason = "is in no list of nodes any more"
    if not reason and node.get("unreached"):
        reason = "is sent its batches"
    pieces = (
        str(node.get("name")),
        str(node.get("state") or ""),
        jobs_of(node),
        counted(count_in(node, "jobs"), "batch", "batches") + " done",
        f"pages {count_in(node, 'pages'):,} {rate_of(rates, 'pages')}".rstrip(),
        f"items {count_in(node, 'items'):,} {rate_of(rates, 'items')}".rstrip(),
        f"{errors} {rate_of(rates, 'failed')}".strip(),
        reason,
    )
    return f"  {' · '.join(filter(None, pieces))}"


def are_jobs_unknown(node: Mapping[str, Any]) -> bool:
    """Return whether a node has jobs and does not answer, so that it is not known what runs."""
    if not count_in(node, "running"):
        return False
    if node.get("state") == "left":
        return bool(node.get("reason"))
    return node.get("state") == "down"


def jobs_of(node: Mapping[str, Any]) -> str:
    """Return `2/4 running`; where some wait for a process slot `2/2 running, 3 waiting`.

    Of a node that does not answer it is not known.
    """
    if are_jobs_unknown(node):
        return "jobs unknown"
    waiting = count_in(node, "waiting")
    running = str(count_in(node, "running") - waiting)
    if node.get("slots"):
        running += f"/{node['slots']}"
    if waiting:
        return f"{running} running, {waiting} waiting"
    return f"{running} running"


def lagging(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each batch that is far slower than the others."""
    lines = []
    for straggler in summary.get("stragglers") or ():
        slower = straggler.get("times_slower")
        how = "nothing is done yet"
        if slower:
            how = f"{slower:g} times slower than usual"
        since = describe_span(float(straggler.get("for_s") or 0))
        done = f"{count_in(straggler, 'done'):,} of {count_in(straggler, 'of'):,} done"
        batch = f"batch {straggler.get('batch')} on {straggler.get('node')}"
        lines.append(f"slow: {batch} for {since}, {done}, {how} ({straggler.get('job')})")
    return lines


def closing(crawl: Crawl, misses: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Return what came of a crawl that ended, in a few lines; misses: its URLs without a result."""
    summary = summary_of(crawl)
    lines = [_result_line(crawl, summary), f"  {_counts_line(summary)}"]
    missed = list(misses)
    lines += _missed(summary, missed)
    total = count_in(summary, "batches", "total")
    waiting = count_in(summary, "batches", "waiting")
    all_done = crawl.state is CrawlState.FINISHED and total > 0 and not waiting
    for node in summary.get("nodes") or ():
        line = _node_line(node, all_done=all_done)
        lines.append(f"  {line}")
    lines += [f"  Note: {note}" for note in notes(summary)]
    command = ""
    if crawl.kind == "crawl":
        command = next_command(summary)
    if command and command not in crawl.message:
        lines.append(f"  {_describe_next(command)}")
    if crawl.message:
        lines.append(crawl.message)
    return lines


def _describe_next(command: str) -> str:
    """Return how to go on; where the code has raised, it has to be mended before."""
    if NEW_CODE in command:
        return f"Go on, once the code is mended, with: sdist {command}"
    return f"Go on with: sdist {command}"


def _result_line(crawl: Crawl, summary: Mapping[str, Any]) -> str:
    """Return how a crawl ended, after which time, and where its items are."""
    kind = "strategy" if has_strategy(crawl) else crawl.kind
    state, _, losses = state_of(summary).partition(", ")
    end = f"{kind.capitalize()} {crawl.id} {state}"
    if summary.get("duration_s") is not None:
        end += f" after {describe_span(float(summary['duration_s']))}"
    if losses:
        end += f", {losses}"
    items = counted(count_in(summary, "items"), "item")
    outputs = ", ".join(map(_short, summary.get("output") or ()))
    if outputs:
        items += f" in {outputs}"
    return f"{end}: {items}."


def _counts_line(summary: Mapping[str, Any]) -> str:
    """Return how many URLs were found, and what became of them."""
    found = f"{counted(count_in(summary, 'urls_distinct'), 'URL')} found"
    pages = count_in(summary, "index", "pages")
    if pages:
        found += f" on {counted(pages, 'index page')}"
    total = count_in(summary, "batches", "total")
    done = count_in(summary, "batches", "done")
    batches = counted(total, "batch", "batches")
    if done < total:
        batches = f"{done:,} of {batches}"
    others = []
    for name, label in _ASIDE.items():
        count = count_in(summary, name)
        if count:
            others.append(f"{count:,} {label}")
    aside = ""
    if others:
        aside = f" ({', '.join(others)})"
    return f"{found}; {count_done(summary):,} done in {batches}{aside}."


def _node_line(node: Mapping[str, Any], *, all_done: bool) -> str:
    """Return what a node did for a crawl that ended; all_done: no batch of it is left."""
    reason = ""
    if node.get("reason"):
        reason = f" ({node.get('state')}: {node.get('reason')})"
    elif all_done and not count_in(node, "jobs"):
        reason = " (others did all that there was)"
    done = counted(count_in(node, "jobs"), "batch", "batches")
    return f"{node.get('name')}: {done}, {counted(count_in(node, 'items'), 'item')}{reason}"


def differing(summary: Mapping[str, Any]) -> list[str]:
    """Return the names of what differs from `scrapy crawl`, in a line; none where nothing does."""
    names = [str(difference.get("name")) for difference in summary.get("differences") or ()]
    if not names:
        return []
    return [f"not as with scrapy crawl: {', '.join(names)}"]


def notes_at_start(summary: Mapping[str, Any]) -> list[str]:
    """Return what to know while a crawl runs.

    These are remarks on its code, and what differs from `scrapy crawl`.
    """
    return [*map(str, summary.get("code") or ()), *texts(summary.get("differences") or ())]


def notes(summary: Mapping[str, Any]) -> list[str]:
    """Return what to know of a crawl: the notes at its start, and its warnings."""
    return [*notes_at_start(summary), *(summary.get("warnings") or ())]


def _missed(summary: Mapping[str, Any], misses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many URLs of each kind gave no result, with the first of them."""
    lines = []
    unnamed = 0
    for kind, name in MISSED.items():
        total = count_in(summary, name)
        if total:
            named = [miss for miss in misses if miss.get("kind") == kind][:SHOWN]
            lines.append(f"  {total:,} {MISSES[kind]}:")
            lines += map(_miss_line, named)
            if total > len(named):
                unnamed += total - len(named)
                lines.append(
                    f"    and {total - len(named):,} more" if named else "    (not listed)"
                )
    if unnamed and summary.get("misses"):
        lines.append(f"  All of them: {_short(summary['misses'])}")
    return lines


def _miss_line(miss: Mapping[str, Any]) -> str:
    url = _cut(miss.get("url"))
    reason = _cut(miss.get("reason"))
    return "    " + "  ".join(filter(None, (url, reason)))


def _cut(text: str | None) -> str:
    """Return a text that fits on a screen; the list of misses has all of it."""
    whole = text or ""
    if len(whole) <= LONGEST:
        return whole
    return f"{whole[:LONGEST]}… ({len(whole):,} characters)"


def _short(path: str) -> str:
    """Return a path as the user would write it from here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
