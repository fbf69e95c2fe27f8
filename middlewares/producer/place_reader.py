"""Find what code sets in modules, classes and objects of the project that other code reads.

A place is an attribute of such an object, or an entry of the environment, whatever names lead to
it. Nothing of the project is run for that.
"""

import ast
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import resolve_name
from inspect import getattr_static, unwrap
from itertools import chain
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, TypeAlias

from ..spider_attributes import is_of_type, own_bases
from .assignment_reader import assigned
from .path_reader import CALL, NamePath, PathChange, PathReader
from .source_reader import (
    FunctionNode,
    SourceFunction,
    argument_names,
    given_to,
    is_projects,
    last_name,
    methods_of,
    module_tree,
    named_object,
    sources_of,
)

#: the object that holds a value, and its name there; without a name, the value itself
Place: TypeAlias = tuple[int, str]

#: values that nothing can be put into
_FIXED = (
    *(type(None), bool, int, float, str, bytes, tuple, frozenset),
    *(type, ModuleType, FunctionType, classmethod, staticmethod),
)
#: classes of Python that projects make objects of to keep something in
_HOLDERS = (SimpleNamespace, threading.local)
#: functions that are read: objects that lead to others of their kind may be many
_MOST = 1_000
#: methods of the environment that read a variable
_READS = frozenset({"get", "pop", "getenv"})


@dataclass(frozen=True)
class BoundFunction:
    """Holds a function, and the object or class of which it is a method."""

    function: SourceFunction
    owner: object = None

    @property
    def key(self) -> tuple[SourceFunction, int]:
        """What it is known by."""
        return self.function, id(self.owner)


@dataclass(frozen=True, eq=False)
class PartOfSpider:
    """Stands for the object that a spider keeps in an attribute, as its code makes it."""

    kind: type


@dataclass(frozen=True, eq=False)
class SpiderParts:
    """Stands for a spider, by the objects in its attributes that are the project's own."""

    parts: Mapping[str, object]


def shared_places(
    kind: type, setting: Iterable[SourceFunction], reading: Iterable[SourceFunction]
) -> list[str]:
    """Return what the first functions set and the others read, as code names it.

    What functions set that both call is left out, as is what is kept in this class.
    """
    spider = SpiderParts(dict(_parts_of(kind)))
    readers = _with_methods(reading, kind, spider)
    places = set[Place]()
    for reader in readers.values():
        places.update(_PlaceReader(reader, kind, spider).places_read())
    names = set[str]()
    for key, setter in _with_methods(setting, kind, spider).items():
        if key not in readers:
            for name, place in _PlaceReader(setter, kind, spider).places_set():
                if place in places:
                    names.add(name)
    return sorted(names)


def _parts_of(kind: type) -> Iterator[tuple[str, object]]:
    """Yield the attributes of a spider that hold objects of the project, each with what it holds.

    An object that all spiders of the class have is there; for one that a method makes, its class
    is known.
    """
    for base in reversed(own_bases(kind)):
        for name, value in vars(base).items():
            if _has_methods(value) and not is_of_type(value, type):
                yield name, value
    yield from _parts_made(kind)


def _parts_made(kind: type) -> Iterator[tuple[str, PartOfSpider]]:
    """Yield the attributes that methods of a spider set to objects of the project."""
    for method in methods_of(kind):
        for target, value in chain.from_iterable(map(assigned, method.nodes())):
            if not isinstance(target, ast.Attribute) or not isinstance(value, ast.Call):
                continue
            made = named_object(value.func, method.module)
            if is_of_type(made, type) and _is_holder(made):
                yield target.attr, PartOfSpider(made)


def _with_methods(
    functions: Iterable[SourceFunction], kind: type, spider: SpiderParts
) -> dict[tuple[SourceFunction, int], BoundFunction]:
    """Return functions with the methods of the project's classes and objects that they call."""
    found = dict[tuple[SourceFunction, int], BoundFunction]()
    waiting = deque(map(BoundFunction, functions))
    while waiting:
        function = waiting.popleft()
        if function.key not in found and len(found) < _MOST:
            found[function.key] = function
            waiting.extend(_PlaceReader(function, kind, spider).called())
    return found


