"""What every store remembers of plain jobs: whole records, in whole steps, and none that others wrote."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import redis
from rig.redis import RedisServer
from rig.stores import at_once

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, JobVerdict, Outcome
from scrapyd_dist.store import Store, open_store

JOB = JobRecord(
    id="good-1", spider="good", project="shop", version="1795-1", created=10.5, node="web1", url="http://web1:6800",
    labels=("night=1", "big"), args={"category": "ü \udcff"}, settings=("API_KEY",),
)  # fmt: skip
DONE = replace(
    JOB, id="good-2", state=Outcome.FAILED, started=11.0, ended=20.0, reason="2 errors logged", pages=3, items=2,
    errors=2, codes={"200": 3, "404": 1},
)  # fmt: skip


def test_jobs_come_back_as_they_were_in_the_order_of_their_ends(
    store: Store, opened: Callable[[], Store]
) -> None:
    assert (store.jobs(), store.job_revision()) == ([], 0)
    assert store.keep_jobs([DONE, JOB])
    other = opened()
    assert (other.jobs(), other.jobs(OPEN_ONLY)) == ([JOB, DONE], [JOB])


def test_jobs_that_ended_since_a_moment_are_read_alone_with_the_open_ones(store: Store) -> None:
    old, new = replace(DONE, id="old", ended=15.0), replace(DONE, id="new", ended=30.0)
    store.keep_jobs([old, DONE, new, JOB])
    assert [one.id for one in store.jobs(20.0)] == [JOB.id, DONE.id, "new"]
    assert [one.id for one in store.jobs(20.5)] == [JOB.id, "new"]
    assert [one.id for one in store.jobs()] == [JOB.id, "old", DONE.id, "new"]
    assert (store.jobs(OPEN_ONLY), store.forget_jobs(99.0), store.jobs()) == ([JOB], 4, [])


def test_the_last_that_ended_and_those_of_some_names_are_read_alone(store: Store) -> None:
    many = [replace(DONE, id=f"done-{n}", ended=100.0 + n) for n in range(30)]
    waiting = replace(JOB, id="waiting", state=Outcome.WAITING)
    store.keep_jobs([*many, JOB, waiting])
    assert {one.id for one in store.jobs(most=2)} == {JOB.id, "waiting", "done-28", "done-29"}
    assert [one.id for one in store.jobs(128.5, 9)] == [JOB.id, "waiting", "done-29"]
    assert store.jobs(OPEN_ONLY, 0) == [JOB, waiting]
    assert sorted(one.id for one in store.named_jobs({"done-3", JOB.id, "none"})) == [
        "done-3",
        JOB.id,
    ]
    assert store.named_jobs(()) == []


def test_a_job_that_has_ended_is_open_no_more(store: Store) -> None:
    store.keep_jobs([JOB])
    store.keep_jobs([replace(JOB, state=Outcome.FINISHED, ended=12.0)])
    assert [(one.id, one.state) for one in store.jobs()] == [("good-1", Outcome.FINISHED)]
    assert store.jobs(OPEN_ONLY) == []


def test_a_step_that_depends_on_what_was_read_is_made_only_if_nothing_has_changed(
    store: Store,
) -> None:
    for _ in range(2):  # before the first change, and after one
        seen = store.job_revision()
        assert store.keep_jobs([JOB], seen)
        assert not store.keep_jobs([DONE], seen)
    assert store.jobs() == [JOB]


def test_of_many_that_count_what_is_open_never_more_than_may_be_come_through(
    store: Store, opened: Callable[[], Store]
) -> None:
    def take(number: int) -> Callable[[Store], None]:
        def one(own: Store) -> None:
            for _ in range(50):
                seen = own.job_revision()
                if len(own.jobs(OPEN_ONLY)) >= 3:
                    return
                if own.keep_jobs([replace(JOB, id=f"good-{number}")], seen):
                    return

        return one

    at_once(opened, [take(number) for number in range(10)])
    assert len(store.jobs()) == 3


def test_old_jobs_are_forgotten_open_ones_as_well(store: Store) -> None:
    store.keep_jobs([JOB, DONE, replace(JOB, id="lost", created=5.0)])
    assert (store.forget_jobs(10.0), store.jobs()) == (1, [JOB, DONE])
    assert (store.forget_jobs(15.0), store.jobs()) == (1, [DONE])
    assert (store.forget_jobs(99.0), store.jobs()) == (1, [])


def test_whatever_a_job_has_counted_it_is_remembered(store: Store) -> None:
    most = 2**53 - 1
    wild: dict[str, Any] = {
        "pages": 2**63,
        "items": -1,
        "errors": 2**64,
        "codes": {"200": 2**63},
        "started": 2.2e11,
        "ended": 2.2e11,
    }
    store.keep_jobs([replace(DONE, **wild)])
    cut: dict[str, Any] = {
        "pages": most,
        "items": 0,
        "errors": most,
        "codes": {"200": most},
        "started": 2e11,
        "ended": 2e11,
    }
    assert store.jobs() == [replace(DONE, **cut)]


@pytest.mark.parametrize(
    "field", [{"settings": ("A\nB",)}, {"args": {"a": "x" * 100_001}}, {"project": "p" * 501}]
)
def test_what_could_not_be_read_again_is_not_written(store: Store, field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="good-1 cannot be kept in the store"):
        store.keep_jobs([DONE, replace(JOB, **field)])
    assert store.jobs() == []


def test_a_job_that_waits_is_never_forgotten(store: Store) -> None:
    waits = replace(JOB, id="waits", state=Outcome.WAITING, sealed="x")
    store.keep_jobs([waits, replace(waits, id="out", state=Outcome.PENDING, posted=50.0)])
    assert (store.forget_jobs(40.0), store.forget_jobs(1e11), store.jobs(OPEN_ONLY)) == (
        0,
        1,
        [waits],
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda row: {**row, "spider": "evil"},
        lambda row: {name: value for name, value in row.items() if name != "signature"},
        lambda row: [row],
        lambda row: {**row, "pages": "many"},
    ],
)
def test_a_job_that_others_wrote_on_a_server_is_left_out(
    redis_server: RedisServer, spoil: Callable[[Any], Any]
) -> None:
    with (
        closing(open_store(f"{redis_server.url}?prefix=spoilt:", key=b"a key")) as store,
        closing(redis.Redis.from_url(redis_server.url)) as client,
    ):
        store.keep_jobs([JOB, DONE])
        key = "{spoilt}:jobs:open"
        client.hset(key, JOB.id, json.dumps(spoil(json.loads(client.hget(key, JOB.id) or b""))))
        assert store.jobs() == [DONE]


FIRST = JobVerdict(
    key="http://web1:6800 shop six.w1.a1 2026-11-20T12:00:00", at=20.0, state=Outcome.FINISHED, reason="2 URLs failed",
    pages=98, items=98, errors=2, codes={"200": 98}, offset=3600.0,
)  # fmt: skip


def test_the_first_word_on_how_a_job_ended_stays(store: Store, opened: Callable[[], Store]) -> None:
    store.keep_verdicts([FIRST, replace(FIRST, key="other", pages=None, errors=None)])
    opened().keep_verdicts([replace(FIRST, state=Outcome.FAILED, pages=101, at=30.0)])
    found = opened().verdicts([FIRST.key, "never seen", *map(str, range(2000))])
    assert found == {FIRST.key: FIRST}
    assert store.verdicts([]) == {}
    assert (store.forget_jobs(20.0), set(store.verdicts([FIRST.key]))) == (0, {FIRST.key})
    assert (store.forget_jobs(20.5), store.verdicts([FIRST.key, "other"])) == (0, {})
