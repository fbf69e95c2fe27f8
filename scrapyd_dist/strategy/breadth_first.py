"""Ships breadth first: the nearer a page is to a seed, the earlier it is requested."""

from scrapyd_dist.strategy.basic import BasicStrategy
from scrapyd_dist.strategy.interface import Request


class BreadthFirst(BasicStrategy):
    """Scores a link with 1 / (depth + 1)."""

    def score(self, link: Request) -> float:
        """Return a score that falls with the depth."""
        return 1 / (int(link.meta.get("depth", 0)) + 1)
