"""The batches of a crawl, and its URLs without a result: for a table, JSON or a page."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import Attempt, Batch, BatchState, Miss, as_left
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.fleet.missing import missing
from scrapyd_dist.report.facts import hidden
from scrapyd_dist.store import Store


def choose_misses(store: Store, root: Path, crawl: str, kinds: Collection[str]) -> list[Miss]:
    """Return what of a crawl gave no result so far, those of these kinds."""
    return [miss for miss in missing(store, root, crawl) if miss.kind in kinds]


def describe_misses(rows: Sequence[Miss]) -> list[dict[str, Any]]:
    """Return these misses as documents, without the user names and passwords in their addresses."""
    documents = []
    for miss in rows:
        shown = replace(miss, url=hidden(miss.url), reason=hidden(miss.reason))
        documents.append(asdict(shown))
    return documents


def choose_batches(
    store: Store, crawl: str, states: Collection[BatchState], numbers: Collection[int]
) -> list[Batch]:
    """Return the batches with these states and numbers; where none are given, with any.

    Raises:
        NothingMatched: there is no such batch.
    """
    row = store.crawl(crawl)
    chosen = []
    for stored in store.batches(crawl):
        batch = as_left(stored, row)
        if (not states or batch.state in states) and (not numbers or batch.number in numbers):
            chosen.append(batch)
    if not chosen and (states or numbers):
        raise NothingMatched(
            f"The crawl {crawl} has no such batch. `sdist crawls show {crawl} --batches` lists all."
        )
    return chosen


def _describe_batch(row: Batch, attempts: Sequence[Attempt]) -> dict[str, Any]:
    documents = []
    for attempt in attempts:
        document = {
            "number": attempt.number,
            "job": attempt.job,
            "worker": attempt.worker or None,
            "node": attempt.node,
            "state": attempt.state.value,
            "reason": attempt.reason,
        }
        documents.append(document)
    return {
        "batch": row.number,
        "state": row.state.value,
        "requests": row.size,
        "reason": row.reason,
        "split_from": row.parent or None,
        "attempts": documents,
    }


def describe_batches(store: Store, crawl: str, rows: Sequence[Batch]) -> list[dict[str, Any]]:
    """Return how each of these batches stands, with its attempts, for `--json`."""
    attempts_by_batch: dict[int, list[Attempt]] = {}
    for attempt in store.attempts(crawl):
        attempts_by_batch.setdefault(attempt.batch, []).append(attempt)
    return [_describe_batch(row, attempts_by_batch.get(row.number, [])) for row in rows]
