"""scrapyd-dist spreads one Scrapy crawl over a fleet of Scrapyd nodes.

The names below may be used in a project's settings. They are loaded on first use, because every job
on every node imports this package, and a worker must not import the producer's half.
"""

from typing import TYPE_CHECKING, Any

from scrapyd_dist.version import __version__

if TYPE_CHECKING:
    from scrapyd_dist.errors import SessionExpired
    from scrapyd_dist.middlewares.addon import Addon, Distributed

__all__ = [
    "Addon",  # ADDONS = {"scrapyd_dist.Addon": 500}
    "Distributed",  # SPIDER_MIDDLEWARES = {"scrapyd_dist.Distributed": 100}
    "SessionExpired",  # raised in a callback: see DISTRIBUTED_LOGIN
    "__version__",
]


def __getattr__(name: str) -> Any:
    # The one allowed exception to "the core imports no wing": the public line in settings.py
    # names the package, and the component lives in middlewares/.
    if name in __all__:
        from importlib import import_module  # noqa: PLC0415 - see the module docstring

        home = "errors" if name == "SessionExpired" else "middlewares.addon"
        return getattr(import_module(f"scrapyd_dist.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