class _PlaceReader:
    """Reads one function; `kind` is the class whose attributes are no places."""

    def __init__(self, function: BoundFunction, kind: type, spider: SpiderParts) -> None:
        self._spider = spider
        self._paths = PathReader(function.function)
        self._module = function.function.module
        self._owner = function.owner
        self._first = next(argument_names(function.function), "")
        self._ignored = set(map(id, own_bases(kind)))
        self._imported = dict(_local_imports(function.function))

    def places_set(self) -> Iterator[tuple[str, Place]]:
        """Yield the places that the function sets, each with its name."""
        for change in self._paths.changes():
            base, *names = change.path
            if base == self._first and self._owner is not None:
                base = _kind_of(self._owner).__qualname__
            elif self._is_spider(base):
                continue  # that is told of the attribute
            for place in self._changed(change):
                yield _name_of((base, *names)), place
        for node in self._paths.function.nodes():
            for variable in self._variables_set(node):
                yield f"os.environ[{variable!r}]", (id(os.environ), variable)

    def places_read(self) -> Iterator[Place]:
        """Yield the places that the function reads."""
        for path in self._paths.reads():
            places, values = self._walk(path)
            yield from places
            for value in values:
                yield id(value), ""
        for node in self._paths.function.nodes():
            for variable in self._variables_read(node):
                yield id(os.environ), variable

    def called(self) -> Iterator[BoundFunction]:
        """Yield the functions, and the methods of classes and objects, that this one calls."""
        for call in self._paths.calls():
            path = self._paths.path_of(call.func)
            _, values = self._walk(path)
            if not path or len(path) != len(values):
                continue
            if len(path) > 1 and _has_methods(values[-2]):
                yield from _methods_named(values[-2], path[-1])
            elif is_of_type(values[-1], FunctionType):
                yield from map(BoundFunction, sources_of(values[-1]))

    def _changed(self, change: PathChange) -> Iterator[Place]:
        places, values = self._walk(change.path)
        if not values:
            return
        is_whole = len(values) == len(change.path)
        can_change = not is_of_type(values[-1], *_FIXED)
        if is_whole or can_change:
            yield from places[-1:]
        if can_change and (change.is_put or not is_whole):
            yield id(values[-1]), ""

    def _walk(self, path: NamePath) -> tuple[list[Place], list[object]]:
        """Return the places to which a path leads, as far as is known, and the values on it."""
        places = list[Place]()
        if not path:
            return places, []
        values = list(self._begin(path[0], places))
        for name in path[1:]:
            following = list(self._follow(values[-1], name, places)) if values else []
            if not following:
                break
            values += following
        return places, values

    def _follow(self, holder: object, name: str, places: list[Place]) -> Iterator[object]:
        """Yield what a part of a path leads to, and add its place."""
        if name == CALL:
            yield from _shared_result(holder)
        elif is_of_type(holder, SpiderParts):
            if name in holder.parts:
                yield holder.parts[name]
        elif is_of_type(holder, PartOfSpider):
            places.append((id(holder), name))
            yield getattr_static(holder.kind, name, None)
        elif _is_holder(holder):
            if id(holder) in self._ignored:
                return
            places.append((id(holder), name))
            yield getattr_static(holder, name, None)

    def _begin(self, name: str, places: list[Place]) -> Iterator[object]:
        """Yield what a name stands for, and add its place."""
        if self._owner is not None and name == self._first:
            yield self._owner
        elif self._is_spider(name):
            yield self._spider
        elif name in self._imported:
            yield self._imported[name]
        elif name not in self._paths.own and name in vars(self._module):
            value = vars(self._module)[name]
            if not is_of_type(value, ModuleType) or is_projects(value):
                places.append((id(self._module), name))
                yield value

    def _is_spider(self, name: str) -> bool:
        return name == "self" and self._owner is None and self._paths.function.is_method

    def _variables_set(self, node: ast.AST) -> Iterator[str]:
        """Yield the names of variables of the environment that a part of the function sets."""
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if last_name(node.value) == "environ":
                yield from self._texts([node.slice])
        elif isinstance(node, ast.Call) and last_name(node) == "putenv":
            yield from self._texts(node.args[:1])
        elif isinstance(node, ast.Call) and _is_of_environ(node, {"setdefault", "update"}):
            yield from filter(None, map(_name_given, node.keywords))
            for value in node.args[:1]:
                keys = value.keys if isinstance(value, ast.Dict) else [value]
                yield from self._texts(filter(None, keys))

    def _variables_read(self, node: ast.AST) -> Iterator[str]:
        """Yield the names of variables of the environment that a part of the function reads."""
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if last_name(node.value) == "environ":
                yield from self._texts([node.slice])
        elif isinstance(node, ast.Call):
            if last_name(node) == "getenv" or _is_of_environ(node, _READS):
                yield from self._texts(given_to(node))
        elif isinstance(node, ast.Compare) and "environ" in map(last_name, node.comparators):
            yield from self._texts([node.left])

    def _texts(self, nodes: Iterable[ast.expr]) -> Iterator[str]:
        """Yield the texts among values: written ones, and those that a name of the module has."""
        for node in nodes:
            value: object = node.value if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.Name):
                value = vars(self._module).get(node.id)
            if is_of_type(value, str):
                yield value


