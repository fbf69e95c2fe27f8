"""Which waiting jobs may start: limits, what they follow, attempts; as values."""

import time
from dataclasses import replace
from typing import Any

import pytest

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.jobs.queue_decision import (
    Predecessor,
    decide_starts,
    next_attempt,
    predecessors_in,
    read_condition,
    read_limit,
)


def job(name: str, **fields: Any) -> JobRecord:
    values = {
        "id": name,
        "spider": "s",
        "project": "p",
        "version": "1",
        "created": 10.0,
        "state": Outcome.WAITING,
    }
    return JobRecord(**{**values, **fields})


def posted(name: str, **fields: Any) -> JobRecord:
    return job(name, **{"state": Outcome.PENDING, "url": "http://one", "node": "one", **fields})


def ready(*records: JobRecord) -> list[str]:
    return [one.id for one in decide_starts(records, predecessors_in(records), 50.0).ready]


def dropped(*records: JobRecord, crawls: tuple[Predecessor, ...] = ()) -> dict[str, str]:
    return {
        one.id: one.reason
        for one in decide_starts(records, [*predecessors_in(records), *crawls], 50.0).dropped
    }


def test_without_limits_all_start_in_order_of_priority_and_age() -> None:
    assert ready(job("b", created=2.0), job("a", created=2.0), job("c", created=1.0), job("d", priority=3)) == [
        "d", "c", "a", "b",
    ]  # fmt: skip


def test_a_limit_counts_what_is_out_and_what_starts_now() -> None:
    limits = {"limits": ("spider=2",)}
    assert ready(job("a", **limits), job("b", **limits), job("c", **limits)) == ["a", "b"]
    assert ready(
        posted("x"), job("a", **limits), job("b", **limits), job("o", spider="o", **limits)
    ) == ["a", "o"]
    assert ready(
        posted("x", state=Outcome.FINISHED), posted("y", spider="o"), job("a", **limits)
    ) == ["a"]


def test_a_limit_by_label_is_for_each_value_and_all_limits_of_a_job_hold() -> None:
    def of(site: str, name: str, **fields: Any) -> JobRecord:
        return job(name, labels=(f"site={site}", "night=1"), limits=("site=1", "night=3"), **fields)

    rows = [of(site, f"{site}{number}") for site in "abcd" for number in (1, 2)]
    assert ready(*rows) == ["a1", "b1", "c1"]
    assert ready(posted("x", labels=("site=a",)), *rows) == ["b1", "c1", "d1"]


