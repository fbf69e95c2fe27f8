"""Keeps an exact set of fingerprints in little memory.

A fingerprint of 20 bytes takes some 24, where a Python set takes 100. The fingerprints of one hash
lie side by side in one `bytes`. The buckets grow one at a time (linear hashing), so that no call
takes long.
"""

import hashlib
from collections.abc import Iterable, Iterator

#: bytes of Scrapy's own fingerprints; of those of another length, a hash is kept
SIZE = 20
#: fingerprints per bucket on average: at this size Python's own allocator keeps the bucket
PER_BUCKET = 16


class FingerprintSet:
    """Holds a set of `bytes`, with `add`, `discard`, `in`, `iter` and `count`."""

    def __init__(self, fingerprints: Iterable[bytes] = ()) -> None:
        self._buckets = [b""]
        self._level = 1  #: the largest power of two that is not more than the number of buckets
        self.count = 0
        for fingerprint in fingerprints:
            self.add(fingerprint)

    def add(self, fingerprint: bytes) -> bool:
        """Add a fingerprint; return whether it is new."""
        fingerprint = _sized(fingerprint)
        number = self._number(fingerprint)
        bucket = self._buckets[number]
        if _place(bucket, fingerprint) >= 0:
            return False
        self._buckets[number] = bucket + fingerprint
        self.count += 1
        if self.count > PER_BUCKET * len(self._buckets):
            self._split()
        return True

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint is there."""
        fingerprint = _sized(fingerprint)
        return _place(self._buckets[self._number(fingerprint)], fingerprint) >= 0

    def discard(self, fingerprint: bytes) -> bool:
        """Remove a fingerprint; return whether it was there."""
        fingerprint = _sized(fingerprint)
        number = self._number(fingerprint)
        bucket = self._buckets[number]
        place = _place(bucket, fingerprint)
        if place < 0:
            return False
        self._buckets[number] = bucket[:place] + bucket[place + SIZE :]
        self.count -= 1
        return True

    def __iter__(self) -> Iterator[bytes]:
        """Yield all fingerprints, in no order."""
        for bucket in self._buckets:
            yield from _cut(bucket)

    def _number(self, fingerprint: bytes) -> int:
        """Return the number of its bucket; one that is not split yet has the lower number."""
        mixed = hash(fingerprint)
        number = mixed % (2 * self._level)
        return number if number < len(self._buckets) else mixed % self._level

    def _split(self) -> None:
        """Move about half of one bucket to a new one."""
        level = self._level
        new = len(self._buckets)
        old = new - level
        stay: list[bytes] = []
        move: list[bytes] = []
        for fingerprint in _cut(self._buckets[old]):
            if hash(fingerprint) % (2 * level) == new:
                move.append(fingerprint)
            else:
                stay.append(fingerprint)
        self._buckets[old] = b"".join(stay)
        self._buckets.append(b"".join(move))
        if len(self._buckets) == 2 * level:
            self._level = 2 * level


def _sized(fingerprint: bytes) -> bytes:
    if len(fingerprint) == SIZE:
        return fingerprint
    return hashlib.sha1(fingerprint, usedforsecurity=False).digest()


def _place(bucket: bytes, fingerprint: bytes) -> int:
    """Return its offset in the bucket, -1 without one.

    A match that begins inside another fingerprint is none.
    """
    place = bucket.find(fingerprint)
    while place > 0 and place % SIZE:
        place = bucket.find(fingerprint, place + 1)
    return place


def _cut(bucket: bytes) -> Iterator[bytes]:
    """Generate the fingerprints in a bucket."""
    return (bucket[start : start + SIZE] for start in range(0, len(bucket), SIZE))
