"""Counts the items that parts of a crawl have alike, of pages that several batches have found."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from scrapyd_dist.items.json_lines import Runs, without_runs

#: bytes of a hash; the chance that two of a hundred million items share one is a few in a thousand
_DIGEST = 8


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
