"""Tell what the names and attributes in a function stand for, by keys.

The key of an attribute of its own object is `self.NAME`; others are names of its module, of its
closure and of defaults of its arguments.
"""

import ast
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, lru_cache
from inspect import getattr_static
from types import FunctionType, MethodWrapperType, ModuleType

from ..spider_attributes import is_of_type
from .assignment_reader import LIVE, assigned, returns_container
from .source_reader import SourceFunction, argument_names, is_projects, last_name, sources_of

#: the type of functions that remember what they have returned
_CACHED = type(lru_cache(len))
#: functions that give one of their arguments
_CHOICES = frozenset({"max", "min"})
#: what stands for the object of a method, or for its class, in code
_SELF = frozenset({"self", "cls"})
#: the key of what is in an object that is a container itself
CONTENT = "self.[]"


class NameScope:
    """Knows what a function's names stand for. `own`: the classes whose method it is."""

    def __init__(self, function: SourceFunction, own: Collection[type]) -> None:
        self._function = function
        self._own = own
        self._aliases = dict[str, str]()
        self._origins = dict[str, ast.expr]()
        self.alias_values = set[int]()  #: expressions that only get another name, by `id`
        for node in function.nodes():
            for target, value in assigned(node):
                if isinstance(target, ast.Name):
                    self._add_alias(target.id, value)

    def _add_alias(self, name: str, value: ast.expr) -> None:
        self._origins.setdefault(name, value)
        key = None if name in self._values else self.key_of(value)
        if key is not None and self._aliases.setdefault(name, key) == key:
            self.alias_values.update(map(id, ast.walk(value)))

    @cached_property
    def _values(self) -> Mapping[str, object]:
        """What the names stand for that a function has from around it."""
        own = own_names(self._function)
        bound = dict(self._function.bound)
        for name in own.difference(argument_names(self._function)):
            bound.pop(name, None)
        values = dict(vars(self._function.module))
        for name in own:
            values.pop(name, None)
        return values | bound

    def key_of(self, node: ast.AST) -> str | None:
        """Return the key of an expression; None if it stands for nothing that stays."""
        if isinstance(node, ast.Name):
            return self._key_of_name(node.id)
        if isinstance(node, ast.Attribute):
            return self._key_of_attribute(node)
        return self._key_of_call(node) if isinstance(node, ast.Call) else None

    def keys_of(self, nodes: Collection[ast.AST] | Iterator[ast.AST]) -> Iterator[str]:
        """Yield the keys of the expressions that have one."""
        for node in nodes:
            key = self.key_of(node)
            if key is not None:
                yield key

    def is_alias(self, node: ast.AST) -> bool:
        """Return whether an expression is a variable: to set it changes nothing that stays."""
        return isinstance(node, ast.Name) and node.id in self._aliases

    def origin_of(self, node: ast.expr) -> ast.expr:
        """Return what a variable is set to first; an expression itself if it is no variable."""
        return self._origins.get(node.id, node) if isinstance(node, ast.Name) else node

    def value_of(self, node: ast.AST) -> object:
        """Return what an expression stands for in the modules as they are; None if unknown."""
        if isinstance(node, ast.Name):
            return self._values.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value_of(node.value)
            return getattr_static(owner, node.attr, None) if _is_projects_own(owner) else None
        return None

    def steps_on(self, target: ast.expr, value: ast.expr) -> bool:
        """Return whether a value is made of what it is set to before: `self.n = self.n + 1`."""
        is_sum = isinstance(value, ast.BinOp | ast.Set | ast.List | ast.Dict)
        if not is_sum and last_name(value) not in _CHOICES:
            return False
        key = self.key_of(target)
        return key is not None and key in self.keys_of(ast.walk(value))

    def _key_of_call(self, call: ast.Call) -> str | None:
        name = last_name(call)
        if name == "getattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
            return self.key_of(ast.Attribute(call.args[0], str(call.args[1].value), ast.Load()))
        if name == "vars" and ast.unparse(call) == "vars(self)":
            return "self.__dict__"
        return name if _shares_container(self.value_of(call.func)) else None

    def _key_of_name(self, name: str) -> str | None:
        if name in self._aliases:
            return self._aliases[name]
        if name == "self" and any(map(is_container_class, self._own)):
            return CONTENT
        return name if is_of_type(self._values.get(name), *LIVE) else None

    def _key_of_attribute(self, node: ast.Attribute) -> str | None:
        if self._is_own_object(node.value):
            return f"self.{node.attr}"
        owner_key = self.key_of(node.value)
        if owner_key is not None and is_attribute(owner_key):
            return f"{owner_key}.{node.attr}"
        owner = self.value_of(node.value)
        is_new = is_of_type(owner, FunctionType) and not hasattr(owner, node.attr)
        if is_new or is_of_type(self.value_of(node), *LIVE):
            return ast.unparse(node)
        return None

    def _is_own_object(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and last_name(node) == "type":
            return len(node.args) == 1 and self._is_own_object(node.args[0])
        if isinstance(node, ast.Attribute) and node.attr == "__class__":
            return self._is_own_object(node.value)
        value = self.value_of(node)
        is_class = is_of_type(value, type) and value in self._own
        return is_class or (isinstance(node, ast.Name) and node.id in _SELF)


def is_attribute(key: str) -> bool:
    """Return whether a key is that of an attribute of the function's own object."""
    return key.startswith("self.")


def gives_next(value: object) -> bool:
    """Return whether a value is what gives the next number of a counter: `count().__next__`."""
    return is_of_type(value, MethodWrapperType) and is_of_type(value.__self__, *LIVE)


def is_container_class(kind: type) -> bool:
    """Return whether the objects of a class hold things themselves."""
    return issubclass(kind, (set, list, dict, deque))


def is_projects_class(kind: type) -> bool:
    """Return whether a class is the project's own."""
    return is_projects(sys.modules.get(kind.__module__))


def is_projects_object(value: object) -> bool:
    """Return whether a value is an object of a class of the project."""
    return not is_of_type(value, type) and is_projects_class(type(value))


def _is_projects_own(value: object) -> bool:
    """Return whether a value is a module, class, function or object of the project."""
    if is_of_type(value, ModuleType):
        return is_projects(value)
    if is_of_type(value, type, FunctionType):
        return is_projects(sys.modules.get(value.__module__ or ""))
    return is_projects_object(value)


def _shares_container(value: object) -> bool:
    """Return whether a function makes a container once, and returns it at each call."""
    return any(map(returns_container, sources_of(function_cached(value))))


def function_cached(value: object) -> object:
    """Return the function whose values another one remembers; None if a value is none such."""
    return getattr(value, "__wrapped__", None) if is_of_type(value, _CACHED) else None


def own_names(function: SourceFunction) -> set[str]:
    """Return the names of a function's arguments and variables."""
    own = set(argument_names(function))
    for node in function.nodes():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    return own - outer_names(function)


def outer_names(function: SourceFunction) -> set[str]:
    """Return the names from around a function that it may set."""
    names = set[str]()
    for node in function.nodes():
        if isinstance(node, ast.Global | ast.Nonlocal):
            names.update(node.names)
    return names
