"""The shapes of the documents as JSON Schema, and as a table of the reference: `make manual` writes both."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from rig.documents import DOCUMENTS, SUMMARY

_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    list: "array",
    None: "null",
}
#: a schema that others refer to
_SUMMARY = "#/$defs/summary"
#: what the table has in place of the names of a summary
_SUMMARY_NAMES = "those of [a crawl's summary](#the-summary-of-a-crawl)"
_TABLE = re.compile(r"(<!-- documents -->)\n(?:\n(?:\|.*\n)+)?")


def schema(shape: Any) -> dict[str, Any]:
    """A shape of `rig.documents` as JSON Schema."""
    if shape is SUMMARY:
        return {"$ref": _SUMMARY}
    if isinstance(shape, tuple):
        return _any_of([schema(one) for one in shape])
    if isinstance(shape, list):
        return {"type": "array", "items": schema(shape[0])}
    if isinstance(shape, dict):
        return _object(shape)
    return {} if shape is object else {"type": _TYPES[shape]}


def _object(shape: dict[Any, Any]) -> dict[str, Any]:
    if set(shape) == {str}:
        return {"type": "object", "additionalProperties": schema(shape[str])}
    properties = {name.removesuffix("?"): schema(one) for name, one in shape.items()}
    required = [name for name in shape if not name.endswith("?")]
    return {"type": "object", "properties": properties, "required": required}


def _any_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    if all(one.keys() == {"type"} for one in found):
        return {"type": [one["type"] for one in found]}
    return {"anyOf": found}


def schemas() -> str:
    """The text of `schemas.json`: command -> the schema of what it prints with `--json`, a line for each."""
    rows = {"$defs": {"summary": schema({**SUMMARY})}}
    rows |= {f"sdist {command}": schema(shape) for command, shape in DOCUMENTS.items()}
    return (
        "{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        + "\n}\n"
    )


def json_page(text: str) -> str:
    """`json.md` with the table of today behind its marker."""
    rows: dict[str, list[str]] = {}
    for command, shape in DOCUMENTS.items():
        rows.setdefault(_names(shape), []).append(f"`{command}`")
    table = "\n".join(f"| {', '.join(commands)} | {names} |" for names, commands in rows.items())
    return _TABLE.sub(
        lambda found: f"{found[1]}\n\n| command | names |\n|---|---|\n{table}\n", text
    )


def _names(shape: dict[str, Any]) -> str:
    if not SUMMARY.keys() <= shape.keys():
        return ", ".join(map(_shown, shape))
    own = [name for name in shape if name not in SUMMARY]
    return ", ".join([_SUMMARY_NAMES, *map(_shown, own)])


def _shown(name: str) -> str:
    """A name as the table has it, with a word where it may be missing."""
    if name.endswith("?"):
        return f"`{name.removesuffix('?')}` (not always)"
    return f"`{name}`"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "schemas.json").write_text(schemas(), encoding="utf-8")
    page = folder / "json.md"
    page.write_text(json_page(page.read_text("utf-8")), encoding="utf-8")
