"""Ships best first: a function says how much a link is worth, and the best is requested first."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.strategy.basic import BasicStrategy
from scrapyd_dist.strategy.interface import Request


class BestFirst(BasicStrategy):
    """Scores a link with the function that an argument names: `-a function=shop.scores:by_path`.

    The function gets the link and returns a number; below 0.0 the link is not requested at all,
    above 1.0 it counts as 1.0.
    """

    def __init__(self, *, function: str | Callable[[Request], float], **limits: Any) -> None:
        super().__init__(**limits)
        if isinstance(function, str):
            function = _load_function(function)
        self.function = function

    def score(self, link: Request) -> float:
        """Return what the function says, 0.0 to 1.0."""
        return min(1.0, max(0.0, self.function(link)))

    def filter_extracted_links(self, request: Request, links: list[Request]) -> list[Request]:
        """Return the links within the limits that are worth something."""
        admitted = super().filter_extracted_links(request, links)
        return [link for link in admitted if self.function(link) >= 0.0]


def _load_function(path: str) -> Callable[[Request], float]:
    module, colon, name = path.partition(":")
    found: Any = None
    if module and colon:
        with suppress(ImportError, AttributeError):
            found = getattr(import_module(module), name)
    if not callable(found):
        raise ConfigError(
            f"The argument function of the strategy is {path!r}, and names no function: write it as"
            " module:function, such as shop.scores:by_path."
        )
    scoring: Callable[[Request], float] = found
    return scoring