def _name_given(keyword: ast.keyword) -> str:
    return keyword.arg or ""


def _is_of_environ(call: ast.Call, methods: Iterable[str]) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in methods:
        return False
    return last_name(call.func.value) == "environ"


def _name_of(path: NamePath) -> str:
    return ".".join(path).replace(f".{CALL}", CALL)


def _is_holder(value: object) -> bool:
    """Return whether a value is the project's own, and other code may set its attributes."""
    if is_of_type(value, ModuleType):
        return is_projects(value)
    if is_of_type(value, *_HOLDERS):
        return True
    kind = value if is_of_type(value, type, FunctionType) else type(value)
    return is_projects(sys.modules.get(getattr(kind, "__module__", None) or ""))


def _has_methods(owner: object) -> bool:
    if is_of_type(owner, ModuleType, FunctionType):
        return False
    return is_of_type(owner, PartOfSpider) or _is_holder(owner)


def _kind_of(owner: object) -> type:
    """Return the class whose methods an object, or a class, has."""
    if is_of_type(owner, PartOfSpider):
        return owner.kind
    return owner if is_of_type(owner, type) else type(owner)


def _methods_named(owner: object, name: str) -> Iterator[BoundFunction]:
    """Yield the methods of an object or a class of the project with this name."""
    for method in methods_of(_kind_of(owner)):
        if method.name == name:
            yield BoundFunction(method, owner)


def _shared_result(called: Any) -> Iterator[object]:
    """Yield what stands for the result of a call if each call returns the same object."""
    function = called
    if is_of_type(called, classmethod) or is_of_type(called, staticmethod):
        function = called.__func__
    cached = vars(function).get("__wrapped__") if _is_cached(function) else None
    if is_of_type(cached, FunctionType):
        yield cached
    elif is_of_type(function, FunctionType):
        yield from filter(_returns_shared, [unwrap(function)])
    elif is_of_type(function, type):
        yield from filter(_is_singleton, [function])


def _is_cached(function: object) -> bool:
    """Return whether a function is called once for the same arguments."""
    return getattr_static(function, "cache_info", None) is not None


def _is_singleton(kind: type) -> bool:
    """Return whether the project itself says how objects of a class are made."""
    if not _is_holder(kind):
        return False
    if _is_holder(type(kind)):
        return True
    makers = filter(_has_new, own_bases(kind))
    return any(map(_is_holder, makers))


def _has_new(kind: type) -> bool:
    return "__new__" in vars(kind)


def _returns_shared(function: FunctionType) -> bool:
    """Return whether a function returns what its module or its class has."""
    module = sys.modules.get(function.__module__)
    node = _node_of(function)
    if node is None or module is None:
        return False
    paths = PathReader(SourceFunction(name=node.name, node=node, module=module))
    for part in ast.walk(node):
        path = paths.path_of(part.value) if isinstance(part, ast.Return) and part.value else ()
        if path and CALL not in path and (path[0] not in paths.own or path[0] == "cls"):
            return True
    return False


def _node_of(function: FunctionType) -> FunctionNode | None:
    """Return a function in the tree of its module; None if the project does not have it."""
    module = sys.modules.get(function.__module__)
    tree = module_tree(module) if module is not None and is_projects(module) else None
    if tree is None:
        return None
    line = function.__code__.co_firstlineno
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.decorator_list[0] if node.decorator_list else node
        if node.name == function.__name__ and line in (first.lineno, node.lineno):
            return node
    return None


def _local_imports(function: SourceFunction) -> Iterator[tuple[str, object]]:
    """Yield what a function itself imports from the project, if it is there already."""
    for node in function.nodes():
        if isinstance(node, ast.ImportFrom):
            yield from _imported_names(node, function.module.__package__ or "")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                if is_projects(sys.modules.get(name)):
                    yield alias.asname or name, sys.modules[name]


def _imported_names(node: ast.ImportFrom, package: str) -> Iterator[tuple[str, object]]:
    """Yield what a statement imports from a module of the project."""
    source = resolve_name("." * node.level + (node.module or ""), package)
    module = sys.modules.get(source)
    if module is None or not is_projects(module):
        return
    for alias in node.names:
        value = vars(module).get(alias.name, sys.modules.get(f"{source}.{alias.name}"))
        yield alias.asname or alias.name, value
