"""What the code of a project's classes speaks of: names, and the attributes of a spider. Only read, never run."""

import dis
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from types import CodeType, FunctionType
from typing import Any

from ..spider_attributes import own_bases

#: methods of containers that put something in
KEEPS = frozenset({"add", "append", "extend", "setdefault", "update"})
#: instructions that load a variable, that read an attribute, and that begin `x[key] += …`
_VARIABLE, _READ, _IN_PLACE = (
    ("LOAD_FAST", "LOAD_DEREF"),
    ("LOAD_ATTR", "LOAD_METHOD"),
    ("COPY", "DUP_TOP_TWO"),
)


@dataclass(frozen=True, kw_only=True)
class AttributeUse:
    """What code does with attributes of its own object."""

    read: frozenset[str]
    kept: frozenset[str]  #: set, or something is put into their values


def names_in(kind: type, package: str) -> set[str]:
    """All names that the project's own code of this class uses: of functions, attributes and modules.

    The functions of the project's package that it calls are its code as well.
    """
    codes = chain.from_iterable(_codes_of(function) for function in _functions_of(kind, package))
    return set(chain.from_iterable(code.co_names for code in codes))


def keeps_something(kind: type) -> bool:
    """Whether the code of this class puts something into a container."""
    stores = (
        step.opname == "STORE_SUBSCR"
        for code in _codes(kind)
        for step in dis.get_instructions(code)
    )
    names = chain.from_iterable(code.co_names for code in _codes(kind))
    return not KEEPS.isdisjoint(names) or any(stores)


def attribute_use(kind: type, methods: Iterable[str]) -> AttributeUse:
    """What these methods of the class, and those that they call on their object, do with its attributes."""
    read, kept = set[str](), set[str]()
    seen, waiting = set[str](), [*methods]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for code in _codes_named(kind, name):
            used = _use(code)
            read |= used.read
            kept |= used.kept
        waiting += [one for one in read if callable(getattr(kind, one, None))]
    return AttributeUse(read=frozenset(read), kept=frozenset(kept))


def _codes_named(kind: type, name: str) -> Iterator[CodeType]:
    """The code of a method, and of those of base classes that it calls by its own name."""
    defined = [vars(base)[name] for base in own_bases(kind) if name in vars(base)]
    for member in defined or [getattr(kind, name, None)]:
        codes = list(_codes_of(member))
        yield from codes
        if not any(name in code.co_names for code in codes):
            return


def _use(code: CodeType) -> AttributeUse:
    read, kept = set[str](), set[str]()
    steps = list(dis.get_instructions(code))
    for at, (before, step) in enumerate(pairwise(steps), 1):
        if not before.opname.startswith(_VARIABLE) or not _is_self(before.argval):
            continue
        if step.opname == "STORE_ATTR":
            kept.add(step.argval)
        elif step.opname in _READ:
            read.add(step.argval)
            if _is_kept(steps[at + 1 : at + 3]):
                kept.add(step.argval)
    return AttributeUse(read=frozenset(read), kept=frozenset(kept))


def _is_self(variable: Any) -> bool:
    """Whether a variable that is loaded last is `self`: newer versions of Python load two at once."""
    return variable == "self" or (isinstance(variable, tuple) and variable[-1] == "self")


def _is_kept(following: list[dis.Instruction]) -> bool:
    """Whether what follows the reading of an attribute puts something into its value."""
    is_call = bool(following) and following[0].opname in _READ and following[0].argval in KEEPS
    return is_call or any(step.opname in ("STORE_SUBSCR", *_IN_PLACE) for step in following[1:])


def _codes(kind: type) -> Iterator[CodeType]:
    return chain.from_iterable(map(_codes_of, _members(kind)))


def _members(kind: type) -> Iterator[Any]:
    return chain.from_iterable(vars(base).values() for base in own_bases(kind))


def _functions_of(kind: type, package: str) -> list[FunctionType]:
    """The methods of a class, and the functions of this package that they call, directly or not."""
    waiting = [one for member in _members(kind) if (one := _function(member))]
    found = dict.fromkeys(waiting)
    while waiting:
        called = [
            one
            for one in _called_by(waiting.pop())
            if one not in found and top_package(one) == package
        ]
        found |= dict.fromkeys(called)
        waiting += called
    return list(found)


def _called_by(function: FunctionType) -> Iterator[FunctionType]:
    """The functions of modules that a function names."""
    for name in set(chain.from_iterable(code.co_names for code in _codes_of(function))):
        one = function.__globals__.get(name)
        if isinstance(one, FunctionType):
            yield one


def top_package(defined: type | FunctionType) -> str:
    """The name of the package in which a class or function is defined, without those below it."""
    return (defined.__module__ or "").partition(".")[0]


def _function(member: Any) -> FunctionType | None:
    function = getattr(member, "__func__", getattr(member, "fget", member))
    return function if isinstance(function, FunctionType) else None


def _codes_of(member: Any) -> Iterator[CodeType]:
    """The code of a function or method, and of all that is defined inside of it."""
    function = _function(member)
    if function is not None:
        yield from _with_inner(function.__code__)
        if hasattr(function, "__wrapped__"):
            yield from _codes_of(function.__wrapped__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
