"""Calls those who want to know that something has happened."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Observers(Generic[P]):
    """Holds functions that are called when something happens, in the order in which they came."""

    def __init__(self) -> None:
        self._functions: list[Callable[P, object]] = []

    def add(self, function: Callable[P, object]) -> None:
        """Call this function, too, from now on."""
        self._functions.append(function)

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all functions."""
        for function in self._functions:
            function(*args, **kwargs)
