"""Waiting for something to become true, and telling what was seen last when it does not."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: seconds between two looks
STEP = 0.05


def wait_for(
    condition: Callable[[], T | None], timeout: float = 30.0, what: str = "the condition"
) -> T:
    """Look again and again until `condition()` is true, and return what it returned; `what` names it in the error.

    A condition that raises an OSError or an AssertionError counts as not yet true.
    """
    pause, deadline = threading.Event(), time.monotonic() + timeout
    while True:
        seen: object
        try:
            seen = result = condition()
            if result:
                return result
        except (OSError, AssertionError) as error:
            seen = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:g} s; last seen: {seen!r}")
        pause.wait(STEP)
