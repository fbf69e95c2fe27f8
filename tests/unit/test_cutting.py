"""Cutting a stream of requests into batches by count and by age."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.cutting import Cut, Cutter


def value(number: int) -> tuple[dict[str, str], bytes]:
    return {"url": f"http://web/{number}"}, str(number).encode()


@given(size=st.integers(1, 7), count=st.integers(0, 40))
def test_batches_are_full_but_the_last_and_keep_everything_in_order(size: int, count: int) -> None:
    cutter = Cutter(size=size, max_age=60)
    cuts = [cut for n in range(count) if (cut := cutter.add(*value(n), now=0.0))]
    assert [len(cut.values) for cut in cuts] == [size] * (count // size)
    assert len(cutter) == count % size
    last = cutter.take()
    assert (last is None) == (count % size == 0)
    cuts += [last] if last else []
    assert [v["url"] for cut in cuts for v in cut.values] == [value(n)[0]["url"] for n in range(count)]
    assert [f for cut in cuts for f in cut.fingerprints] == [value(n)[1] for n in range(count)]
    assert cutter.take() is None


def test_a_batch_is_due_when_its_first_request_has_waited_long_enough() -> None:
    cutter = Cutter(size=10, max_age=5)
    assert cutter.due(1000.0) is None
    cutter.add(*value(0), now=100.0)
    cutter.add(*value(1), now=104.0)
    assert cutter.due(104.9) is None
    due = cutter.due(105.0)
    assert due
    assert len(due.values) == 2
    assert cutter.due(1000.0) is None
    cutter.add(*value(2), now=1000.0)
    assert cutter.due(1004.0) is None  # it begins to wait anew


def test_two_cuts_share_nothing() -> None:
    assert Cut().values is not Cut().values
