"""Finds objects that a request holds in several places, and makes them one again elsewhere.

JSON has no identity: a list that is in an item and beside it would come back as two, and what a
callback puts into one of them would be missing in the other.
Part of the worker half: imports Scrapy and the standard library only.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from itemadapter import ItemAdapter
from scrapy import Item

#: names, keys and indices that lead to a value from a mapping of fields
Path = list[Any]
#: (place of a value, the first place of the same object)
Alias = tuple[Path, Path]

#: types whose values cannot be changed, and that hold no other value; most values are of these
_FIXED_TYPES = frozenset({type(None), str, bool, int, float, bytes})
_DICT_TYPES = frozenset({dict, defaultdict, OrderedDict})
_SEQUENCE_TYPES = frozenset({list, tuple})
_KEY_TYPES = frozenset({str, int})
_CONTAINER_TYPES = frozenset({set, *_DICT_TYPES, *_SEQUENCE_TYPES})


class _Part(NamedTuple):
    path: Path
    value: Any
    #: whether it cannot be put there again: it is in a tuple, or its path has no JSON form
    is_out_of_reach: bool = False


class NoSuchPlace(ValueError):
    """A value is in a place to which no path leads, or that cannot be filled."""


def find_aliases(fields: Mapping[str, Mapping[str, Any]]) -> list[Alias]:
    """Return the places of all objects that are in an earlier place, too.

    Args:
        fields: name of a field -> its values by name. What is in them has a JSON form.

    Raises:
        NoSuchPlace: such an object is in a place where it could not be put again.
    """
    firsts: dict[int, _Part] = {}
    aliases: list[Alias] = []
    waiting = deque[_Part]()
    for name, values in fields.items():
        waiting += _list_parts(_Part([name], values))
    while waiting:
        part = waiting.popleft()
        parts = _list_parts(part)
        if type(part.value) is tuple and not parts:  # nothing of it can be changed
            continue
        first = firsts.setdefault(id(part.value), part)
        if first is part:
            waiting += parts
        elif first.is_out_of_reach or part.is_out_of_reach:
            raise NoSuchPlace("a value in two places, one of them in a tuple or by an odd key")
        else:
            aliases.append((part.path, first.path))
    return aliases


def restore_aliases(
    fields: Mapping[str, Any], aliases: Iterable[tuple[Sequence[Any], Sequence[Any]]]
) -> None:
    """Put objects into all places where they were, as `find_aliases` has found them.

    Raises:
        NoSuchPlace: the fields have no such place.
    """
    for path, first in aliases:
        try:
            _fill_place(fields, path, _value_at(fields, first))
        except (LookupError, TypeError, AttributeError) as error:
            raise NoSuchPlace(f"there is no place {path} or {first}") from error


def _list_parts(whole: _Part) -> list[_Part]:
    """Return what a value holds, as far as that can be changed or holds such a value."""
    is_out_of_reach = whole.is_out_of_reach or type(whole.value) is tuple
    parts = []
    for key, value in _entries_of(whole.value):
        if type(value) not in _FIXED_TYPES and _is_walked(type(value)):
            is_odd = type(key) not in _KEY_TYPES
            parts.append(_Part([*whole.path, key], value, is_out_of_reach or is_odd))
    return parts


def _entries_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the entries of a value by name or index; none of what has neither."""
    kind = type(value)
    if kind in _DICT_TYPES:
        return dict.items(value)
    if kind in _SEQUENCE_TYPES:
        return enumerate(value)
    if kind is set:
        return ()
    return dict(ItemAdapter(value)).items()


def _is_walked(kind: type) -> bool:
    return kind in _CONTAINER_TYPES or ItemAdapter.is_item_class(kind)


def _value_at(fields: Mapping[str, Any], path: Sequence[Any]) -> Any:
    value: Any = fields
    for key in path:
        holder = ItemAdapter(value) if ItemAdapter.is_item_class(type(value)) else value
        value = holder[key]
    return value


def _fill_place(fields: Mapping[str, Any], path: Sequence[Any], value: Any) -> None:
    holder = _value_at(fields, path[:-1])
    kind = type(holder)
    if kind is list or kind in _DICT_TYPES:
        holder[path[-1]] = value
    elif isinstance(holder, Item):
        Item.__setitem__(holder, path[-1], value)  # without a method of its own
    else:
        object.__setattr__(holder, path[-1], value)  # a frozen class has no other way
