"""The crawls of a store, and whether a process stands behind each, as far as is known here."""

import time
from collections.abc import Sequence
from socket import gethostname
from typing import Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.pidfile import started_at
from scrapyd_dist.progress.summary_document import DIED, has_labels, labels_of, summary_of
from scrapyd_dist.store import Store

#: seconds between a process's start and its first sign of life; clocks count those in whole ticks
_SLACK = 2.0
#: seconds for which a producer on another machine counts as alive after its last sign of life
FRESH = 20.0


def lives(crawl: Crawl) -> bool:
    """Return whether the producer's process runs.

    That is known by its process id, or on another machine by its heartbeat.
    """
    if not is_here(crawl):
        return crawl.pid is not None and time.time() - (crawl.beat or crawl.created) < FRESH
    if crawl.pid is None:
        return False
    try:
        born = started_at(crawl.pid)
    except ProcessLookupError:
        return False
    # Process ids are used again: a process that started after the last sign of life is another one.
    return born is None or born <= (crawl.beat or crawl.created) + _SLACK


def runs(crawl: Crawl) -> bool:
    """Return whether the crawl has not ended, and its process runs."""
    return not crawl.state.ended and lives(crawl)


def is_here(crawl: Crawl) -> bool:
    """Return whether the crawl's process is, or was, on this machine."""
    return crawl.host in {"", gethostname()}


def alive_state(row: Crawl) -> str:
    """Return the state of a crawl in a word; `died` when no process stands behind it any more.

    A paused crawl keeps its state here, which scripts read; people see that it rests.
    """
    if row.state.ended or lives(row):
        return row.state.value
    return DIED


def describe_crawl(row: Crawl) -> dict[str, Any]:
    """Return how a crawl stands as `sdist status --json` gives it."""
    return {**summary_of(row), "state": alive_state(row)}


def list_crawls(store: Store | None, labels: Sequence[str] | None = None) -> list[Crawl]:
    """Return the crawls with these labels, the newest first; frontiers are none."""
    if store is None:
        return []
    crawls = [row for row in store.crawls() if row.kind != "frontier"]
    return [row for row in crawls if has_labels(labels_of(row), labels)]
