"""How Sphinx makes the site of these pages: `make docs`."""
# ruff: noqa: INP001 - a script of Sphinx

import re
from pathlib import Path

HERE = Path(__file__).parent

project = "scrapyd-dist"
author = "The scrapyd-dist maintainers"
release = re.findall(
    '^__version__ = "(.+)"',
    (HERE.parent / "scrapyd_dist" / "version.py").read_text("utf-8"),
    re.MULTILINE,
)[0]

extensions = ["myst_parser"]
root_doc = "index"
html_theme = "furo"
html_title = f"scrapyd-dist {release}"
html_copy_source = False
html_show_copyright = False
highlight_language = "none"
# Two hyphens are those of an option, and stay two.
smartquotes = False

# Links to headings work as they do where the repository is browsed.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
