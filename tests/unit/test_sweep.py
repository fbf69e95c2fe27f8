"""Many questions side by side: answers come as they are ready, errors of nodes are answers, others are not."""

import threading

import pytest

from scrapyd_dist.errors import ConnectionRefused
from scrapyd_dist.transports import MAX_THREADS, sweep


def test_a_slow_one_keeps_no_other_from_being_heard() -> None:
    others_heard = threading.Event()

    def ask(name: str) -> str:
        if name == "slow":
            assert others_heard.wait(10)
        return name.upper()

    heard = []
    for answer in sweep(["slow", "a", "b"], ask):
        heard.append(answer.value)
        if len(heard) == 2:
            others_heard.set()
    assert sorted(heard[:2], key=str) == ["A", "B"]
    assert heard[2] == "SLOW"


def test_an_error_of_a_node_is_its_answer() -> None:
    def ask(number: int) -> int:
        if number == 1:
            raise ConnectionRefused.at("node1")
        return number

    answers = {answer.asked: answer for answer in sweep([0, 1, 2], ask)}
    assert (answers[0].value, answers[2].value, answers[1].value) == (0, 2, None)
    assert isinstance(answers[1].error, ConnectionRefused)
    with pytest.raises(ZeroDivisionError):
        list(sweep([0], lambda zero: 1 // zero))


def test_no_more_threads_than_said_and_every_one_is_asked() -> None:
    lock, now, most = threading.Lock(), 0, 0
    together = threading.Barrier(MAX_THREADS, timeout=60)

    def ask(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(10)
        with lock:
            now -= 1

    assert len(list(sweep(range(3 * MAX_THREADS), ask))) == 3 * MAX_THREADS
    assert most == MAX_THREADS
    assert list(sweep([], ask)) == []


def test_who_stops_listening_asks_no_more() -> None:
    asked: list[int] = []
    first = threading.Event()

    def ask(number: int) -> None:
        asked.append(number)
        if number:
            assert first.wait(10)

    answers = sweep(range(100), ask, threads=1)
    next(answers)
    del answers
    first.set()
    assert len(asked) <= 3
