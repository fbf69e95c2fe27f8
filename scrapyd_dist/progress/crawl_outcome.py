"""Judges a crawl at its end by its summary: what is missing, the exit code, what continues it."""

from collections.abc import Mapping
from typing import Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.progress.summary_document import DIED, count_in, nested_value, succeeded

#: the option of `retry` for code that had to be mended first
NEW_CODE = "--new-code"


def lost_urls(document: Mapping[str, Any]) -> int:
    """Return the number of found URLs that gave no result, other than those that the site lacks."""
    return (
        count_in(document, "failed_urls")
        + count_in(document, "dead_urls")
        + count_in(document, "refused")
    )


def crawl_exit_code(document: Mapping[str, Any], *, max_failed: int) -> int:
    """Return the exit code of a finished crawl: 0 complete, 3 partial, 1 if every batch is dead."""
    if document["batches"]["total"] and not document["batches"]["done"] and document["dead_urls"]:
        return 1
    if lost_urls(document) > max_failed or document["index_failed"]:
        return 3
    return 0


def ended_in_words(document: Mapping[str, Any]) -> str:
    """Return the state of a crawl in words, such as `finished, 8 failed`.

    What may be missing is named as its exit code says.
    """
    state = str(nested_value(document, "state") or "")
    code = nested_value(document, "exit_code")
    if state != CrawlState.FINISHED.value or not code:
        return state
    losses = {
        "failed": count_in(document, "failed_urls") + count_in(document, "dead_urls"),
        "refused": count_in(document, "refused"),
        "failed on the index": count_in(document, "index_failed"),
        "batches left": count_in(document, "batches", "waiting"),
    }
    phrases = [f"{count:,} {name}" for name, count in losses.items() if count]
    return ", ".join([state, *(phrases or [f"exit code {code}"])])


def next_command(document: Mapping[str, Any]) -> str:
    """Return the arguments of `sdist` that continue a crawl which has ended and is not whole.

    They are empty if it is whole.
    """
    crawl = nested_value(document, "crawl")
    state = nested_value(document, "state")
    if state in {CrawlState.STOPPED.value, CrawlState.INCOMPLETE.value, DIED}:
        return f"resume {crawl}"
    if state != CrawlState.FINISHED.value or not nested_value(document, "exit_code"):
        return ""
    if count_in(document, "batches", "waiting"):  # its spider has closed it
        return f"resume {crawl}"
    # What the producer crawled itself is in no batch, and cannot be tried again.
    in_batches = count_in(document, "requests", "done") > succeeded(document)
    if count_in(document, "failed_urls") and in_batches:
        command = f"retry {crawl} --failed-urls"
        return f"{command} {NEW_CODE}" if count_in(document, "raised_urls") else command
    if count_in(document, "dead_urls"):
        return f"retry {crawl}"
    return ""
