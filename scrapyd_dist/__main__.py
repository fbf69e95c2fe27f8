"""Runs `sdist` as `python -m scrapyd_dist`."""

import os
import sys

# As for `sdist`, files in the current folder are not taken for libraries; `-m` makes it the first
# place on the path.
if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - nothing is imported before
    sys.path.append(sys.path.pop(0))

from scrapyd_dist.cli.main import main

main()
