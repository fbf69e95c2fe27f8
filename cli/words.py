"""A crawl in words: the line while it runs, and what is said at its end. Values in, text out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import CrawlState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapyd_dist.batches import Crawl

#: part of the index that must be walked before the number of URLs can be judged
KNOWN_FROM = 0.1
#: seconds that a rate looks back
WINDOW = 30.0
#: URLs of a kind that are named at the end
SHOWN = 5

_KINDS = {
    "gone": "gone (the site says they are not there)",
    "failed": "failed (they may be there; see the reason)",
    "dead": "given up with their batch",
    "index": "index pages that failed, so URLs on them are unknown",
}


def document(crawl: Crawl) -> dict[str, Any]:
    """The summary of a crawl as `--json` gives it: what the producer wrote last, and how it stands now."""
    known = {"crawl": crawl.id, "spider": crawl.spider, "project": crawl.project, "version": crawl.version}
    now = {"state": crawl.state.value, "message": crawl.message, "exit_code": crawl.exit_code}
    return {**known, **crawl.summary, **now}


def number(summary: Mapping[str, Any], *names: str) -> int:
    """A count in a summary, 0 where the producer has not said it yet."""
    value: Any = summary
    for name in names:
        value = value.get(name) if hasattr(value, "get") else None
    return int(value or 0)


@dataclass(kw_only=True)
class Pace:
    """How fast a count grows, over the last seconds."""

    window: float = WINDOW
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, value: int) -> None:
        self._seen.append((now, value))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self.window:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """Per second."""
        if not self._seen:
            return 0.0
        (then, before), (now, value) = self._seen[0], self._seen[-1]
        return max(0.0, (value - before) / (now - then)) if now > then else 0.0


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """How much there is to do, as far as one can know while the index is being walked."""

    expected: int  #: requests
    at_least: bool  #: there are more, and nobody knows how many

    @classmethod
    def of(cls, crawl: Crawl) -> Outlook:
        found = number(crawl.summary, "requests", "total")
        if crawl.state not in {CrawlState.STARTING, CrawlState.FINDING}:
            return cls(expected=found, at_least=False)
        pages, total = number(crawl.summary, "index", "pages"), number(crawl.summary, "index", "total")
        if not total or pages < KNOWN_FROM * total:
            return cls(expected=found, at_least=True)
        return cls(expected=found * total // pages, at_least=False)

    def text(self) -> str:
        return f"{'≥ ' if self.at_least else ''}{self.expected:,}"

    def eta(self, done: int, rate: float) -> str:
        """Time to go, or nothing while it cannot be told."""
        if rate <= 0 or done >= self.expected:
            return ""
        return f"{'≥ ' if self.at_least else ''}{clock((self.expected - done) / rate)} to go"


def clock(seconds: float) -> str:
    """A span of time: `41 s`, `12:05` minutes, `1:02:03` hours."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 item`, `3,000 items`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def progress_line(crawl: Crawl, items_rate: float, requests_rate: float) -> str:
    """One line about a crawl that runs."""
    summary = crawl.summary
    if not number(summary, "urls_found") and crawl.state is CrawlState.STARTING:
        return f"{crawl.id}: starting"
    outlook, done = Outlook.of(crawl), number(summary, "requests", "done")
    nodes: Sequence[Mapping[str, Any]] = summary.get("nodes") or ()
    up = sum(node.get("state") == "up" for node in nodes)
    total = number(summary, "index", "total")
    pieces = [
        crawl.state.value,
        f"index {number(summary, 'index', 'pages'):,}{f'/{total:,}' if total else ''}",
        f"batches {number(summary, 'batches', 'done'):,}/{number(summary, 'batches', 'total'):,}",
        f"requests {done:,}/{outlook.text()}",
        f"items {number(summary, 'items'):,} ({items_rate:.0f}/s)",
        outlook.eta(done, requests_rate),
        f"nodes {up}/{len(nodes)}" if nodes else "",
    ]
    return f"{crawl.id}: {' · '.join(piece for piece in pieces if piece)}"


def closing(crawl: Crawl, misses: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """What came of a crawl that ended, in a few lines."""
    summary = crawl.summary
    outputs = [_short(path) for path in summary.get("output") or ()]
    took = f" after {clock(float(summary['duration_s']))}" if summary.get("duration_s") is not None else ""
    came = counted(number(summary, "items"), "item") + (f" in {', '.join(outputs)}" if outputs else "")
    lines = [f"Crawl {crawl.id} {crawl.state.value}{took}: {came}."]
    lines += _account(summary)
    lines += _missed(summary, list(misses))
    lines += [f"  {line}" for line in _nodes(summary)]
    lines += [f"  Note: {warning}" for warning in summary.get("warnings") or ()]
    if crawl.message:
        lines.append(crawl.message)
    return lines


def _account(summary: Mapping[str, Any]) -> list[str]:
    batches = number(summary, "batches", "total")
    text = (
        f"  {counted(number(summary, 'urls_distinct'), 'URL')} found on "
        f"{counted(number(summary, 'index', 'pages'), 'index page')}; "
        f"{number(summary, 'requests', 'done'):,} done in {counted(batches, 'batch', 'batches')}"
    )
    aside = {"offsite": "offsite", "duplicate": "found twice", "refused": "refused", "local": "crawled by the producer"}
    rest = [f"{number(summary, name):,} {label}" for name, label in aside.items() if number(summary, name)]
    return [f"{text} ({', '.join(rest)})." if rest else f"{text}."]


def _missed(summary: Mapping[str, Any], misses: Sequence[Mapping[str, Any]]) -> list[str]:
    totals = {
        "gone": number(summary, "gone_urls"),
        "failed": number(summary, "failed_urls"),
        "dead": number(summary, "dead_urls"),
        "index": number(summary, "index_failed") or number(summary, "index", "failed"),
    }
    lines = []
    for kind, total in totals.items():
        if not total:
            continue
        lines.append(f"  {total:,} {_KINDS[kind]}:")
        named = [miss for miss in misses if miss.get("kind") == kind][:SHOWN]
        lines += [f"    {miss.get('url')}  {miss.get('reason')}" for miss in named]
        if total > len(named):
            lines.append(f"    and {total - len(named):,} more" if named else "    (not listed)")
    if lines and summary.get("misses"):
        lines.append(f"  All of them: {_short(summary['misses'])}")
    return lines


def _nodes(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    for node in summary.get("nodes") or ():
        reason = f" ({node.get('state')}: {node.get('reason')})" if node.get("reason") else ""
        jobs, items = counted(number(node, "jobs"), "job"), counted(number(node, "items"), "item")
        lines.append(f"{node.get('name')}: {jobs}, {items}{reason}")
    return lines


def _short(path: str) -> str:
    """A path as the user would write it from here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
