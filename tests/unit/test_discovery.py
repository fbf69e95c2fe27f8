"""How many target requests are still wanted, and what the fleet of a crawl can use."""

from collections import Counter
from unittest.mock import MagicMock

import pytest
from scrapyd_dist.middlewares.producer.discovery import FleetDemand, RequestRoom, new_cutter
from scrapyd_dist.middlewares.producer.index_walk import IndexWalk
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions

from scrapyd_dist.scheduling.batcher import Batcher, SlotBatcher


@pytest.mark.parametrize(
    ("limit", "sealed", "left"), [(0, 7, None), (10, 7, 3), (10, 10, 0), (10, 12, 0)]
)
def test_a_limit_leaves_what_is_not_sealed(limit: int, sealed: int, left: int | None) -> None:
    room = RequestRoom.within(limit, sealed)
    assert room.left == left
    assert room.is_used_up is (left == 0)


def test_room_is_used_up_by_what_is_found() -> None:
    room = RequestRoom.within(2, 0)
    room.use()
    assert not room.is_used_up
    room.use()
    assert room.is_used_up
    endless = RequestRoom()
    endless.use()
    assert not endless.is_used_up


def test_the_demand_counts_what_is_sealed_and_what_is_in_no_batch() -> None:
    index = IndexWalk([], None)
    more = MagicMock(return_value=4.0)
    index.more = more  # type: ignore[method-assign]
    scheduler = MagicMock()
    demand = FleetDemand(
        scheduler=scheduler,
        repository=MagicMock(counts=Counter(sealed=20)),
        index=index,
        room=RequestRoom(9),
    )
    assert demand(5) is scheduler.demand.return_value
    more.assert_called_once_with(25, 9)
    scheduler.demand.assert_called_once_with(4.0)


@pytest.mark.parametrize(("leases", "kind"), [(True, SlotBatcher), (False, Batcher)])
def test_batches_are_cut_by_slot_where_workers_lease(leases: bool, kind: type) -> None:
    assert isinstance(new_cutter(ProducerOptions(leases=leases), MagicMock()), kind)
