"""The leases of a worker on real stores: renewed while its loop turns, lost when it stands still or is replaced."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.stores import attempt, fail, seal
from rig.waiting import wait_for
from scrapyd_dist.middlewares.worker.lease_renewer import LeaseLoss, LeaseRenewer

from scrapyd_dist.errors import StoreError
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.sqlite.sqlite_file import WORKERS_CHECKPOINT

#: seconds of a lease that a test waits for
SHORT = 0.6


class Away:
    """A store that does not answer."""

    def lease(self, *_: Any, **__: Any) -> bool:
        raise StoreError("the store is away")

    wanted = lease

    def close(self) -> None: ...


class Worker:
    """The leases of a worker on these batches, and what it was told of them."""

    def __init__(
        self, store: Any, seconds: float, batches: tuple[int, ...], **options: Any
    ) -> None:
        self.lost: list[tuple[int, int, LeaseLoss]] = []
        self.leases = LeaseRenewer(
            store, crawl="c", holder="w", seconds=seconds, lost=self._lost, **options
        )
        for number in batches:
            self.leases.hold((number, 1), self.leases._clock())

    def _lost(self, key: tuple[int, int], loss: LeaseLoss) -> None:
        self.lost.append((*key, loss))

    def run(self) -> None:
        """As `start`, but for the loop, which the test turns."""
        self.leases._thread.start()

    def renew(self) -> None:
        self.leases.renew()
        self.leases.turn()


@pytest.fixture
def worker(opened: Callable[[], Store]) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(seconds: float = SHORT, *, batches: tuple[int, ...] = (1,), **options: Any) -> Worker:
        made.append(Worker(options.pop("store", None) or opened(), seconds, batches, **options))
        return made[-1]

    yield make
    for one in made:
        away: Any = Away()
        one.leases._store = away  # `opened` closes the real one
        one.leases.stop()


@pytest.fixture
def out(store: Store) -> Store:
    """A store with a batch whose first attempt `w` holds."""
    seal(store)
    store.open_attempt("c", attempt())
    assert store.lease("c", 1, 1, "w", SHORT)
    return store


def test_a_lease_lives_as_long_as_the_loop_turns(out: Store, worker: Callable[..., Worker]) -> None:
    one = worker()
    began = one.leases._clock()
    one.run()

    def passed() -> bool:
        one.leases.turn()
        return one.leases._clock() > began + 2 * SHORT

    wait_for(passed, 20, "the time of two leases")
    assert one.leases.holds((1, 1))
    assert one.lost == []
    assert not out.lease("c", 1, 1, "you", 60.0)


def test_a_loop_that_stands_still_lets_others_have_the_work(
    out: Store, worker: Callable[..., Worker]
) -> None:
    one = worker()
    one.run()
    wait_for(lambda: out.expired("c"), 20, "the lease's end")
    assert out.lease("c", 1, 1, "you", 60.0)
    one.leases.check()  # as a request does that is about to leave
    assert one.lost == [(1, 1, LeaseLoss.TAKEN)]


def test_a_worker_that_stood_still_and_was_not_replaced_goes_on(
    out: Store, worker: Callable[..., Worker]
) -> None:
    one = worker()
    one.run()
    wait_for(lambda: out.expired("c"), 20, "the lease's end")
    one.leases.turn()
    assert one.lost == []
    assert out.expired("c") == []


def test_a_lease_that_is_given_again_is_not_lost_by_an_earlier_loss(
    out: Store, worker: Callable[..., Worker]
) -> None:
    one = worker(60.0)
    fail(out)
    one.leases.renew()  # it has found the loss, and the loop has not heard of it
    one.leases.hold((1, 1), one.leases._clock())
    one.leases.turn()
    assert one.lost == []
    assert one.leases.holds((1, 1))


def test_each_lease_is_lost_alone_and_once(store: Store, worker: Callable[..., Worker]) -> None:
    for number in (1, 2, 3):
        seal(store)
        store.open_attempt("c", attempt(batch=number))
        assert store.lease("c", number, 1, "w", 60.0)
    one = worker(60.0, batches=(1, 2, 3))
    fail(store, batch=2)
    fail(store, batch=3)
    one.leases.release((3, 1))
    one.renew()
    one.renew()
    assert one.lost == [(2, 1, LeaseLoss.TAKEN)]
    assert one.leases.holds((1, 1))


@pytest.mark.parametrize("where", ["sqlite"], indirect=True)
class TestAway:
    """A store that does not answer; the clock is turned."""

    @pytest.mark.parametrize("patient", [False, True])
    def test_is_waited_for_as_long_as_the_lease_lasts_or_for_ever_and_complained_of_once(
        self, worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture, *, patient: bool
    ) -> None:
        now, losses = [1000.0], []
        one = worker(60.0, store=Away(), clock=lambda: now[0], patient=patient)
        for _ in range(200):
            now[0] += 1.0
            one.renew()
            losses.append(len(one.lost))
        assert losses == [0] * (200 if patient else 59) + [1] * (0 if patient else 141)
        assert one.lost == ([] if patient else [(1, 1, LeaseLoss.AWAY)])
        assert caplog.text.count("leases cannot be renewed for now") == 1

    @pytest.mark.parametrize(("stood", "lost"), [(59.0, []), (61.0, [(1, 1, LeaseLoss.LATE)])])
    def test_does_not_say_that_a_worker_which_stood_still_was_not_replaced(
        self, worker: Callable[..., Worker], stood: float, lost: list[Any]
    ) -> None:
        now = [1000.0]
        one = worker(60.0, store=Away(), clock=lambda: now[0], patient=True)
        one.run()
        now[0] += stood
        one.leases.turn()
        assert one.lost == lost


def test_a_worker_that_is_stopped_while_it_writes_is_improbable(tmp_path: Path) -> None:
    """It would hold the file's lock for as long as it is stopped, so it never waits for the disk meanwhile."""
    open_store(tmp_path / "store.db").close()
    with closing(open_store(tmp_path / "store.db", durable=False)) as one:
        database: sqlite3.Connection = one.connection.db  # type: ignore[attr-defined]  # not in the port
        told = [
            database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "wal_autocheckpoint")
        ]
    assert told == [1, WORKERS_CHECKPOINT]
