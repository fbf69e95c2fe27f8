"""Counts how many lines of some modules a piece of work runs: what grows too fast shows without a clock."""

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def count_steps(work: Callable[[], object], *modules: ModuleType) -> int:
    """The lines of these modules that are run for it; each turn of a loop or comprehension counts."""
    files = {module.__file__ for module in modules}
    steps = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    def enter(frame: FrameType, _: str, __: Any) -> Any:
        return count if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


def growth(work: Callable[[int], Callable[[], object]], size: int, *modules: ModuleType) -> float:
    """How many times as many steps four times the size takes: 4 where they grow with it, 16 with its square.

    Args:
        work: makes the work of a size; what it does before is not counted.
        size: the smaller one.
        modules: whose lines count.
    """
    return count_steps(work(4 * size), *modules) / count_steps(work(size), *modules)
