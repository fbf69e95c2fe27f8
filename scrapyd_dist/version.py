"""Says the version of scrapyd-dist, and where the running copy is."""

from pathlib import Path

__version__ = "1.0.0"

#: path of the package's file, in an egg or installed
PACKAGE_FILE = str(Path(__file__).with_stem("__init__"))
