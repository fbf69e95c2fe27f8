"""Defines who is told, on the way, what people should know of a step: a command prints it.

The rule it keeps: what is told here changes nothing; results and errors are returned and raised.
"""

from collections.abc import Iterable
from typing import Protocol


class Messenger(Protocol):
    """Passes messages on to the user who watches a step."""

    def say(self, text: str) -> None:
        """Pass on a remark."""
        ...

    def say_once(self, text: str) -> None:
        """Pass on a remark that need not be repeated, however often it comes."""
        ...

    def complain(self, text: str) -> None:
        """Pass on what went wrong: one paragraph."""
        ...

    def complain_each(self, errors: Iterable[object]) -> None:
        """Pass on each of these texts or errors; a None is none."""
        ...


class NoMessenger:
    """Drops all messages, for a caller without a user."""

    def say(self, text: str) -> None:
        """Drop a remark."""

    def say_once(self, text: str) -> None:
        """Drop a remark."""

    def complain(self, text: str) -> None:
        """Drop a complaint."""

    def complain_each(self, errors: Iterable[object]) -> None:
        """Drop complaints."""


NO_MESSENGER = NoMessenger()
