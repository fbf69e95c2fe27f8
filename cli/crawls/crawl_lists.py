"""Lists the batches of a crawl, and its URLs without a result, for `sdist crawls show`."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import Attempt, Batch, BatchState, Miss, as_left
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.fleet.project_store import requests_in
from scrapyd_dist.store import Store

from ..output import Output, put
from .missing import missing


def choose_misses(store: Store, root: Path, crawl: str, kinds: Collection[str]) -> list[Miss]:
    """Return what of a crawl gave no result so far, those of these kinds."""
    return [miss for miss in missing(store, root, crawl) if miss.kind in kinds]


def list_misses(crawl: str, found: Sequence[Miss], output: Output) -> None:
    """Print URLs of a crawl that gave no result, with the reasons."""
    rows = [(miss.kind, miss.batch or None, miss.url, miss.reason) for miss in found]
    document = {"crawl": crawl, "misses": list(map(asdict, found))}
    output.table(document, ("kind", "batch", "url", "why"), rows)


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


def put_urls(store: Store, root: Path, crawl: str, rows: Sequence[Batch]) -> None:
    """Print the URLs of batches of a crawl, one a line."""
    for row in rows:
        for value in requests_in(store, root, crawl, row):
            put(str(value["url"]))


def list_batches(store: Store, crawl: str, rows: Sequence[Batch], output: Output) -> None:
    """Print batches of a crawl: how each stands, its attempts, and why the last one failed."""
    attempts_by_batch: dict[int, list[Attempt]] = {}
    for attempt in store.attempts(crawl):
        attempts_by_batch.setdefault(attempt.batch, []).append(attempt)
    documents = []
    cells = []
    for row in rows:
        attempts = attempts_by_batch.get(row.number, [])
        documents.append(_batch_document(row, attempts))
        nodes = ", ".join(dict.fromkeys(attempt.node for attempt in attempts))
        cells.append((row.number, row.state.value, row.size, row.attempts, nodes, row.reason))
    headings = ("batch", "state", "requests", "attempts", "nodes", "why the last attempt failed")
    output.table({"crawl": crawl, "batches": documents}, headings, cells)


def _batch_document(row: Batch, attempts: Sequence[Attempt]) -> dict[str, Any]:
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
