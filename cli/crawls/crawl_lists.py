"""Lists the batches of a crawl, and its URLs without a result, for `sdist crawls show`."""

from collections.abc import Sequence
from pathlib import Path

from scrapyd_dist.batches import Batch, Miss
from scrapyd_dist.fleet.batch_listing import describe_batches, describe_misses
from scrapyd_dist.fleet.project_store import requests_in
from scrapyd_dist.store import Store

from ..output import Output, put


def list_misses(crawl: str, found: Sequence[Miss], output: Output) -> None:
    """Print URLs of a crawl that gave no result, with the reasons."""
    documents = describe_misses(found)
    rows = [
        (miss["kind"], miss["batch"] or None, miss["url"], miss["reason"]) for miss in documents
    ]
    output.table({"crawl": crawl, "misses": documents}, ("kind", "batch", "url", "why"), rows)


def put_urls(store: Store, root: Path, crawl: str, rows: Sequence[Batch]) -> None:
    """Print the URLs of batches of a crawl, one a line."""
    for row in rows:
        for value in requests_in(store, root, crawl, row):
            put(str(value["url"]))


def list_batches(store: Store, crawl: str, rows: Sequence[Batch], output: Output) -> None:
    """Print batches of a crawl: how each stands, its attempts, and why the last one failed."""
    documents = describe_batches(store, crawl, rows)
    cells = []
    for row, document in zip(rows, documents, strict=True):
        nodes = ", ".join(dict.fromkeys(attempt["node"] for attempt in document["attempts"]))
        cells.append((row.number, row.state.value, row.size, row.attempts, nodes, row.reason))
    headings = ("batch", "state", "requests", "attempts", "nodes", "why an attempt failed")
    output.table({"crawl": crawl, "batches": documents}, headings, cells)
