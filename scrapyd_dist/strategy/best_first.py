"""Best first: a function says how much each link is worth, and the best is requested first."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.strategy.basic import BasicStrategy
from scrapyd_dist.strategy.interface import Request


class BestFirst(BasicStrategy):
    """Scores a link with the function that the argument `function` names: `-a function=shop.scores:by_path`.

    The function gets the link and returns a number; below 0.0 the link is not requested at all, above 1.0 it counts as
    1.0.
    """

    def __init__(self, *, function: str | Callable[[Request], float], **limits: Any) -> None:
        super().__init__(**limits)
        self.function = _named(function) if isinstance(function, str) else function

    def score(self, link: Request) -> float:
        """Return what the function says, 0.0 to 1.0."""
        return min(1.0, max(0.0, self.function(link)))

    def filter_extracted_links(self, request: Request, links: list[Request]) -> list[Request]:
        return [
            link
            for link in super().filter_extracted_links(request, links)
            if self.function(link) >= 0.0
        ]


def _named(name: str) -> Callable[[Request], float]:
    module, colon, function = name.partition(":")
    try:
        found = getattr(import_module(module), function) if module and colon else None
    except (ImportError, AttributeError):
        found = None
    if not callable(found):
        raise ConfigError(
            f"The argument function of the strategy is {name!r}, and names no function: write it as module:function,"
            " such as shop.scores:by_path."
        )
    scoring: Callable[[Request], float] = found
    return scoring
