"""How numbers, times and states are drawn on the pages; values in, texts and places out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from scrapyd_dist.batches import BatchState
from scrapyd_dist.escapes import colourless
from scrapyd_dist.fleet.fleet_screen import describe_states, sort_by_urgency
from scrapyd_dist.fleet.node_status import show_state
from scrapyd_dist.fleet.throttled_domains import unheeded
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.jobs.job_judge import LOST
from scrapyd_dist.jobs.job_rows import newest_first
from scrapyd_dist.progress.crawl_outcome import lost_urls
from scrapyd_dist.progress.crawl_words import outlook, state_of
from scrapyd_dist.progress.outlook import FINDING
from scrapyd_dist.progress.rates import rate_number
from scrapyd_dist.progress.summary_document import count_done, count_expected, count_in
from scrapyd_dist.report.charts import percent
from scrapyd_dist.time_spans import describe_age, describe_moment, describe_span

from .fleet_board import SPAN, Point

#: state of a node, a job or a crawl -> its colour, as in the style sheet
_TONES = {
    "up": "good",
    "busy": "going",
    "draining": "partial",
    "drained": "partial",
    "down": "bad",
    "refused": "bad",
    "wedged": "bad",
    "finished": "good",
    "running": "going",
    "stalled": "bad",
    "failed": "bad",
    "pending": "idle",
    "waiting": "idle",
    "unknown": "idle",
    "died": "bad",
    "lost": "bad",
    "killed": "partial",
    "cancelled": "partial",
    "stopped": "partial",
    "incomplete": "partial",
}
#: jobs of a node that have the darkest field on the map, and how many shades there are
_MOST_JOBS = 8
_SHADES = 6


class ProgressBar(NamedTuple):
    """One bar of a crawl that runs."""

    name: str
    value: int
    whole: int  #: 0 where it is not known
    percent: float


def make_filters() -> dict[str, Callable[..., Any]]:
    """Return what templates call, by name."""
    return {
        "age": describe_time_since,
        "bars": list_bars,
        "batch_state": state_of_batch,
        "clock": clock,
        "colourless": colourless,
        "commas": commas,
        "line": draw_line,
        "lost": lost_urls,
        "moment": describe_moment,
        "moment_age": describe_moment_age,
        "newest": sort_jobs,
        "pace": pages_per_minute,
        "rate": rate_or_dash,
        "shade": shade,
        "span_words": describe_span,
        "job_state": state_of_job,
        "node_state": show_state,
        "state": state_of,
        "states": describe_states,
        "to_go": lambda document: outlook(document)[1],
        "tone": tone_of,
        "urgent": sort_nodes,
        "unheeded": unheeded,
    }


def tone_of(state: str) -> str:
    """Return the colour of a state; one that is finished with something missing is `partial`.

    So is a node in trouble that gets no new work.
    """
    if state.startswith("finished, ") or state.endswith((", drained", ", draining")):
        return "partial"
    return _TONES.get(state, "going")


def state_of_job(row: Mapping[str, Any]) -> str:
    """Return the state of a job; `lost` where its node does not list it, though it may go on."""
    return "lost" if row["reason"] == LOST else str(row["state"])


def state_of_batch(state: str) -> str:
    """Return the state of a batch; one that is sealed waits for a worker."""
    return "waiting" if state == BatchState.SEALED.value else state


def pages_per_minute(row: Mapping[str, Any]) -> float | None:
    """Return the pages per minute of a job's whole life; None while that is not known."""
    seconds = row["duration_s"]
    if seconds is None and row["started"] and not Outcome(row["state"]).over:
        begun = datetime.fromisoformat(row["started"])
        seconds = (datetime.now(timezone.utc) - begun).total_seconds()
    if row["pages"] is None or not seconds or seconds < 0:
        return None
    return float(row["pages"] * 60 / seconds)


def commas(value: float | None) -> str:
    """Return a number with commas; a dash for None."""
    if value is None:
        return "\u2013"
    return f"{round(value):,}"


def rate_or_dash(per_minute: float | None) -> str:
    """Return a rate per minute as a number; a dash for None."""
    return "\u2013" if per_minute is None else rate_number(per_minute)


def describe_time_since(at: float | None, now: float) -> str:
    """Return how long ago a moment was; both are seconds since the epoch."""
    if at is None:
        return ""
    return f"{describe_age(now - at)} ago"


def describe_moment_age(moment: str | None) -> str:
    """Return how long ago a moment in ISO 8601 was; empty for None."""
    if not moment:
        return ""
    at = datetime.fromisoformat(moment)
    return describe_time_since(at.timestamp(), datetime.now(timezone.utc).timestamp())


def clock(moment: str | None) -> str:
    """Return a moment in ISO 8601 as it is written on a page, in UTC."""
    if not moment:
        return ""
    return datetime.fromisoformat(moment).astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def list_bars(document: Mapping[str, Any]) -> list[ProgressBar]:
    """Return the three bars of a crawl: its index, what is sent, what is done."""
    expected = count_expected(document)
    pages = count_in(document, "index", "pages")
    total = count_in(document, "index", "total")
    if not total and document["state"] not in FINDING:
        total = pages  # it has been walked, and so that was all
    sent = count_in(document, "requests", "sent")
    done = count_done(document)
    return [
        ProgressBar("index", pages, total, percent(pages, total)),
        ProgressBar("sent", sent, expected, percent(sent, expected)),
        ProgressBar("done", done, expected, percent(done, expected)),
    ]


def draw_line(points: Sequence[Point], name: str) -> str:
    """Return the path of a line of the last 15 minutes, in a field of 100 by 100."""
    if len(points) < 2:
        return ""
    values = [getattr(point, name) for point in points]
    most = max(values) or 1
    last = points[-1].at
    steps = []
    for point, value in zip(points, values, strict=True):
        right = percent(last - point.at, SPAN)
        steps.append(f"{100 - right:.1f} {100 - percent(value, most):.1f}")
    return f"M{' L'.join(steps)}"


def sort_nodes(nodes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the nodes of a watch's document, those with trouble first."""
    return sort_by_urgency(nodes, lambda node: node["state"], lambda node: node["running"])


def sort_jobs(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return jobs as `sdist jobs` lists them, but those that have ended behind the others."""
    return sorted(newest_first(rows), key=lambda row: Outcome(row["state"]).over)


def shade(node: Mapping[str, Any]) -> int:
    """Return how dark a node's field on the map is, from 0 to 6, by the jobs that run there."""
    running = node["running"] or 0
    most = node["slots"] or _MOST_JOBS
    return min(_SHADES, -(-running * _SHADES // most))
