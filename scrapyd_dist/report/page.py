"""Renders the report as one HTML document: numbers, the way on, charts, lost requests."""

import re
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, FunctionLoader, StrictUndefined

from scrapyd_dist.batches import MISSES, AttemptState, BatchState
from scrapyd_dist.differences import texts
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.crawl_outcome import ended_in_words, lost_urls, next_command
from scrapyd_dist.progress.summary_document import (
    count_done,
    count_in,
    finite_number,
    nested_value,
    summary_of,
)
from scrapyd_dist.report import charts
from scrapyd_dist.report.facts import Facts, hidden
from scrapyd_dist.report.series import earlier_index_pages, series
from scrapyd_dist.time_spans import describe_moment
from scrapyd_dist.version import __version__

#: rows of each table of what failed
SHOWN = 50
#: nothing may be fetched and nothing run, whatever got into the page
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
#: a pause of a crawl up to this many seconds is left out
STILL = 5.0

#: what a document may not have: control characters, those that turn the text around them, half
#: characters (UTF-8 has none), and code points that are no characters
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
    "\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff"
    "\ufdd0-\ufdef\ufffe\uffff]"
)
#: state of a crawl that has ended -> its colour, and the commands that show more of it
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
    template = make_environment().get_template("page.html.j2")
    return template.render(style=read_style(), policy=POLICY, **values_of(facts))


def values_of(facts: Facts) -> dict[str, Any]:
    """Return what the parts of the report show: `standing`, `growth` and `details`."""
    crawl = facts.crawl
    summary = crawl.summary
    document = {**summary_of(crawl), "state": facts.state}
    tone, commands = _tone_and_commands(facts, document)
    return {
        "version": __version__,
        "facts": facts,
        "crawl": crawl,
        "state": ended_in_words(document),
        "series": series(facts),
        "tone": tone,
        "took": _took(facts),
        "numbers": _numbers(facts) if summary else [],
        "commands": commands,
        "warnings": _notes(summary),
        "failed": _failed_rows(facts),
        "misses": _missed_rows(facts),
        "dead": _dead_rows(facts),
    }


def read_style() -> str:
    """Return the style of the report."""
    return files(__package__).joinpath("page.css").read_text("utf-8")


def make_environment(*packages: str) -> Environment:
    """Return what renders the templates of the report, and those of other packages.

    Whatever they show is escaped, without passwords of addresses and forbidden characters.
    """
    environment = Environment(
        autoescape=True,
        finalize=_cleaned,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=ChoiceLoader([_loader_of(name) for name in (__package__, *packages)]),
    )
    environment.filters.update(
        span=charts.span, when=describe_moment, grouped="{:,}".format, counted=counted
    )
    environment.globals.update(charts=charts, shown=SHOWN)
    return environment


def _loader_of(package: str) -> FunctionLoader:
    """Return what reads templates that lie in a package."""

    def read(name: str) -> str | None:
        file = files(package).joinpath(name)
        return file.read_text("utf-8") if file.is_file() else None

    return FunctionLoader(read)


