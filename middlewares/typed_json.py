"""Turns Python values into JSON and back without loss.

What JSON lacks is an object with one key, which begins with `$`. Nothing is called that the JSON
names: a class is that of an item, and its objects are made without its code.
Part of the worker half: imports Scrapy and the standard library only.
"""

import base64
import importlib
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import cache, reduce
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from itemadapter import ItemAdapter
from itemadapter.adapter import AttrsAdapter, DataclassAdapter, PydanticAdapter, ScrapyItemAdapter
from scrapy import Item

#: types that JSON has
_JSON_TYPES = frozenset({type(None), str, bool, int, float})
#: the kinds of item classes whose objects are no more than their fields
_ADAPTERS = (ScrapyItemAdapter, DataclassAdapter, AttrsAdapter, PydanticAdapter)
#: where an object of pydantic keeps what is no field
_PYDANTICS_OWN = ("__pydantic_private__", "__pydantic_extra__")
#: the tag of a value of an item class: its module, its name there, and its fields
ITEM = "$item"


class NoJsonForm(ValueError):
    """A value cannot become JSON and come back as it was; the message is the name of its type."""


class UnknownClass(ValueError):
    """No item class of this name can be found here."""


def pack(value: Any) -> Any:
    """Return the JSON form of a value.

    Raises:
        NoJsonForm: it, or a value in it, cannot come back as it was.
        RecursionError: it contains itself.
    """
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    # Of containers only the plain ones: a namedtuple would come back without its names.
    if kind is list:
        return [pack(entry) for entry in value]
    if kind is dict and all(type(name) is str for name in value):
        packed = {name: pack(entry) for name, entry in value.items()}
        if any(name.startswith("$") for name in packed):
            return {"$dict": packed}
        return packed
    return _pack_other(value, kind)


def _pack_other(value: Any, kind: type) -> Any:
    """Pack a value that is none of JSON."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return str(value)  # such as what lxml finds
    if kind in _FORMS:
        tag, to_json = _FORMS[kind]
        return {tag: to_json(value)}
    if ItemAdapter.is_item_class(kind):
        return {ITEM: _pack_item(value)}
    raise NoJsonForm(kind.__name__)


def unpack(form: Any, package: str = "") -> Any:
    """Return the value of this JSON form.

    Args:
        form: what `pack` returned.
        package: the project's top-level package; modules below it may be imported for their item
            classes.

    Raises:
        UnknownClass: the class of an item is not here.
        ValueError: `form` is no such JSON.
    """
    if isinstance(form, list):
        return [unpack(entry, package) for entry in form]
    if not isinstance(form, dict):
        return form
    if len(form) == 1:
        tag, inner = next(iter(form.items()))
        if tag in _VALUES:
            return _VALUES[tag](inner, package)
    return {name: unpack(entry, package) for name, entry in form.items()}


def find_item_class(module: str, name: str, package: str) -> type:
    """Return the item class with this qualified name.

    Args:
        module: one that is imported already, or lies below the package.
        name: its qualified name in the module.
        package: the project's top-level package; empty: nothing is imported.

    Raises:
        UnknownClass: there is no such module or class, or it is not the class of an item.
    """
    try:
        found = reduce(getattr, name.split("."), _import_module(module, package))
    except (ImportError, AttributeError) as error:
        raise UnknownClass(f"there is no class {module}.{name} here ({error})") from error
    if not isinstance(found, type) or not ItemAdapter.is_item_class(found):
        raise UnknownClass(f"{module}.{name} is not the class of an item")
    return found


def _import_module(name: str, package: str) -> Any:
    if name not in sys.modules and package and name.partition(".")[0] == package:
        importlib.import_module(name)
    if name not in sys.modules:
        raise ImportError(f"{name} is no module of the project {package}".rstrip())
    return sys.modules[name]


# items


def item_form(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON form of an item with these packed fields.

    It is that of a dict if its class cannot be made elsewhere.
    """
    if _find_obstacle(kind):
        return {"$dict": fields}
    return {ITEM: [kind.__module__, kind.__qualname__, fields]}


def _pack_item(item: Any) -> list[Any]:
    kind: type = type(item)
    obstacle = _find_obstacle(kind)
    if obstacle:
        raise NoJsonForm(obstacle)
    fields = dict(ItemAdapter(item))
    if _has_other_attributes(item, fields):
        raise NoJsonForm(f"{kind.__name__} with attributes that are no fields")
    packed = {name: pack(value) for name, value in fields.items()}
    return [kind.__module__, kind.__qualname__, packed]


@cache
def _find_obstacle(kind: type) -> str:
    """Say why another process could not make an object of this class, or would not find it.

    The text is empty if it can.
    """
    if not _is_plain_item_class(kind):
        return kind.__name__
    try:
        is_found = find_item_class(kind.__module__, kind.__qualname__, "") is kind
    except UnknownClass:
        is_found = False
    if kind.__module__ == "__main__" or not is_found:
        return f"{kind.__name__} that is no class of an importable module"
    return ""


def _is_plain_item_class(kind: type) -> bool:
    return any(adapter.is_item_class(kind) for adapter in _ADAPTERS)


