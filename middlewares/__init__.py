"""What runs inside a Scrapy process: the worker half, which travels in the egg, and the producer half.

Names are loaded on first use, so that a worker never imports the producer's half (it is not there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .addon import Addon
    from .distributed import Distributed

__all__ = ["Addon", "Distributed"]

_HOME = {"Addon": "addon", "Distributed": "distributed"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
