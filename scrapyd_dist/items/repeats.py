"""Counts the pages that several batches of a crawl have led to, and the items they have alike."""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scrapyd_dist.batches import Attempt
from scrapyd_dist.followed_pages import FollowedPages, hash_page
from scrapyd_dist.items.json_lines import Runs, without_runs

#: bytes of a hash; the chance that two of a hundred million items share one is a few in a thousand
_DIGEST = 8
#: maximum number of pages that are compared; of more, it is those whose hashes are a multiple of
#: something
MOST_COMPARED = 2_000_000


@dataclass(frozen=True, kw_only=True)
class RepeatedPages:
    """Says how many pages were crawled by several jobs, and names one."""

    count: int
    example: str = ""  #: its address; empty if it is not known
    is_least: bool = False  #: whether not all pages were compared


def read_followed(accepted: Iterable[Attempt]) -> list[FollowedPages]:
    """Return the pages that each of these attempts was led to; those without any are left out."""
    found = []
    for attempt in accepted:
        document = attempt.report.get("followed")
        if document:
            with suppress(ValueError, KeyError, TypeError):  # a store may have anything
                found.append(FollowedPages.read_document(document))
    return found


def find_repeated_pages(
    batches: Iterable[FollowedPages],
    asked: Iterable[bytes],
    *,
    most: int = MOST_COMPARED,
) -> RepeatedPages:
    """Return the pages that several batches have led to, or that were requests of the crawl, too.

    `asked` are the fingerprints of these requests, of batches or of the index; `most` pages are
    compared, or a few more.
    """
    batches = list(batches)
    compared = _choose_compared(batches, most)
    seen: set[bytes] = set()
    repeated: set[bytes] = set()
    for pages in batches:
        own = {page for page in pages.hashes if int.from_bytes(page, "big") % compared == 0}
        repeated |= own & seen
        seen |= own
    for fingerprint in asked:
        page = hash_page(fingerprint)
        if page in seen:
            repeated.add(page)
    is_least = compared > 1 or any(pages.count > len(pages.hashes) for pages in batches)
    return RepeatedPages(
        count=len(repeated), example=_find_address(batches, repeated), is_least=is_least
    )


def _choose_compared(batches: Iterable[FollowedPages], most: int) -> int:
    """Return of how many pages one is compared."""
    pages = sum(len(pages.hashes) for pages in batches)
    return max(1, -(-pages // most))


def _find_address(batches: Iterable[FollowedPages], repeated: set[bytes]) -> str:
    for pages in batches:
        for page, url in zip(pages.hashes, pages.urls, strict=False):
            if page in repeated:
                return url
    return ""


def count_repeats(parts: Mapping[Path, Runs]) -> int:
    """Return how many items, as lines of JSON, an earlier one of these parts has as well.

    `parts`: with the runs of items that count no more; a missing part has no items.
    """
    seen: set[bytes] = set()
    repeats = 0
    for part, skipped in parts.items():
        own = _hashes(part, skipped)
        repeats += len(own & seen)
        seen |= own
    return repeats


def _hashes(part: Path, skipped: Runs) -> set[bytes]:
    if not part.is_file():
        return set()
    with part.open("rb") as file:
        lines = without_runs(enumerate(file, 1), skipped)
        found = set()
        for _, line in lines:
            if line.strip():
                found.add(hashlib.blake2b(line, digest_size=_DIGEST).digest())
        return found
