"""Counts the items that several parts of a crawl have alike: pages that several batches have found."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

#: bytes of a hash; the chance that two of a hundred million items share one is a few in a thousand
_DIGEST = 8


def count_repeats(parts: Iterable[Path]) -> int:
    """The items, as lines of JSON, that an earlier one of these parts has as well; a missing part has none."""
    seen, repeats = set[bytes](), 0
    for part in parts:
        own = _hashes(part)
        repeats += len(own & seen)
        seen |= own
    return repeats


def _hashes(part: Path) -> set[bytes]:
    if not part.is_file():
        return set()
    with part.open("rb") as lines:
        return {hashlib.blake2b(line, digest_size=_DIGEST).digest() for line in lines if line.strip()}
