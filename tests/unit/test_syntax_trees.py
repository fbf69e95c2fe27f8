"""Source is parsed by several threads at a time, also on a Python whose parser cannot."""

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from scrapyd_dist.joblogs.joblog import read_dump
from scrapyd_dist.syntax_trees import parse_expression, parse_module

DUMP = "{" + ", ".join(f"'key{number}': ({number}, [{number}])" for number in range(60)) + "}"


class Garbage:
    """What only the collector finds; its finalizer lets other threads in."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(200):
            pass


@pytest.fixture
def collected_often() -> Iterator[None]:
    """The collector comes while a tree is built, and threads change at once."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(20, 2, 2)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collected_often")
def test_threads_that_parse_at_the_same_time_do_not_disturb_each_other() -> None:
    def parse(number: int) -> int:
        _ = [Garbage() for _ in range(5)]
        if number % 2:
            return len(parse_module(f"x = {DUMP}").body)
        return len(parse_expression(DUMP)._fields)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(parse, range(400))) == {1}


@pytest.mark.usefixtures("collected_often")
def test_the_stats_of_many_jobs_are_read_side_by_side() -> None:
    def read(_number: int) -> int:
        _ = [Garbage() for _ in range(5)]
        return len(read_dump(DUMP) or {})

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(read, range(200))) == {60}
