"""The report as one HTML document: the numbers, how to go on, the charts, the requests without a result."""

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from scrapyd_dist.batches import MISSES, AttemptState, BatchState
from scrapyd_dist.differences import texts
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import ended_in_words, finite, number, of, succeeded, told, way_on
from scrapyd_dist.report import charts
from scrapyd_dist.report.facts import Facts, hidden
from scrapyd_dist.report.series import series
from scrapyd_dist.version import __version__

#: rows of each table of what failed
SHOWN = 50
#: nothing may be fetched and nothing run, whatever got into the page
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
#: a pause of a crawl up to this many seconds is left out
STILL = 5.0

#: characters that a document may not have, or that turn the text around them; and half characters, which UTF-8 has not
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
#: state of a crawl that has ended -> its colour, and the commands that look at it
_ENDED = {
    "died": ("bad", ()),
    "stopped": ("bad", ()),
    "incomplete": ("bad", ()),
    "finished": ("bad", ("jobs stats {}", "jobs grep ERROR {}")),
    "refused": ("bad", ()),
}
#: exit code of a finished crawl -> its colour, where it is another one
_FINISHED = {0: "good", 3: "partial", None: "good"}


def page(facts: Facts) -> str:
    """Return the whole report; every text that it shows goes through `_cleaned` and is escaped."""
    environment = Environment(
        autoescape=True,
        finalize=_cleaned,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(span=charts.span, when=_when, grouped="{:,}".format, counted=counted)
    package = files(__package__)
    template = environment.from_string(package.joinpath("page.html.j2").read_text("utf-8"))
    crawl, summary = facts.crawl, facts.crawl.summary
    now = {**told(crawl), "state": facts.state}
    on = way_on(now) if crawl.kind == "crawl" else ""
    tone, commands = _ENDED.get(facts.state, ("going", ("watch {}", "logs -f {}")))
    failed = [one for one in facts.attempts if one.state is AttemptState.FAILED]
    dead = [batch for batch in facts.batches if batch.state is BatchState.DEAD]
    return template.render(
        style=package.joinpath("page.css").read_text("utf-8"),
        policy=POLICY,
        version=__version__,
        facts=facts,
        crawl=crawl,
        state=ended_in_words(now),
        series=series(facts),
        charts=charts,
        tone=_FINISHED.get(crawl.exit_code, tone) if facts.state == "finished" else tone,
        took=_took(facts),
        numbers=_numbers(facts) if summary else [],
        commands=[*([on] if on else []), *(command.format(crawl.id) for command in commands)],
        warnings=_notes(summary),
        failed=[(f"batch {one.batch}", one.number, one.node, one.reason) for one in failed],
        misses=[
            (
                MISSES[kind],
                [(miss.url or "\u2013", miss.reason) for miss in facts.misses if miss.kind == kind],
            )
            for kind in ("failed", "index", "gone")
        ],
        dead=[
            (f"batch {batch.number}", batch.size, batch.attempts, batch.reason) for batch in dead
        ],
        shown=SHOWN,
    )


def _notes(summary: Mapping[str, Any]) -> list[str]:
    """What to know of the crawl: remarks on its code, what differs from `scrapy crawl`, warnings."""
    code, warnings = (list(map(str, summary.get(name) or ())) for name in ("code", "warnings"))
    return [*code, *texts(summary.get("differences") or ()), *warnings]


def _cleaned(value: Any) -> Any:
    """What is put into the page: no passwords of addresses, no characters that a document may not have."""
    if not isinstance(value, str) or hasattr(
        value, "__html__"
    ):  # markup of the template has been through here
        return value
    return _FORBIDDEN.sub("\ufffd", hidden(value))


def _attempts(summary: Mapping[str, Any]) -> str:
    sent = number(summary, "batches", "sent")
    return "1 attempt" if sent == 1 else f"{sent:,} attempts"


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "an unknown time"


def _took(facts: Facts) -> str:
    """How long it took; if it paused in between, also how long a process worked on it."""
    whole, ran = facts.span, finite(facts.crawl.summary.get("duration_s"))
    if facts.lives:
        return f"{charts.span(whole)} so far, as of {_when(facts.until)}"
    if not ran or whole - ran <= max(STILL, ran / 20):
        return f"took {charts.span(whole)}"
    return f"ran for {charts.span(ran)} of the {charts.span(whole)} from its beginning to its end"


def _numbers(facts: Facts) -> list[tuple[str, int, str]]:
    """The cards: name, number and note."""
    summary = facts.crawl.summary
    count = partial(number, summary)
    lost = sum(count(name) for name in ("failed_urls", "dead_urls", "refused"))
    nodes = summary.get("nodes") or ()
    up = f"{sum(of(node, 'state') == 'up' for node in nodes)} up"
    total, failed = count("index", "total"), count("index_failed")
    return [
        ("items", count("items"), ""),
        ("requests done", succeeded(summary), f"of {count('requests', 'total'):,} found"),
        ("pages", count("pages"), f"{round(count('pages') / facts.span * 60):,} per minute"),
        ("failed", lost, "gave no result" if lost else "nothing is missing"),
        ("gone", count("gone_urls"), "says the site"),
        (
            "batches done",
            count("batches", "done"),
            f"of {count('batches', 'total'):,}, in {_attempts(summary)}",
        ),
        ("nodes", len(nodes), up if facts.lives else f"{up} at the end"),
        (
            "index pages",
            count("index", "pages"),
            f"{failed:,} failed" if failed else f"of {total:,}" if total else "",
        ),
    ]