def _tone_and_commands(facts: Facts, document: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the colour of the crawl's state, and the commands to go on with."""
    crawl = facts.crawl
    tone, templates = _ENDED.get(facts.state, ("going", ("watch {}", "logs -f {}")))
    if facts.state == "finished":
        tone = _FINISHED.get(crawl.exit_code, tone)
    commands = [template.format(crawl.id) for template in templates]
    if crawl.kind == "crawl":
        way = next_command(document)
        if way:
            commands.insert(0, way)
    return tone, commands


def _failed_rows(facts: Facts) -> list[tuple[str, int, str, str]]:
    """Return batch, number, node and reason of each failed attempt."""
    rows = []
    for attempt in facts.attempts:
        if attempt.state is AttemptState.FAILED:
            name = f"batch {attempt.batch}"
            rows.append((name, attempt.number, attempt.node, attempt.reason))
    return rows


def _missed_rows(facts: Facts) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the title of each table of misses, with address and reason of each of its rows."""
    tables = []
    for kind in ("failed", "index", "gone"):
        misses = [miss for miss in facts.misses if miss.kind == kind]
        rows = [(miss.url or "\u2013", miss.reason) for miss in misses]
        tables.append((MISSES[kind], rows))
    return tables


def _dead_rows(facts: Facts) -> list[tuple[str, int, int, str]]:
    """Return batch, size, attempts and reason of each batch that is given up."""
    rows = []
    for batch in facts.batches:
        if batch.state is BatchState.DEAD:
            name = f"batch {batch.number}"
            rows.append((name, batch.size, batch.attempts, batch.reason))
    return rows


def _notes(summary: Mapping[str, Any]) -> list[str]:
    """Return what to know of the crawl.

    These are remarks on its code, what differs from `scrapy crawl`, and warnings.
    """
    code = map(str, summary.get("code") or ())
    warnings = map(str, summary.get("warnings") or ())
    return [*code, *texts(summary.get("differences") or ()), *warnings]


def _cleaned(value: Any) -> Any:
    """Return what is put into the page: no passwords of addresses, no forbidden characters."""
    # What has `__html__` is markup of the template, which has been through here.
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return _FORBIDDEN.sub("\ufffd", hidden(value))


def _attempts(facts: Facts) -> str:
    # The store has those, too, that ended with a worker which was given up.
    sent = max(count_in(facts.crawl.summary, "batches", "sent"), len(facts.attempts))
    return "1 attempt" if sent == 1 else f"{sent:,} attempts"


def _took(facts: Facts) -> str:
    """Say how long it took; if it paused in between, also how long a process worked on it."""
    whole = facts.span
    ran = finite_number(facts.crawl.summary.get("duration_s"))
    if facts.lives:
        return f"{charts.span(whole)} so far, as of {describe_moment(facts.until)}"
    if not ran or whole - ran <= max(STILL, ran / 20):
        return f"took {charts.span(whole)}"
    return f"ran for {charts.span(ran)} of the {charts.span(whole)} from its beginning to its end"


def _numbers(facts: Facts) -> list[tuple[str, int, str]]:
    """Return the cards: name, number and note."""
    summary = facts.crawl.summary
    count = partial(count_in, summary)
    lost = lost_urls(summary)
    nodes = summary.get("nodes") or ()
    states = [nested_value(node, "state") for node in nodes]
    up = f"{states.count('up')} up"
    if not facts.lives:
        up += " at the end"
    found = f"of {count('requests', 'total'):,} found"
    earlier = earlier_index_pages(facts)
    pages = count("pages") + earlier
    per_minute = round(pages / facts.span * 60)
    index_pages = count("index", "pages") + earlier
    batches = f"of {count('batches', 'total'):,}, in {_attempts(facts)}"
    return [
        ("items", count("items"), ""),
        ("requests done", count_done(summary), found),
        ("pages", pages, f"{per_minute:,} per minute"),
        ("failed", lost, _failed_note(facts, lost)),
        ("gone", count("gone_urls"), "not on the site any more"),
        ("batches done", count("batches", "done"), batches),
        ("nodes", len(nodes), up),
        ("index pages", index_pages, _index_note(summary, index_pages)),
    ]


def _failed_note(facts: Facts, lost: int) -> str:
    """Return what the number of failed requests means; that nothing is missing, the end tells."""
    if lost:
        return "gave no result"
    if facts.lives:
        return "so far"
    return "nothing is missing" if facts.state == "finished" and not facts.crawl.exit_code else ""


def _index_note(summary: Mapping[str, Any], pages: int) -> str:
    failed = count_in(summary, "index_failed")
    if failed:
        return f"{failed:,} failed"
    total = count_in(summary, "index", "total")
    # A walk that begins again fetches pages once more, so there may be more than there are in all.
    return f"of {total:,}" if total >= pages else ""
