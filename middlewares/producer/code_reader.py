"""Read which names and attributes the code of a project's classes uses; it is never run."""

import dis
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from inspect import getattr_static
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, ParamSpec, TypeVar

from ..spider_attributes import is_of_type, own_bases

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger(__name__)

#: methods of containers that put something in
KEEPS = frozenset({"add", "append", "extend", "setdefault", "update"})
#: where class methods, properties and cached properties have their function
_INNER = ("__func__", "fget", "func")
#: instructions that load a variable
_VARIABLE = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL")
#: instructions that read an attribute
_READ = ("LOAD_ATTR", "LOAD_METHOD")
#: instructions that begin `x[key] += …`
_IN_PLACE = ("COPY", "DUP_TOP_TWO")
#: instructions that begin `x.name += …`
_COPIES = ("COPY", "DUP_TOP")


@dataclass(frozen=True, kw_only=True)
class AttributeUse:
    """Says what code does with attributes of its own object."""

    read: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()  #: set, or something is put into their values


def reads_or(empty: Callable[[], T]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a reader return `empty()` where it raises: code of any kind may come before it.

    What a reader finds is only told, so that no crawl ends because of it.
    """

    def decorate(reader: Callable[P, T]) -> Callable[P, T]:
        @wraps(reader)
        def read(*args: P.args, **kwargs: P.kwargs) -> T:
            """Return what the reader finds."""
            try:
                return reader(*args, **kwargs)
            except Exception:
                logger.debug("The code cannot be read by %s", reader.__name__, exc_info=True)
                return empty()

        return read

    return decorate


@reads_or(set[str])
def names_in(kind: type, package: str) -> set[str]:
    """Return all names that the project's own code of this class uses.

    These are names of functions, attributes and modules. The functions of the project's package
    that it calls are its code as well.
    """
    names: set[str] = set()
    for function in functions_of(kind, package):
        names |= _names_used_by(function)
    return names


@reads_or(set[str])
def names_of_method(kind: type, method: str) -> set[str]:
    """Return all names that the project's own code of this method uses."""
    names: set[str] = set()
    for base in own_bases(kind):
        for code in _codes_of(vars(base).get(method)):
            names.update(code.co_names)
    return names


@reads_or(bool)
def keeps_something(kind: type) -> bool:
    """Return whether the code of this class puts something into a container."""
    for member in _members(kind):
        for code in _codes_of(member):
            if not KEEPS.isdisjoint(code.co_names):
                return True
            if any(step.opname == "STORE_SUBSCR" for step in dis.get_instructions(code)):
                return True
    return False


@reads_or(AttributeUse)
def attribute_use(kind: type, methods: Iterable[str]) -> AttributeUse:
    """Return what methods of a class do with attributes of their object.

    The methods that they call on their object are followed, and the properties that they read or
    set. What they do with attributes of its class, by the name of that class, counts as well.
    """
    holders = {"self", *(base.__name__ for base in own_bases(kind))}
    read: set[str] = set()
    kept: set[str] = set()
    seen: set[str] = set()
    setters: set[str] = set()
    waiting = list(methods)
    while waiting:
        method = waiting.pop()
        if method in seen:
            continue
        seen.add(method)
        codes = list(_codes_named(kind, method))
        while codes:
            used = _use_in(codes.pop(), holders)
            read |= used.read
            kept |= used.kept
            for name in used.kept - setters:
                setters.add(name)
                codes += _codes_of(_setter_of(_member(kind, name)))
        waiting += filter(partial(_has_code, kind), read - seen)
    return AttributeUse(read=frozenset(read), kept=frozenset(kept))


def _has_code(kind: type, name: str) -> bool:
    """Return whether this is the name of a method or a property."""
    return function_in(_member(kind, name)) is not None


def _setter_of(member: Any) -> Any:
    return member.fset if is_of_type(member, property) else None


def _member(kind: type, name: str) -> Any:
    """Return what a class has by this name, without asking it: a descriptor may run code."""
    return getattr_static(kind, name, None)


def _codes_named(kind: type, name: str) -> Iterator[CodeType]:
    """Yield the code of a method, and of those of base classes that it calls by its own name."""
    defined = [vars(base)[name] for base in own_bases(kind) if name in vars(base)]
    for member in defined or [_member(kind, name)]:
        calls_next = False
        for code in _codes_of(member):
            yield code
            calls_next |= name in code.co_names
        if not calls_next:
            return


def _use_in(code: CodeType, holders: Collection[str]) -> AttributeUse:
    """Return what a code object does with attributes of variables with these names."""
    read: set[str] = set()
    kept: set[str] = set()
    steps = list(dis.get_instructions(code))
    for at, (before, step) in enumerate(pairwise(steps), 1):
        if not before.opname.startswith(_VARIABLE) or _last_of(before.argval) not in holders:
            continue
        following = steps[at + 1 : at + 3]
        if step.opname == "STORE_ATTR":
            kept.add(step.argval)
        elif step.opname in _COPIES and following and following[0].opname in _READ:
            kept.add(following[0].argval)
        elif step.opname in _READ:
            read.add(step.argval)
            if _is_kept(following):
                kept.add(step.argval)
    return AttributeUse(read=frozenset(read), kept=frozenset(kept))


def _last_of(variable: Any) -> Any:
    """Return the name of the variable that is loaded last: newer Pythons load two at once."""
    return variable[-1] if isinstance(variable, tuple) else variable


def _is_kept(following: list[dis.Instruction]) -> bool:
    """Return whether what follows the reading of an attribute puts something into its value."""
    if not following:
        return False
    first, *others = following
    if first.opname in _READ and first.argval in KEEPS:
        return True
    return any(step.opname in ("STORE_SUBSCR", *_IN_PLACE) for step in others)


def _members(kind: type) -> Iterator[Any]:
    for base in own_bases(kind):
        yield from vars(base).values()


def functions_of(kind: type, package: str) -> list[FunctionType]:
    """Return the methods of a class, and the package's functions that they call at any depth."""
    methods = map(function_in, _members(kind))
    waiting = [method for method in methods if method is not None]
    found = dict.fromkeys(waiting)
    while waiting:
        for function in _called_by(waiting.pop()):
            if function not in found and top_package(function) == package:
                found[function] = None
                waiting.append(function)
    return list(found)


def _called_by(function: FunctionType) -> Iterator[FunctionType]:
    """Yield the functions of modules that a function names."""
    for name in _names_used_by(function):
        called = function.__globals__.get(name)
        if is_of_type(called, FunctionType):
            yield called


def _names_used_by(function: FunctionType) -> set[str]:
    names: set[str] = set()
    for code in _codes_of(function):
        names.update(code.co_names)
    return names


def top_package(defined: type | FunctionType) -> str:
    """Return the topmost package in which a class or function is defined, by name."""
    return (defined.__module__ or "").partition(".")[0]


def function_in(member: Any) -> FunctionType | None:
    """Return the function in a method or property, if it has one."""
    if is_of_type(member, FunctionType):
        return member
    try:
        for name in _INNER:
            function = getattr(member, name, None)
            if is_of_type(function, FunctionType):
                return function
    except Exception:  # noqa: BLE001 - a lazy proxy may raise anything
        return None
    return None


def _codes_of(member: Any) -> Iterator[CodeType]:
    """Yield the code of a function or method, and of all that is defined inside of it."""
    function = function_in(member)
    if function is not None:
        yield from _with_inner(function.__code__)
        if hasattr(function, "__wrapped__"):
            yield from _codes_of(function.__wrapped__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
