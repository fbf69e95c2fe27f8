"""Ships depth first: the more links a page is away from a seed, the earlier it is requested."""

from scrapyd_dist.strategy.basic import BasicStrategy
from scrapyd_dist.strategy.interface import Request


class DepthFirst(BasicStrategy):
    """Scores a link with depth / (depth + 1)."""

    def score(self, link: Request) -> float:
        """Return a score that grows with the depth."""
        depth = int(link.meta.get("depth", 0))
        return depth / (depth + 1)
