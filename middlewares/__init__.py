"""What runs inside a Scrapy process: the worker half, which travels in the egg, and the producer half.

Names are loaded on first use, so that a worker never imports the producer's half (it is not there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .addon import Addon, Distributed

__all__ = ["Addon", "Distributed"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import addon

        return getattr(addon, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
