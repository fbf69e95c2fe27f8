"""`python -m scrapyd_dist` is the same program as `sdist`."""

import os
import sys

# As for `sdist`, files in the current folder are not taken for libraries; `-m` makes it the first place on the path.
if sys.path[:1] == [os.getcwd()]:
    sys.path.append(sys.path.pop(0))

from scrapyd_dist.cli.main import main

main()
