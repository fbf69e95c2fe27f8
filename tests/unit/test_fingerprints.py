"""The compact set of fingerprints does what a set does, whatever is put into it."""

import hashlib
import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapyd_dist.scheduling.fingerprints import PER_BUCKET, SIZE, FingerprintSet

#: few different bytes: one fingerprint is then often found across the border of two others
CLOSE = st.lists(st.sampled_from([0, 1]), min_size=SIZE, max_size=SIZE).map(bytes)
ANY = st.one_of(CLOSE, st.binary(max_size=SIZE + 2), st.just(b"\0" * SIZE))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), ANY), max_size=100))
def test_it_is_a_set(steps: list[tuple[bool, bytes]]) -> None:
    seen, plain = FingerprintSet(), set[bytes]()
    for adds, fingerprint in steps:
        assert (fingerprint in seen) is (fingerprint in plain)
        if adds:
            assert seen.add(fingerprint) is (fingerprint not in plain)
            plain.add(fingerprint)
        else:
            assert seen.discard(fingerprint) is (fingerprint in plain)
            plain.discard(fingerprint)
    assert seen.count == len(plain)
    assert all(map(seen.discard, plain))


def hashed(number: int) -> bytes:
    return hashlib.sha1(str(number).encode(), usedforsecurity=False).digest()


def counted(number: int) -> bytes:
    """Of a fingerprinter of a project's own: nearly all bytes are the same."""
    return number.to_bytes(SIZE, "big")


@pytest.mark.parametrize("make", [hashed, counted])
def test_it_stays_exact_and_even_while_it_grows(make: Callable[[int], bytes]) -> None:
    order = list(range(20_000))
    random.Random(5).shuffle(order)
    seen = FingerprintSet()
    for number in order[:10_000]:
        assert seen.add(make(number))
    assert not any(seen.add(make(number)) for number in order[:10_000])
    assert not any(seen.discard(make(number)) for number in order[10_000:])
    assert sorted(seen) == sorted(map(make, order[:10_000]))
    longest = max(map(len, seen._buckets)) // SIZE
    assert longest < 6 * PER_BUCKET
    assert [number for number in range(20_000) if seen.discard(make(number))] == sorted(
        order[:10_000]
    )


def test_what_lies_across_the_border_of_two_others_is_not_there() -> None:
    one, two = b"a" * 10 + b"b" * 10, b"c" * 10 + b"a" * 10
    seen = FingerprintSet([one, two])
    looked_for = (b"b" * 10 + b"c" * 10, b"a" * 20, one, two)
    assert [seen.discard(fingerprint) for fingerprint in looked_for] == [False, False, True, True]


def test_a_fingerprint_takes_at_most_40_bytes() -> None:
    """As a Python set of them it is about a hundred."""
    tracemalloc.start()
    try:
        seen = FingerprintSet()
        for number in range(50_000):
            seen.add(hashed(number))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen.count == 50_000
    assert taken / seen.count < 40
