"""Finds what a spider has of its own, and notices which of its attributes have changed.

Part of the worker half: imports Scrapy and the standard library only.
"""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getattr_static, getmro
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeGuard, TypeVar

from scrapy import Spider

T = TypeVar("T")
#: packages whose code is not the project's
_FOREIGN = ("scrapy", "scrapyd_dist", "builtins", "abc", "typing")
#: containers whose text shows everything in them
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
#: entries of a container that are compared; of a larger one, only their number is
_MOST = 1_000


def is_own(kind: type) -> bool:
    """Tell whether a class is the project's, or another library's, and not Scrapy's."""
    return kind.__module__.partition(".")[0] not in _FOREIGN


def own_bases(kind: type) -> list[type]:
    """Return the class and those that it is made from, without Scrapy's."""
    return [base for base in getmro(kind) if is_own(base)]


def is_of_type(value: object, *kinds: type[T]) -> TypeGuard[T]:
    """Tell whether a value is of one of these types, by its own type alone.

    With `isinstance`, a lazy proxy is asked for the type of what it stands for, and may raise.
    """
    return issubclass(type(value), kinds)


class _ObjectState(NamedTuple):
    """Says which object a value is, and what shows whether it has changed inside."""

    identity: int
    content: Any


def _is_same(before: Any, now: Any) -> bool:
    """Return whether two states are of one object that is no container."""
    if not isinstance(before, _ObjectState) or not isinstance(now, _ObjectState):
        return False
    return before.identity == now.identity


class AttributeWatch:
    """Notices which attributes of a spider change from now on."""

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._before = dict(_attributes(spider))  #: name -> its state
        self._changed = dict[str, None]()  #: names, before the latest values that are no change

    def changed(self) -> list[str]:
        """Return the names of those that are not as they were."""
        names = dict(self._changed)
        for name, state in _attributes(self._spider):
            if self._before.get(name) != state and not self._is_made_now(name):
                names[name] = None
        return list(names)

    def _is_made_now(self, name: str) -> bool:
        """Return whether a cached property has been read for the first time.

        Each process makes its value for itself, of attributes that are watched as well.
        """
        member = getattr_static(type(self._spider), name, None)
        return name not in self._before and hasattr(type(member), "__get__")

    def changed_inside(self) -> list[str]:
        """Return the names of those that are the same objects as before, with other contents.

        A container is a value, and no such object.
        """
        now = dict(_attributes(self._spider))
        return [name for name in self.changed() if _is_same(self._before.get(name), now.get(name))]

    @contextmanager
    def setting(self) -> Iterator[None]:
        """Take what is set inside for no change."""
        self._changed.update(dict.fromkeys(self.changed()))
        yield
        self._before = dict(_attributes(self._spider))


def _attributes(spider: Spider) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of the spider and of its own classes, each with its state.

    Two states differ when the value has changed.
    """
    values = dict[str, Any]()
    for kind in reversed(own_bases(type(spider))):
        values |= vars(kind)
    values |= vars(spider)
    package = type(spider).__module__.partition(".")[0]
    for name, value in values.items():
        is_code = callable(value) or hasattr(type(value), "__get__")
        if name.startswith("__") or is_code:
            continue
        if _is_holder(value, package):
            yield name, _ObjectState(id(value), _state_of(_plain_values(value)))
        else:
            yield name, _state_of(value)


def _is_holder(value: Any, package: str) -> bool:
    """Return whether a value is an object of the project that holds attributes of its own."""
    kind = type(value)
    is_projects = kind is SimpleNamespace or kind.__module__.partition(".")[0] == package
    return is_projects and bool(kind.__dictoffset__)


def _plain_values(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that are texts, numbers or containers.

    What else it has, such as a connection, each process makes for itself.
    """
    plain = (str, int, float, bytes, *_CONTAINERS)
    try:
        attributes = vars(value)
    except Exception:  # noqa: BLE001 - a lazy proxy may raise anything
        return {}
    return {name: one for name, one in attributes.items() if is_of_type(one, *plain)}


def _state_of(value: Any) -> Any:
    """Return what shows whether a value is still the same, though it may be changed in place."""
    is_container = is_of_type(value, *_CONTAINERS)
    if is_container and len(value) > _MOST:
        return id(value), len(value)
    try:
        return json.dumps(value, sort_keys=True)
    except Exception:  # noqa: BLE001 - what the project puts into it may do anything
        if is_container:
            return id(value), *_content_of(value)
        return _ObjectState(id(value), _content_of(value))


def _content_of(value: Any) -> tuple[int | None, str]:
    """Return how many entries a value has, and of a container its text."""
    try:
        size = len(value) if hasattr(value, "__len__") else None
        text = repr(value) if is_of_type(value, *_CONTAINERS) else ""
    except Exception:  # noqa: BLE001 - likewise
        return None, ""
    return size, text
