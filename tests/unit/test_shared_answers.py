"""Answers for all viewers: each question is asked once, while a page is viewed, and no viewer waits for long."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

import pytest
from rig.waiting import wait_for

from scrapyd_dist.errors import StoreError
from scrapyd_dist.web.shared_answers import FORGOTTEN, NotAnsweredYet, SharedAnswers


class Clock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def answers(clock: Clock) -> Iterator[SharedAnswers]:
    with closing(SharedAnswers(patience=20.0, clock=clock)) as made:
        yield made


def test_a_question_is_asked_once_for_all_and_again_when_it_is_due(
    answers: SharedAnswers, clock: Clock
) -> None:
    asked: list[int] = []

    def gather() -> int:
        asked.append(len(asked))
        return asked[-1]

    with ThreadPoolExecutor(50) as viewers:
        seen = set(viewers.map(lambda _: answers.ask("fleet", gather), range(200)))
    assert (seen, len(asked)) == ({0}, 1)
    clock.now += 1.9
    assert (answers.ask("fleet", gather), answers.ask("jobs", gather)) == (0, 1)
    clock.now += 0.2
    assert answers.ask("fleet", gather) == 2


def test_what_takes_long_rests_for_longer_than_it_took(
    answers: SharedAnswers, clock: Clock
) -> None:
    def gather() -> float:
        clock.now += 4.0
        return clock.now

    first = answers.ask("fleet", gather)
    clock.now += 7.0
    assert answers.ask("fleet", gather) == first
    clock.now += 1.5
    assert answers.ask("fleet", gather) > first


def test_no_viewer_waits_for_a_node_that_is_silent(clock: Clock) -> None:
    silent, begun = Event(), Event()

    def gather() -> str:
        begun.set()
        assert silent.wait(60)
        return "it answers"

    with closing(SharedAnswers(patience=0.05, clock=clock)) as answers:
        assert answers.ask("node", lambda: "it is well") == "it is well"
        clock.now += 10.0
        assert answers.ask("node", gather) == "it is well", "the last answer, meanwhile"
        with pytest.raises(NotAnsweredYet):
            answers.ask("other", gather)
        assert begun.wait(60)
        silent.set()
        wait_for(lambda: answers.ask("node", gather) == "it answers", 20, "the answer")


def test_an_error_is_told_and_is_over_with_the_next_answer(
    answers: SharedAnswers, clock: Clock
) -> None:
    def gather() -> None:
        raise StoreError("the store is away.")

    for _ in range(2):
        with pytest.raises(StoreError, match="is away"):
            answers.ask("crawls", gather)
    clock.now += 2.0
    assert answers.ask("crawls", lambda: 7) == 7


def test_what_no_viewer_asks_for_is_dropped(answers: SharedAnswers, clock: Clock) -> None:
    for number in range(100):
        answers.ask(number, lambda: "x" * 1000)
    clock.now += FORGOTTEN + 1
    answers.ask("another", lambda: "y")
    assert list(answers._topics) == ["another"]
