"""Read what statements set, and whether that is a container, or nothing."""

import ast
from collections import deque
from collections.abc import Iterator
from inspect import CO_GENERATOR
from itertools import count
from types import FunctionType, GeneratorType, ModuleType

from ..spider_attributes import is_of_type
from .source_reader import SourceFunction, last_name, named_object

#: the types of values in which something stays: containers, counters, and what gives numbers
LIVE = (set, list, dict, deque, int, count, GeneratorType)
#: what makes a container
_CONTAINERS = frozenset(
    {"set", "list", "dict", "deque", "defaultdict", "Counter", "OrderedDict", "fromkeys"}
)


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a statement sets, each with its value."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _paired(target, node.value)


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the single pairs of `a, b = c, d`."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def makes_container(value: ast.expr, module: ModuleType) -> bool:
    """Return whether the value of an expression in a module is a new container or counter."""
    if isinstance(value, ast.Attribute) and value.attr == "__next__":
        return makes_container(value.value, module)
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp)
    names = {last_name(value)}
    for keyword in value.keywords:
        if keyword.arg == "default_factory":
            names.add(last_name(keyword.value))
    if not names.isdisjoint({*_CONTAINERS, "count"}):
        return True
    made = named_object(value.func, module)
    if is_of_type(made, FunctionType):
        return bool(made.__code__.co_flags & CO_GENERATOR)
    return is_of_type(made, type) and issubclass(made, LIVE)


def returns_container(function: SourceFunction) -> bool:
    """Return whether a function makes a container and returns it."""
    made = set[str]()
    for node in function.nodes():
        for target, value in assigned(node):
            if isinstance(target, ast.Name) and makes_container(value, function.module):
                made.add(target.id)
    for node in function.nodes():
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        if last_name(node.value) in made or makes_container(node.value, function.module):
            return True
    return False


def is_empty(value: ast.expr) -> bool:
    """Return whether a value is an empty container or 0: a buffer is emptied so."""
    if isinstance(value, ast.Call):
        return last_name(value) in _CONTAINERS and not value.args
    if isinstance(value, ast.Constant):
        return value.value == 0
    entries = getattr(value, "elts", getattr(value, "keys", None))
    return entries == []
