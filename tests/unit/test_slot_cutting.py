"""Cutting a stream of requests into the batches of a frontier."""

from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.frontier.intake import FrontierIntake
from scrapyd_dist.scheduling.batcher import FEWEST, BatchDraft, SlotBatcher


def found(number: int, slot: str = "0", priority: int = 0) -> FrontierIntake:
    return FrontierIntake(
        value={"url": f"http://web/{number}"}, fingerprint=str(number).encode(), slot=slot, priority=priority
    )


def sizes(cuts: list[BatchDraft]) -> list[int]:
    return [len(cut.values) for cut in cuts]


def test_250_requests_are_batches_of_100_100_and_50() -> None:
    cutter = SlotBatcher(size=100, max_age=60)
    cuts = [cut for number in range(250) if (cut := cutter.add(found(number), 0.0))]
    assert sizes(cuts + cutter.take()) == [100, 100, 50]
    assert len(cutter) == 0


PLACES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 1), st.booleans()), max_size=60)


@given(size=st.integers(1, 7), places=PLACES)
def test_every_request_is_in_one_batch_of_its_slot_and_priority_in_order(
    size: int, places: list[tuple[str, int, bool]]
) -> None:
    cutter = SlotBatcher(size=size, max_age=5)
    cuts: list[BatchDraft] = []
    for number, (slot, priority, late) in enumerate(places):
        cut = cutter.add(found(number, slot, priority), float(number))
        cuts += [cut] if cut else []
        cuts += cutter.due(float(number)) if late else []
    cuts += cutter.take()
    assert len(cutter) == 0
    assert all(0 < len(cut.values) <= size for cut in cuts)
    for slot, priority in {(slot, priority) for slot, priority, _ in places}:
        mine = [one for cut in cuts if (cut.slot, cut.priority) == (slot, priority) for one in cut.found]
        assert mine == [found(n, s, p) for n, (s, p, _) in enumerate(places) if (s, p) == (slot, priority)]


def test_each_slot_waits_by_itself() -> None:
    cutter = SlotBatcher(size=10, max_age=5)
    cutter.add(found(1, "a"), 100.0)
    cutter.add(found(2, "b"), 103.0)
    assert cutter.due(104.9) == []
    assert [cut.slot for cut in cutter.due(105.0)] == ["a"]
    assert [cut.slot for cut in cutter.due(108.0)] == ["b"]


def test_the_highest_priority_comes_first() -> None:
    cutter = SlotBatcher(size=10, max_age=5)
    for number, priority in enumerate((0, 5, -1)):
        cutter.add(found(number, priority=priority), 0.0)
    assert [cut.priority for cut in cutter.take()] == [5, 0, -1]


def test_idle_workers_get_what_there_is_before_a_batch_is_full() -> None:
    idle = 0
    cutter = SlotBatcher(size=100, max_age=60, idle=lambda: idle)
    for number in range(90):
        cutter.add(found(number), 0.0)
    assert cutter.due(1.0) == []
    idle = 3
    assert cutter.due(0.4) == []  # more may come in a moment
    assert sizes(cutter.due(1.0)) == [30, 30, 30]


def test_a_batch_for_an_idle_worker_is_not_too_small_while_there_is_more() -> None:
    cutter = SlotBatcher(size=100, max_age=60, idle=lambda: 50)
    for number in range(FEWEST + 5):
        cutter.add(found(number), 0.0)
    assert sizes(cutter.due(1.0)) == [FEWEST, 5]
