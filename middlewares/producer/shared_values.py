"""Notice that several target requests share one value which callbacks change.

In one process they all see what each has changed; requests that travel have copies of it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from scrapy import Request, Spider

from .argument_reader import ArgumentUse, argument_use

#: types of values that nothing can change
_FIXED = frozenset({type(None), bool, int, float, complex, str, bytes, tuple, frozenset})
#: values of which it is remembered that a request has them
_MOST = 1_000


class SharedValues:
    """Looks at the values in meta and cb_kwargs of target requests."""

    def __init__(self, spider: Spider) -> None:
        self._kind = type(spider)
        #: id -> the value itself, since another may get its id once it is gone; latest used last
        self._known = OrderedDict[int, Any]()
        #: name in meta or cb_kwargs -> requests that share its value with an earlier one
        self._shared = Counter[str]()

    @cached_property
    def _use(self) -> ArgumentUse:
        return argument_use(self._kind)

    def note(self, request: Request) -> None:
        """Note which values this request has."""
        own: dict[int, tuple[str, Any]] = {}
        for field in (request.cb_kwargs, request.meta):
            for name, value in field.items():
                if type(value) not in _FIXED and name in self._use.changed:
                    own[id(value)] = (name, value)
        for name, value in own.values():
            self._note_value(name, value)

    def _note_value(self, name: str, value: Any) -> None:
        if id(value) in self._known:
            self._shared[name] += 1
            self._known.move_to_end(id(value))
            return
        self._known[id(value)] = value
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def names(self) -> Iterable[str]:
        """Return the names of the values that are shared and changed."""
        return sorted(self._shared)

    @property
    def lose_items(self) -> bool:
        """Whether a callback may wait in vain for what other pages put into such a value."""
        return bool(self._shared) and not self._use.gathered.isdisjoint(self._shared)
