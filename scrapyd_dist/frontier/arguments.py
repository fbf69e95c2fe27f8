"""Rows of arguments: a frontier whose rows are no requests, but the arguments of one run of a spider each.

The rule it keeps: a row is a batch of one, so that everything which is true of batches is true of it; what stands for
its address is its arguments in words, by which it is also known again.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from scrapyd_dist.frontier.filling import ARGUMENTS, Found
from scrapyd_dist.payload import ARGUMENT_MAX, RequestValue, decode

if TYPE_CHECKING:
    from collections.abc import Mapping


def value_of(args: Mapping[str, str]) -> RequestValue:
    """A row of these arguments, as a batch carries it.

    Raises:
        ValueError: a job cannot be given one of them.
    """
    for name, text in args.items():
        if "=" in name or not name:
            raise ValueError(f"{name!r} cannot be the name of an argument")
        if len(f"{name}={text}".encode()) > ARGUMENT_MAX:
            raise ValueError(f"its {name} is longer than a job can be given")
        if "\0" in name + text:
            raise ValueError(f"its {name} has a zero byte, which no argument can have")
    if sum(len(f"{name}={text}".encode()) for name, text in args.items()) > ARGUMENT_MAX:
        raise ValueError("its arguments together are longer than a job can be given")
    return {"url": json.dumps(dict(sorted(args.items())), ensure_ascii=False), ARGUMENTS: dict(args)}


def found(value: RequestValue, priority: int) -> Found:
    """The row on its way into a frontier; the same arguments are the same row."""
    print_ = hashlib.sha256(value["url"].encode("utf-8", "surrogatepass")).digest()
    return Found(value=value, fingerprint=print_, slot=ARGUMENTS, priority=priority)


def row_in(payload: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The row that a batch carries: its arguments in words, and by name.

    Raises:
        PayloadError: it carries something else.
    """
    (value,) = decode(payload.get)
    return value["url"], value[ARGUMENTS]
