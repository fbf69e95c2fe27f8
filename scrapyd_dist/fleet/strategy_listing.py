"""How the crawling strategies of a project stand: for a table, JSON or a page."""

from typing import Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.fleet.live_crawls import lives
from scrapyd_dist.frontier.intake import has_strategy
from scrapyd_dist.store import Store
from scrapyd_dist.strategy.links import StrategyBacklog
from scrapyd_dist.strategy.terms import StrategyTerms


def list_strategies(store: Store | None) -> list[dict[str, Any]]:
    """Return how each strategy stands, as `sdist strategy --json` gives it."""
    if store is None:
        return []
    documents = []
    for row in store.crawls():
        if has_strategy(row):
            backlog = store.strategy_backlog(row.id)
            documents.append(describe_strategy(row, StrategyTerms.from_row(row), backlog))
    return documents


def describe_strategy(row: Crawl, terms: StrategyTerms, backlog: StrategyBacklog) -> dict[str, Any]:
    """Return how a strategy stands, for `--json`."""
    processes = []
    for process in backlog.processes:
        document = {
            "name": process.name,
            "partitions": len(process.partitions),
            "finished": process.finished,
        }
        processes.append(document)
    return {
        "strategy": row.id,
        "class": terms.path,
        "arguments": dict(terms.args),
        "spider": terms.spider,
        "state": _state(row, backlog),
        "standing": terms.standing,
        **backlog.to_document(),
        "processes": processes,
        "workers": _count_workers(row),
    }


def _count_workers(row: Crawl) -> int:
    """Return how many workers run; none where no process says so any more."""
    if not lives(row):
        return 0
    nodes = row.summary.get("nodes") or ()
    return sum(int(node.get("running") or 0) for node in nodes)


def _state(row: Crawl, backlog: StrategyBacklog) -> str:
    if row.wanted == "pause":
        return "paused"
    if backlog.ended:
        return "ended"
    if backlog.processes or lives(row):
        return "running"
    return "stopped"
