"""Writes and reads an item's line of JSON with one more field: its class and special values.

The values are those of types that JSON lacks.

Part of the worker half: imports the standard library only.
"""

import json
from pathlib import Path
from typing import Any

#: begins that field, the last one of its line; JSON encoders put a space behind the colon, so no
#: other field does
TYPED = b'"$typed":'


def with_form(line: bytes, form: Any) -> bytes:
    """Return the line of an item, without line feed, with its whole form as JSON."""
    fields = line.removesuffix(b"}")
    comma = b"" if fields == b"{" else b","
    return fields + comma + TYPED + json.dumps(form).encode() + b"}"


def plain_line(line: bytes) -> bytes:
    """Return the line of an item, without line feed, without its class and special values."""
    fields, typed, _ = line.partition(TYPED)
    if not typed:
        return line
    return fields.removesuffix(b",") + b"}"


def read_form(line: bytes) -> tuple[Any, bool]:
    """Return the item on a line as JSON, and whether that has its class and special values.

    They are as `typed_json` packs them.
    """
    _, typed, form = line.partition(TYPED)
    if not typed:
        return json.loads(line), False
    return json.loads(form.removesuffix(b"}")), True


def plain_copy(path: Path) -> Path:
    """Return a file with the same items without their classes and special values.

    It is the file itself if it has none of these.
    """
    with path.open("rb") as file:
        if not any(TYPED in line for line in file):
            return path
    copy = path.with_suffix(".plain")
    with path.open("rb") as file, copy.open("wb") as plain:
        plain.writelines(plain_line(line.rstrip(b"\n")) + b"\n" for line in file)
    return copy
