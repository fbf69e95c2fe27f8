"""The page: the crawl in numbers, how to go on, the pictures, what gave no result. One file that fetches nothing."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import BatchState, CrawlState
from scrapyd_dist.progress.summary import succeeded
from scrapyd_dist.report.document import series
from scrapyd_dist.report.facts import number, of
from scrapyd_dist.report.markup import NOTHING, cards, items, section, table
from scrapyd_dist.report.sections import pictures
from scrapyd_dist.report.texts import escape, span
from scrapyd_dist.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.report.facts import Facts

#: URLs without a result that are named, of each kind
SHOWN = 50
#: nothing may be fetched and nothing run, whatever got into the page
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_KINDS = {
    "failed": "failed: they may be there; see the reason",
    "index": "index pages that failed, so what is on them is unknown",
    "gone": "gone: the site says that they are not there",
}
_TONES = {"stopped": "bad", "incomplete": "bad", "refused": "bad", "died": "bad"}


def page(facts: Facts) -> str:
    """The whole report as one HTML document."""
    name = escape(facts.crawl.id)
    body = "".join(
        (_head(facts), _numbers(facts), _go_on(facts), pictures(facts, series(facts)), _misses(facts), _foot(facts))
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        f'<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{name}: {escape(_state(facts))}</title><style>{style('picture.css')}{style('page.css')}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def style(name: str) -> str:
    """A style sheet of this package."""
    return files(__package__).joinpath(name).read_text("utf-8")


def _state(facts: Facts) -> str:
    return facts.crawl.state.value if facts.crawl.state.ended or facts.lives else "died"


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "an unknown time"


#: seconds of standing still that are not told
STILL = 5.0


def _headline(facts: Facts) -> str:
    state, code = _state(facts), facts.crawl.exit_code
    return f"{state}, with exit code {code}" if state == CrawlState.FINISHED.value and code else state


def _head(facts: Facts) -> str:
    crawl = facts.crawl
    tone = _tone(facts)
    version = f", version {crawl.version}{_begun_with(crawl.summary)}" if crawl.version else ""
    told = f"Spider {crawl.spider} of {crawl.project or 'a project'}{version}. Begun {_when(facts.begun)}"
    so_far = f"; {span(facts.span)} so far, as of {_when(facts.until)}." if facts.lives else f"; {_took(facts)}."
    return (
        f'<header><h1>{escape(crawl.id)}</h1><p><span class="state {tone}">{escape(_headline(facts))}</span></p>'
        f'<p class="about">{escape(told + so_far)}</p></header>'
    )


def _begun_with(summary: Mapping[str, Any]) -> str:
    earlier = summary.get("earlier_versions") or ()
    return f", begun with {', '.join(map(str, earlier))}" if earlier else ""


def _took(facts: Facts) -> str:
    """How long it ran; and from its beginning to its end, where it stood still in between."""
    ran, whole = facts.ran, facts.span
    if ran is None or whole - ran <= max(STILL, ran / 20):
        return f"took {span(whole)}"
    return f"ran for {span(ran)} of the {span(whole)} from its beginning to its end"


def _tone(facts: Facts) -> str:
    """The colour of the state: of a crawl that is finished, as its exit code says."""
    state = _state(facts)
    if state != CrawlState.FINISHED.value:
        return _TONES.get(state, "going")
    return {0: "good", 3: "partial", None: "good"}.get(facts.crawl.exit_code, "bad")


def _numbers(facts: Facts) -> str:
    summary = facts.crawl.summary
    if not summary:
        return ""
    done, total = succeeded(summary), _count(summary, "requests", "total")
    batches = f"{_count(summary, 'batches', 'done'):,} of {_count(summary, 'batches', 'total'):,} batches"
    lost = sum(_count(summary, name) for name in ("failed_urls", "dead_urls", "refused"))
    nodes = summary.get("nodes") or ()
    up = sum(of(node, "state") == "up" for node in nodes)
    per_minute = round(_count(summary, "pages") / facts.span * 60)
    return cards(
        [
            ("items", _count(summary, "items"), ""),
            ("requests done", done, f"of {total:,} found"),
            ("pages", _count(summary, "pages"), f"{per_minute:,} per minute"),
            ("failed", lost, "gave no result" if lost else "nothing is missing"),
            ("gone", _count(summary, "gone_urls"), "says the site"),
            ("jobs", _count(summary, "batches", "sent"), batches),
            ("nodes", len(nodes), f"{up} up at the end" if not facts.lives else f"{up} up"),
            ("index pages", _count(summary, "index", "pages"), _index_note(summary)),
        ]
    )


def _index_note(summary: Any) -> str:
    failed, total = _count(summary, "index_failed"), of(summary, "index", "total")
    return f"{failed:,} failed" if failed else f"of {int(number(total)):,}" if total else ""


def _count(summary: Any, *names: str) -> int:
    return int(number(of(summary, *names)))


def _go_on(facts: Facts) -> str:
    """What a person does next, and what has to be known for it."""
    crawl, summary = facts.crawl, facts.crawl.summary
    commands = {
        "died": [f"sdist resume {crawl.id}"],
        "stopped": [f"sdist resume {crawl.id}"],
        "incomplete": [f"sdist resume {crawl.id}"],
        "finished": [f"sdist stats {crawl.id}", f"sdist grep ERROR {crawl.id}"],
        "refused": [],
    }.get(_state(facts), [f"sdist watch {crawl.id}", f"sdist logs -f {crawl.id}"])
    parts = [f'<p class="message"><bdi>{escape(crawl.message)}</bdi></p>'] if crawl.message else []
    if _state(facts) == "died":
        parts.append("<p>Its process is gone before the crawl was done. What was sealed is kept.</p>")
    outputs = [f"Items: {path}" for path in summary.get("output") or ()]
    outputs += [f"URLs without a result: {summary['misses']}"] if summary.get("misses") else []
    parts += [items(outputs)] if outputs else []
    parts += [f"<pre><code>{escape(command)}</code></pre>" for command in commands]
    warnings = [str(text) for name in ("code", "warnings") for text in summary.get(name) or ()]
    noted = section("Warnings", "", items(warnings)) if warnings else ""
    return (section("How to go on", "", *parts) if parts else "") + noted


def _misses(facts: Facts) -> str:
    """What gave no result, with the reasons."""
    counts = Counter(miss.kind for miss in facts.misses)
    parts = []
    for kind, meaning in _KINDS.items():
        rows = [(miss.url or NOTHING, miss.reason) for miss in facts.misses if miss.kind == kind][:SHOWN]
        if rows:
            more = f", the first {SHOWN}" if counts[kind] > SHOWN else ""
            parts.append(f"<h3>{counts[kind]:,} {escape(meaning)}{more}</h3>{table(('address', 'why'), rows)}")
    dead = [batch for batch in facts.batches if batch.state is BatchState.DEAD]
    if dead:
        rows_ = [(f"batch {batch.number}", batch.size, batch.attempts, batch.reason) for batch in dead[:SHOWN]]
        more = f", the first {SHOWN}" if len(dead) > SHOWN else ""
        head = f"<h3>{len(dead):,} batches that were given up{more}</h3>"
        parts.append(head + table(("batch", "requests", "attempts", "why the last one failed"), rows_))
    if not parts:
        ended = facts.crawl.state is CrawlState.FINISHED
        return section(
            "Without a result", "Every request gave a result." if ended else "Nothing is known to be lost so far."
        )
    return section("Without a result", "", *parts)


def _foot(facts: Facts) -> str:
    return (
        f"<footer>Made by scrapyd-dist {escape(__version__)} from what its store knew at {_when(facts.now)}.</footer>"
    )