@pytest.mark.parametrize(
    "text", ["", "spider", "=2", "spider=0", "spider=-1", "spider=x", "spider=1.5", "spider=²"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no limit"):
        read_limit(text)
    assert read_limit("a=b=2") == ("a=b", 2)


@pytest.mark.parametrize(
    ("name", "fate"), [("night", "dropped"), ("night=1", "dropped"), ("nigh", ""), ("1", "")]
)
def test_the_name_of_a_label_means_any_value_of_it(name: str, fate: str) -> None:
    rows = (
        posted("x", created=1.0, state=Outcome.FAILED, labels=("night=1",)),
        job("next", after=(name,)),
    )
    assert dropped(*rows)["next"].endswith(
        "did not finish well" if fate else "is not known any more"
    )


def test_what_was_told_to_end_is_not_tried_again() -> None:
    died = posted("x", state=Outcome.DIED, retries=2)
    assert next_attempt(died, "y", 20.0) is not None
    assert next_attempt(replace(died, signals=("INT",)), "y", 20.0) is None


def test_a_name_may_have_colons() -> None:
    assert read_condition("easy-1") == ("easy-1", "finished")
    assert read_condition("site=http://x:over") == ("site=http://x", "over")
    assert read_condition("site=http://x:80") == ("site=http://x:80", "finished")


@pytest.mark.parametrize(
    ("state", "wanted", "fate"),
    [
        (Outcome.FINISHED, "", "ready"), (Outcome.FINISHED, ":over", "ready"), (Outcome.FINISHED, ":failed", "dropped"),
        (Outcome.FAILED, "", "dropped"), (Outcome.FAILED, ":over", "ready"), (Outcome.DIED, ":failed", "ready"),
        (Outcome.PENDING, "", "waits"), (Outcome.PENDING, ":over", "waits"), (Outcome.WAITING, ":failed", "waits"),
    ],
)  # fmt: skip
def test_a_job_follows_another_by_its_outcome(state: Outcome, wanted: str, fate: str) -> None:
    rows = (posted("first", created=1.0, state=state), job("next", after=(f"first{wanted}",)))
    found = (
        "ready" if "next" in ready(*rows) else "dropped" if "next" in dropped(*rows) else "waits"
    )
    assert found == fate


def test_of_a_job_that_was_tried_again_the_last_attempt_counts() -> None:
    first = posted("first", created=1.0, state=Outcome.FAILED, retries=1)
    second = next_attempt(first, "second", 20.0)
    assert second is not None
    assert (second.attempt, second.first, second.tried, second.state) == (
        2,
        "first",
        ("http://one",),
        Outcome.WAITING,
    )
    assert ready(first, second, job("next", after=("first",))) == ["second"]
    done = replace(second, state=Outcome.FINISHED)
    assert ready(first, done, job("next", after=("first",))) == ["next"]
    assert next_attempt(replace(second, state=Outcome.FAILED), "third", 30.0) is None


@pytest.mark.parametrize(
    "state", [Outcome.FINISHED, Outcome.CANCELLED, Outcome.KILLED, Outcome.RUNNING, Outcome.UNKNOWN]
)
def test_what_was_told_to_end_or_may_have_ended_well_is_not_tried_again(state: Outcome) -> None:
    assert next_attempt(posted("a", retries=5, state=state), "b", 20.0) is None


@pytest.mark.parametrize(
    "fields", [{"state": Outcome.FAILED}, {"state": Outcome.DIED}, {"lost": True}]
)
def test_what_failed_died_or_got_lost_is_tried_again(fields: dict[str, Any]) -> None:
    found = next_attempt(
        posted("a", **{"retries": 1, "state": Outcome.UNKNOWN, "sealed": "x", **fields}), "b", 20.0
    )
    assert found == replace(
        posted("b", retries=1, sealed="x", attempt=2, first="a", tried=("http://one",), created=20.0),
        state=Outcome.WAITING, node="", url="",
    )  # fmt: skip


def test_a_label_means_all_that_came_before_with_it_crawls_as_well() -> None:
    def crawl(**fields: Any) -> Predecessor:
        return Predecessor(names=frozenset({"easy-1"}), labels=("night=1",), created=2.0, **fields)

    done = posted("done", created=1.0, labels=("night=1",), state=Outcome.FINISHED)
    later = posted("later", created=30.0, labels=("night=1",))
    own = job("own", labels=("night=1",), after=("night=1",))
    rows = (done, later, own)

    def fate(one: Predecessor) -> tuple[list[str], dict[str, str]]:
        decision = decide_starts(rows, [*predecessors_in(rows), one], 50.0)
        return [each.id for each in decision.ready], {
            each.id: each.reason for each in decision.dropped
        }

    assert fate(crawl(over=False)) == ([], {})
    assert fate(crawl(over=True, finished=True)) == (["own"], {})
    assert fate(crawl(over=True)) == ([], {"own": "not started: night=1 did not finish well"})


def test_what_is_named_is_followed_also_when_the_clock_of_its_machine_is_ahead() -> None:
    row = job("next", after=("first",))
    assert ready(posted("first", created=99.0, state=Outcome.FINISHED), row) == ["next"]
    assert (
        ready(posted("first", created=99.0), row),
        dropped(posted("first", created=99.0), row),
    ) == ([], {})


def test_many_records_are_read_within_a_moment() -> None:
    rows = [posted(f"job-{number}", state=Outcome.FINISHED) for number in range(14_000)]
    begun = time.process_time()
    assert len(predecessors_in(rows)) == len(rows)
    assert time.process_time() - begun < 1.0


def test_what_follows_something_that_is_forgotten_never_starts() -> None:
    row = job("next", after=("gone",))
    assert dropped(row) == {
        "next": "not started: gone, which it was to follow, is not known any more"
    }
