"""`python -m scrapyd_dist` is the same program as `sdist`."""

from scrapyd_dist.cli.main import main

main()
