"""What a spider has of its own: classes, and attributes, of which it is noticed whether they have changed.

Part of the worker half: imports Scrapy and the standard library only.
"""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getmro
from typing import Any

from scrapy import Spider

#: packages whose code is not the project's
_FOREIGN = ("scrapy", "scrapyd_dist", "builtins", "abc", "typing")
#: containers whose text tells of everything in them
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
#: entries of a container that are looked at; of a larger one, how many they are
_MOST = 1_000


def is_own(kind: type) -> bool:
    """Whether a class is the project's, or another library's, and not Scrapy's."""
    return kind.__module__.partition(".")[0] not in _FOREIGN


def own_bases(kind: type) -> list[type]:
    """The class and those that it is made from, without Scrapy's."""
    return [base for base in getmro(kind) if is_own(base)]


class AttributeWatch:
    """Notices which attributes of a spider change from now on."""

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._before = dict(_attributes(spider))
        self._changed = dict[str, None]()  #: names, before the latest values that are no change

    def changed(self) -> list[str]:
        """The names of those that are not as they were."""
        now = [name for name, state in _attributes(self._spider) if self._before.get(name) != state]
        return [*dict.fromkeys([*self._changed, *now])]

    @contextmanager
    def setting(self) -> Iterator[None]:
        """What is set inside is no change."""
        self._changed.update(dict.fromkeys(self.changed()))
        yield
        self._before = dict(_attributes(self._spider))


def _attributes(spider: Spider) -> Iterator[tuple[str, Any]]:
    """The attributes of the spider and of its own classes, each with what tells whether it has changed."""
    values = dict[str, Any]()
    for kind in reversed(own_bases(type(spider))):
        values |= vars(kind)
    values |= vars(spider)
    for name, value in values.items():
        if (
            not name.startswith("__")
            and not callable(value)
            and not hasattr(type(value), "__get__")
        ):
            yield name, _state(value)


def _state(value: Any) -> Any:
    """What tells whether a value is still the same, though it may be changed in place."""
    if isinstance(value, _CONTAINERS) and len(value) > _MOST:
        return id(value), len(value)
    try:
        return json.dumps(value, sort_keys=True)
    except Exception:
        return id(value), *_inside(value)


def _inside(value: Any) -> tuple[int | None, str]:
    """How much something has, and as a text what; of a container only."""
    try:
        return len(value) if hasattr(value, "__len__") else None, repr(value) if isinstance(
            value, _CONTAINERS
        ) else ""
    except Exception:
        return None, ""