def _has_other_attributes(item: Any, fields: dict[str, Any]) -> bool:
    """Tell whether an object has attributes that are not among its fields."""
    if isinstance(item, Item):
        return False
    for name in _PYDANTICS_OWN:
        if getattr(item, name, None):
            return True
    return any(name not in fields for name in getattr(item, "__dict__", ()))


def _unpack_item(form: Any, package: str) -> Any:
    module, name, packed = form
    kind = find_item_class(module, name, package)
    fields = _unpack_dict(packed, package)
    if issubclass(kind, Item):
        return _fill_item(kind, fields)
    if PydanticAdapter.is_item_class(kind):
        model: Any = kind
        construct = getattr(model, "model_construct", None) or model.construct
        return construct(**fields)
    # As `copy` makes it: without __init__, which may have other parameters than the fields.
    made = kind.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)  # a frozen class has no other way
    return made


def _fill_item(kind: type[Item], fields: dict[str, Any]) -> Item:
    item = kind.__new__(kind)
    Item.__init__(item)
    for name, value in fields.items():
        if name in item.fields:  # without a method of its own, which has had these values already
            Item.__setitem__(item, name, value)
        else:
            item[name] = value
    return item


# values of fixed types


def _pack_datetime(value: datetime) -> Any:
    if type(value.tzinfo) is ZoneInfo and value.tzinfo.key:
        return [value.replace(tzinfo=None).isoformat(), value.tzinfo.key, value.fold]
    if not (value.tzinfo is None or type(value.tzinfo) is timezone) or value.fold:
        raise NoJsonForm(f"datetime of the time zone {value.tzinfo}")
    return value.isoformat()


def _unpack_datetime(form: Any, _: str) -> datetime:
    if isinstance(form, str):
        return datetime.fromisoformat(form)
    moment, place, fold = form
    try:
        zone = ZoneInfo(place)
    except ZoneInfoNotFoundError as error:
        raise ValueError(f"there is no time zone {place} here") from error
    return datetime.fromisoformat(moment).replace(tzinfo=zone, fold=fold)


def _pack_time(value: time) -> str:
    if value.tzinfo is not None or value.fold:
        raise NoJsonForm(f"time of the time zone {value.tzinfo}")
    return value.isoformat()


def _pack_entries(values: Any) -> list[Any]:
    return [pack(entry) for entry in values]


def _unpack_entries(form: Any, package: str) -> list[Any]:
    return [unpack(entry, package) for entry in form]


def _pack_pairs(values: dict[Any, Any]) -> list[Any]:
    return [[pack(name), pack(entry)] for name, entry in values.items()]


def _unpack_pairs(form: Any, package: str) -> dict[Any, Any]:
    return {unpack(name, package): unpack(entry, package) for name, entry in form}


def _pack_defaults(values: defaultdict[Any, Any]) -> list[Any]:
    factory = values.default_factory
    if factory is not None and factory not in _FACTORIES.values():
        raise NoJsonForm("defaultdict with a function of the project")
    name = None if factory is None else factory.__name__
    return [name, _pack_pairs(values)]


def _unpack_defaults(form: Any, package: str) -> defaultdict[Any, Any]:
    name, pairs = form
    factory = None if name is None else _FACTORIES[str(name)]
    return defaultdict(factory, _unpack_pairs(pairs, package))


def _unpack_dict(form: Any, package: str) -> dict[str, Any]:
    return {name: unpack(entry, package) for name, entry in form.items()}


#: what makes the values of a defaultdict, by name
_FACTORIES: dict[str, type] = {
    "list": list,
    "dict": dict,
    "set": set,
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
}
#: type -> tag, and what makes the JSON below it
_FORMS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("$bytes", lambda value: base64.b64encode(value).decode()),
    tuple: ("$tuple", _pack_entries),
    set: ("$set", _pack_entries),
    frozenset: ("$frozenset", _pack_entries),
    dict: ("$pairs", _pack_pairs),  # one with keys that are no text
    defaultdict: ("$defaults", _pack_defaults),
    OrderedDict: ("$ordered", _pack_pairs),
    Decimal: ("$decimal", str),
    datetime: ("$datetime", _pack_datetime),
    date: ("$date", date.isoformat),
    time: ("$time", _pack_time),
    timedelta: ("$timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    UUID: ("$uuid", str),
}
#: tag -> what makes the value of what is below it, given the project's package too
_VALUES: dict[str, Callable[[Any, str], Any]] = {
    "$bytes": lambda form, _: base64.b64decode(form, validate=True),
    "$tuple": lambda form, package: tuple(_unpack_entries(form, package)),
    "$set": lambda form, package: set(_unpack_entries(form, package)),
    "$frozenset": lambda form, package: frozenset(_unpack_entries(form, package)),
    "$pairs": _unpack_pairs,
    "$defaults": _unpack_defaults,
    "$ordered": lambda form, package: OrderedDict(_unpack_pairs(form, package)),
    "$dict": _unpack_dict,
    "$decimal": lambda form, _: Decimal(form),
    "$datetime": _unpack_datetime,
    "$date": lambda form, _: date.fromisoformat(form),
    "$time": lambda form, _: time.fromisoformat(form),
    "$timedelta": lambda form, _: timedelta(*form),
    "$uuid": lambda form, _: UUID(form),
    ITEM: _unpack_item,
}
