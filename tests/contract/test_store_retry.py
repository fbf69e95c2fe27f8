"""Failed requests of a batch that is done go into new batches, once, and their misses are forgotten with that."""

from dataclasses import replace

import pytest
from rig.stores import bring_to

from scrapyd_dist.batches import BatchState, Miss
from scrapyd_dist.errors import StepRefused, StoreError
from scrapyd_dist.store import Store

FAILED = Miss(url="http://site/1", kind="failed", reason="HTTP 500", batch=1)
GONE = Miss(url="http://site/2", kind="gone", reason="HTTP 404", batch=1)
OTHERS = [Miss(url="http://site/3", kind="failed", reason="HTTP 500", batch=2), Miss(url="x", kind="index", reason="y")]


def test_only_what_failed_is_tried_again(store: Store) -> None:
    bring_to(store, BatchState.DONE)
    store.add_misses("c", [FAILED, GONE, *OTHERS])
    (new,) = store.retry("c", 1, [({"A": "again"}, 1)], misses=[FAILED], now=50.0)
    assert (new.state, new.size, new.sealed_at, new.parent) == (BatchState.SEALED, 1, 50.0, 0)
    assert store.payload("c", new.number) == {"A": "again"}
    assert store.misses("c") == [GONE, *OTHERS]
    assert store.batch("c", 1).state is BatchState.DONE
    with pytest.raises(StepRefused, match="retried already"):
        store.retry("c", 1, [({}, 1)], misses=[FAILED], now=51.0)
    assert len(store.batches("c")) == new.number


def test_the_parts_have_what_failed_and_nothing_else(store: Store) -> None:
    bring_to(store, BatchState.DONE)
    store.add_misses("c", [FAILED, GONE])
    with pytest.raises(StoreError):
        store.retry("c", 1, [({}, 2)], misses=[FAILED], now=50.0)
    assert store.misses("c") == [FAILED, GONE]


def test_of_two_who_retry_at_once_the_second_changes_nothing(store: Store) -> None:
    bring_to(store, BatchState.DONE)
    dead = replace(FAILED, kind="dead", reason="no such callback")
    store.add_misses("c", [FAILED, dead])
    store.retry("c", 1, [({}, 1)], misses=[dead], now=50.0)
    with pytest.raises(StepRefused):
        store.retry("c", 1, [({}, 2)], misses=[FAILED, dead], now=51.0)
    assert store.misses("c") == [FAILED]
    assert len(store.batches("c")) == 2


@pytest.mark.parametrize("state", [BatchState.SEALED, BatchState.RUNNING, BatchState.DEAD])
def test_a_batch_that_is_not_done_has_nothing_to_retry(store: Store, state: BatchState) -> None:
    bring_to(store, state)
    with pytest.raises(StepRefused):
        store.retry("c", 1, [({}, 1)], misses=[FAILED], now=50.0)
