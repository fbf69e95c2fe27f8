"""Which running crawls of a store heed its rules, as far as their processes have written it down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import CrawlState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.store import Store

#: how long it takes until every process that heeds the rules heeds a change
NOTICE = "Running crawls heed it within 2 seconds"


@dataclass(frozen=True, kw_only=True)
class Heeding:
    """How one running crawl heeds the rules."""

    crawl: str
    reason: str = ""  #: why none of its processes does
    nodes: Mapping[str, str] = field(default_factory=dict)  #: those whose workers do not, and why

    @property
    def heeded(self) -> bool:
        """Whether all of its processes do."""
        return not self.reason and not self.nodes

    @property
    def said(self) -> str:
        """What does not, in a sentence; empty when all do."""
        if self.reason:
            return f"{self.crawl} does not: {self.reason.rstrip('.')}."
        if self.nodes:
            why = "; ".join(dict.fromkeys(reason.rstrip(".") for reason in self.nodes.values()))
            return f"{self.crawl} does not on {', '.join(self.nodes)}: {why}."
        return ""

    def document(self) -> dict[str, Any]:
        """The same in JSON."""
        return {"crawl": self.crawl, "heeded": self.heeded, "reason": self.reason, "nodes": dict(self.nodes)}


def running(store: Store) -> list[Heeding]:
    """The crawls and frontiers that a process works on."""
    from ..crawls.watcher import alive_state

    rows = (row for row in store.crawls() if not row.state.ended)
    return [_heeding(row) for row in rows if alive_state(row) in set(CrawlState)]


def _heeding(row: Crawl) -> Heeding:
    said = row.summary.get("throttle")
    if isinstance(said, dict):
        return Heeding(crawl=row.id, reason=str(said.get("reason") or ""), nodes=dict(said.get("nodes") or {}))
    if row.summary:
        return Heeding(crawl=row.id, reason="it was begun by an older scrapyd-dist")
    return Heeding(crawl=row.id)  # it has sent nothing yet, and looks for rules before it does


def notice(heedings: Sequence[Heeding]) -> str:
    """What becomes of a change: when it is heeded, and where not."""
    others = [one.said for one in heedings if not one.heeded]
    return " ".join([f"{NOTICE}{', but for these:' if others else '.'}", *others])
