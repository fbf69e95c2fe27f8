"""What goes where: data to standard output, all else to standard error; rule: nothing else in this wing prints."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def say(text: str = "") -> None:
    """A line for people, beside the data."""
    print(text, file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """What went wrong: one paragraph on standard error."""
    say(f"sdist: {text}")


def put(text: str) -> None:
    """A line of what was asked for."""
    print(text, flush=True)


def put_json(document: Mapping[str, Any]) -> None:
    """The one document that `--json` promises."""
    print(json.dumps({"schema": 1, **document}, indent=2, ensure_ascii=False), flush=True)


def on_terminal() -> bool:
    """Whether standard error is a terminal that can be drawn on."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def can_ask() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> bool:
    """A yes-or-no question on standard error; anything but yes is no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
