"""A document's section that a benchmark writes: what was measured stands in the docs as the program told it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def put_section(document: Path, heading: str, text: str) -> None:
    """Replace all below `## heading`, up to the next heading of that rank; a section that is not there comes last."""
    old = document.read_text(encoding="utf-8")
    section = f"## {heading}\n\n{text.strip()}\n"
    found = re.search(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", old, re.MULTILINE | re.DOTALL)
    if found is None:
        new = f"{old.rstrip()}\n\n{section}"
    else:
        rest = old[found.end() :]
        new = old[: found.start()] + section + (f"\n{rest}" if rest else "")
    document.write_text(new, encoding="utf-8")
