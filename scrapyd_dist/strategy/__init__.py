"""Provides crawling strategies: one class decides what a crawl requests next.

Its links and their states are in the store. The names below are what a project's strategy imports.
They are loaded on first use, because every worker imports this package for its values.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapyd_dist.strategy.basic import BasicStrategy
    from scrapyd_dist.strategy.best_first import BestFirst
    from scrapyd_dist.strategy.breadth_first import BreadthFirst
    from scrapyd_dist.strategy.depth_first import DepthFirst
    from scrapyd_dist.strategy.interface import CrawlingStrategy, Request, Response
    from scrapyd_dist.strategy.links import States
    from scrapyd_dist.strategy.revisit import Revisit
    from scrapyd_dist.strategy.site_discovery import Discovery

#: public name -> the module that defines it
_HOMES = {
    "BasicStrategy": "basic",
    "BestFirst": "best_first",
    "BreadthFirst": "breadth_first",
    "CrawlingStrategy": "interface",
    "DepthFirst": "depth_first",
    "Discovery": "site_discovery",
    "Request": "interface",
    "Response": "interface",
    "Revisit": "revisit",
    "States": "links",
}
__all__ = [
    "BasicStrategy",
    "BestFirst",
    "BreadthFirst",
    "CrawlingStrategy",
    "DepthFirst",
    "Discovery",
    "Request",
    "Response",
    "Revisit",
    "States",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module  # noqa: PLC0415 - see the module docstring

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
