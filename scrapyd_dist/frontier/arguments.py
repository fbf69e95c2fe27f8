"""Converts rows of spider arguments to and from request values, for frontiers that hold arguments instead of requests.

A row is a batch of one, so everything that holds for batches holds for it. The arguments as sorted JSON stand in for
the URL, and their hash is the fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from scrapyd_dist.frontier.intake import ARGUMENTS, FrontierIntake
from scrapyd_dist.payload import ARGUMENT_MAX, RequestValue, decode

if TYPE_CHECKING:
    from collections.abc import Mapping


def value_of(args: Mapping[str, str]) -> RequestValue:
    """Return the request value that carries these arguments in a batch.

    Raises:
        ValueError: an argument has an invalid name, a zero byte, or is too long for a job.
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


def found(value: RequestValue, priority: int) -> FrontierIntake:
    """Return the row ready to be added to a frontier; equal arguments have equal fingerprints."""
    print_ = hashlib.sha256(value["url"].encode("utf-8", "surrogatepass")).digest()
    return FrontierIntake(value=value, fingerprint=print_, slot=ARGUMENTS, priority=priority)


def row_in(payload: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the arguments that a batch carries: as JSON text, and as a dict.

    Raises:
        PayloadError: the payload is not a row of arguments.
    """
    (value,) = decode(payload.get)
    return value["url"], value[ARGUMENTS]
