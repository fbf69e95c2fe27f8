"""The tables of steps, and names that go into job ids and file names."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.batches import (
    ATTEMPT_STEPS,
    OUT,
    STEPS,
    WAITING,
    AttemptState,
    Batch,
    BatchState,
    Crawl,
    CrawlState,
    as_left,
    check_crawl_name,
    check_step,
    home_of,
    job_id,
)
from scrapyd_dist.errors import ConfigError, StepRefused
from scrapyd_dist.scrapyd.jobs import check_job

ENDED = {BatchState.DONE, BatchState.DEAD, BatchState.SPLIT}
STATES = list(itertools.product(BatchState, BatchState))


def test_every_state_has_a_row_and_belongs_to_one_kind() -> None:
    assert set(STEPS) == set(BatchState)
    assert set(ATTEMPT_STEPS) == set(AttemptState)
    assert set(BatchState) == WAITING | OUT | ENDED
    assert len(WAITING) + len(OUT) + len(ENDED) == len(BatchState)


@pytest.mark.parametrize(("old", "new"), STATES)
def test_a_step_is_allowed_by_the_table_or_refused_by_name(
    old: BatchState, new: BatchState
) -> None:
    if new in STEPS[old]:
        check_step(old, new)
    else:
        with pytest.raises(StepRefused, match=f"is {old.value} cannot become {new.value}"):
            check_step(old, new)


def test_what_is_done_stays_done() -> None:
    assert STEPS[BatchState.DONE] == frozenset()
    assert ATTEMPT_STEPS[AttemptState.ACCEPTED] == ATTEMPT_STEPS[AttemptState.FAILED] == frozenset()
    with pytest.raises(StepRefused, match="accepted cannot become sent"):
        check_step(AttemptState.ACCEPTED, AttemptState.SENT)


def test_every_batch_can_reach_its_end() -> None:
    for state in BatchState:
        reached = {state}
        while more := {new for old in reached for new in STEPS[old]} - reached:
            reached |= more
        assert reached & ENDED, state


def test_a_crawl_has_ended_when_nobody_works_on_it() -> None:
    assert {state.value for state in CrawlState if state.ended} == {
        "finished",
        "stopped",
        "incomplete",
        "refused",
    }


@given(
    st.from_regex(re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}"), fullmatch=True),
    st.integers(1, 10**9),
    st.integers(1, 99),
)
def test_a_good_name_makes_a_job_id_that_scrapyd_takes(name: str, batch: int, attempt: int) -> None:
    assert check_crawl_name(name) == name
    check_job("spider", job_id(name, batch, attempt), {}, {})


@pytest.mark.parametrize(
    "name", ["", "a.b", "a/b", "..", "a b", "ü", "a\n", "a" * 81, "%(a)s", "../x", "a\0"]
)
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a crawl"):
        check_crawl_name(name)


def test_the_same_name_at_another_time_is_another_folder() -> None:
    assert home_of("c", 1.5) == home_of("c", 1.5)
    homes = {home_of(name, created) for name in ("c", "c-") for created in (1.0, 1.000001, 2.0)}
    assert len(homes) == 6
    assert all(re.fullmatch(r"c-?\.[0-9a-f]{8}", home) for home in homes)


@pytest.mark.parametrize(
    ("kind", "state", "seen"),
    [
        ("crawl", CrawlState.STOPPED, "sealed"),
        ("crawl", CrawlState.WORKING, "running"),
        ("frontier", CrawlState.FINISHED, "running"),
    ],
)
def test_of_a_crawl_that_has_ended_no_batch_runs(kind: str, state: CrawlState, seen: str) -> None:
    row = Crawl(id="c", project="p", spider="s", created=0.0, state=state, kind=kind)
    assert as_left(Batch(number=1, size=5, state=BatchState.RUNNING), row).state.value == seen
    assert as_left(Batch(number=1, size=5, state=BatchState.DONE), row).state is BatchState.DONE
