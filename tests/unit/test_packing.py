"""How requests become batches: each cut one batch, in its slot, and the halves of a batch."""

import pytest

from scrapyd_dist.batches import Batch
from scrapyd_dist.frontier.backlog import NewBatch, SeenBefore
from scrapyd_dist.frontier.packing import FrontierIntake, add_unseen_cuts, halve_batch
from scrapyd_dist.payload import decode, encode

BATCH = Batch(number=1, size=7, slot="s", priority=3)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_halves_have_all_requests_in_their_order(count: int) -> None:
    values = [{"url": f"http://site/{number}", "rule": 1} for number in range(count)]
    both = halve_batch(BATCH, encode(values), key=None)
    assert [half.size for half in both] == [(count + 1) // 2, count // 2]
    assert [value for half in both for value in decode(half.payload.get)] == values
    assert {(half.slot, half.priority) for half in both} == {("s", 3)}


def intake(name: str, slot: str) -> FrontierIntake:
    return FrontierIntake(value={"url": f"http://{name}/"}, fingerprint=name.encode(), slot=slot)


def test_cuts_of_one_slot_stay_apart_and_what_was_seen_is_left_out_of_its_cut() -> None:
    cuts = [
        [intake("b1", "b"), intake("b2", "b")],
        [intake("a1", "a"), intake("b1", "a")],  # the first one counts
        [intake("b3", "b")],
    ]
    added: list[list[tuple[bytes, ...]]] = []

    def add(new: list[NewBatch], counts: dict[str, int]) -> int:
        added.append([batch.fingerprints for batch in new])
        if len(added) == 1:
            raise SeenBefore(frozenset({b"a1", b"b2"}))
        return sum(batch.size for batch in new)

    result = add_unseen_cuts(add, cuts, key=None, counts={"offsite": 2})  # type: ignore[arg-type]
    assert added == [[(b"a1",), (b"b1", b"b2"), (b"b3",)], [(b"b1",), (b"b3",)]]
    assert result == (2, {"offsite": 2, "sealed": 2, "duplicate": 3})
