"""Which scrapyd-dist this is."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

#: the package's file, in an egg or installed: it tells which copy of the code runs
PACKAGE_FILE = str(Path(__file__).with_stem("__init__"))
