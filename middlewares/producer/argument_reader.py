"""Read what the code of a spider's callbacks changes in the values that their requests carry.

These are arguments of callbacks (cb_kwargs), and values in meta. The code is never run. A name
stands for the same in all callbacks. What another function calls its argument is its own matter:
the value has the name by which it is handed to the function.
"""

import ast
import inspect
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

from ..spider_attributes import is_of_type
from .code_reader import functions_of, reads_or, top_package
from .source_reader import module_tree

#: methods that change a value by what is in it already, or what others take out
_GATHERING = frozenset(
    {
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
    }
)
#: methods that set something in a value
_SETTING = frozenset({"update"})
#: methods that return a part of a value
_GETTING = frozenset({"get", "items", "pop", "setdefault", "values"})
#: attributes of requests and responses that hold the values by name
_CARRIERS = ("meta", "cb_kwargs")
#: what an expression stands for that is such an attribute itself: the request's own
_CARRIER = "<carrier>"
_OF_OBJECT = ("self", "cls")
#: methods that get pages of requests without a callback
_DEFAULT_CALLBACKS = frozenset({"parse", "_parse"})


@dataclass(frozen=True, kw_only=True)
class ArgumentUse:
    """Says which of the values that requests carry are changed, by name."""

    changed: frozenset[str] = frozenset()
    #: those in which pages gather something: what one has put in changes what another does
    gathered: frozenset[str] = frozenset()


@dataclass(kw_only=True)
class _Use:
    """Collects what all functions do."""

    changed: set[str] = field(default_factory=set)
    gathered: set[str] = field(default_factory=set)
    set_keys: set[tuple[str, str]] = field(default_factory=set)  #: a value's name, the key
    tested_keys: set[tuple[str, str]] = field(default_factory=set)
    tested: set[str] = field(default_factory=set)  #: names of values that are tested as a whole
    passed_on: set[tuple[str, str]] = field(default_factory=set)  #: name -> name there

    def result(self) -> ArgumentUse:
        """Return what is changed, also by that to which values are passed on."""
        gathered = self.gathered | (self.tested & self.changed)
        gathered |= {name for name, _ in self.set_keys & self.tested_keys}
        return ArgumentUse(
            changed=self._with_sources(self.changed | gathered),
            gathered=self._with_sources(gathered),
        )

    def _with_sources(self, names: set[str]) -> frozenset[str]:
        """Return these names, and those whose values are passed on to them."""
        reached = set(names)
        while True:
            more = {source for source, to in self.passed_on if to in reached} - reached
            if not more:
                return frozenset(reached)
            reached |= more


@reads_or(ArgumentUse)
def argument_use(kind: type) -> ArgumentUse:
    """Return what the methods of a class, and the functions that they call, do with arguments.

    What has no source says nothing.
    """
    found: list[tuple[FunctionType, ast.AST]] = []
    for member in functions_of(kind, top_package(kind)):
        function = inspect.unwrap(member)
        node = _node_of(function) if isinstance(function, FunctionType) else None
        if node is not None:
            found.append((function, node))
    helpers = _find_helpers(kind, found)
    parameters: dict[str, Mapping[str, str]] = {}
    for function, _ in found:
        # A method of a base class comes behind the one that stands in its place.
        parameters.setdefault(function.__name__, _values_of(function, helpers))
    use = _Use()
    for function, node in found:
        held = _values_of(function, helpers)
        _FunctionReader(use, parameters, held, function.__globals__).read(node)
    return use.result()


def _find_helpers(kind: type, found: Iterable[tuple[FunctionType, ast.AST]]) -> set[str]:
    """Return the names of functions that are only called, and so are no callbacks.

    A function outside of the class is none in any case.
    """
    functions = set[str]()
    called = set[str]()
    named = {str(getattr(rule, "callback", "")) for rule in getattr(kind, "rules", ())}
    for function, definition in found:
        if "." not in function.__qualname__:
            functions.add(function.__name__)
        called.update(_called_in(definition))
        named.update(_named_in(definition))
    return functions | (called - named - _DEFAULT_CALLBACKS)


def _called_in(definition: ast.AST) -> Iterator[str]:
    """Yield the methods that a function calls on its own object."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and _is_own_method(node.func):
            yield node.func.attr


def _named_in(definition: ast.AST) -> Iterator[str]:
    """Yield the methods that a function may hand on, and its texts: one may name a method."""
    calls = {id(node.func) for node in ast.walk(definition) if isinstance(node, ast.Call)}
    for node in ast.walk(definition):
        text = _text_in(node)
        if text is not None:
            yield text
        elif _is_own_method(node) and id(node) not in calls:
            yield node.attr


def _is_own_method(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and _is_own_object(node.value)


def _values_of(function: FunctionType, helpers: Container[str]) -> Mapping[str, str]:
    """Return the names of the values that a function is given, by its names for them, in order."""
    is_helper = function.__name__ in helpers
    names = [name for name in _parameters_of(function) if name not in _OF_OBJECT]
    return {name: f"{function.__name__}.{name}" if is_helper else name for name in names}


def _parameters_of(function: FunctionType) -> list[str]:
    code = function.__code__
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _node_of(function: FunctionType) -> ast.AST | None:
    """Return the definition of a function in the source of its module."""
    module = inspect.getmodule(function)
    if module is None:
        return None
    return _definitions_in(module).get(function.__code__.co_firstlineno)


@cache
def _definitions_in(module: ModuleType) -> Mapping[int, ast.AST]:
    """Return the functions that a module defines, by their first line."""
    tree = module_tree(module)
    definitions = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            definitions[first] = node
    return definitions


class _FunctionReader(ast.NodeVisitor):
    """Reads one function from its first line to its last."""

    def __init__(
        self,
        use: _Use,
        parameters: Mapping[str, Mapping[str, str]],
        held: Mapping[str, str],
        names: Mapping[str, Any],
    ) -> None:
        self._use = use
        #: name of a function -> its parameter -> the name of the value that it is given there
        self._parameters = parameters
        self._globals = names  #: of the function's module
        #: variable -> the name of the value that it holds, or a part of
        self._held = dict(held)
        self._set_here: set[tuple[str, str]] = set()

    def read(self, node: ast.AST) -> None:
        """Read the definition of the function."""
        self.generic_visit(node)

    # what an expression stands for

    def _value_of(self, node: ast.AST) -> str | None:
        """Return the name of the value that an expression is, or is a part of."""
        value: str | None = None
        if isinstance(node, ast.Name):
            value = self._held.get(node.id)
        elif isinstance(node, ast.NamedExpr):
            value = self._value_of(node.value)
        elif isinstance(node, ast.BoolOp):
            value = next(filter(None, map(self._value_of, node.values)), None)
        elif isinstance(node, ast.Attribute):
            value = _CARRIER if node.attr in _CARRIERS else self._value_of(node.value)
        elif isinstance(node, ast.Subscript):
            value = self._part_of(node.value, node.slice)
        elif isinstance(node, ast.Call):
            value = self._got_by(node)
        return value

    def _got_by(self, node: ast.Call) -> str | None:
        """Return the name of the value of which a call returns a part."""
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr not in _GETTING:
            return None
        return self._part_of(called.value, node.args[0] if node.args else None)

    def _part_of(self, whole: ast.AST, key: ast.AST | None) -> str | None:
        value = self._value_of(whole)
        return _text_in(key) if value == _CARRIER else value

    def _changeable(self, node: ast.AST) -> str | None:
        """Return the same as `_value_of`, and None for meta and cb_kwargs themselves."""
        value = self._value_of(node)
        return None if value == _CARRIER else value

    # assignments

    def visit_Assign(self, node: ast.Assign) -> None:
        """Read `a = b`."""
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Read `a: int = b`."""
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Read `(a := b)`."""
        self.visit(node.value)
        self._assign(node.target, node.value)

    def visit_For(self, node: ast.For) -> None:
        """Read a loop: its variable is a part of what it goes over."""
        self._assign(node.target, node.iter)
        self.generic_visit(node)

    def _assign(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            for one, its_value in zip(target.elts, values, strict=False):
                self._assign(one, its_value)
        elif isinstance(target, ast.Name):
            held = self._value_of(value)
            self._held.pop(target.id, None)
            if held is not None:
                self._held[target.id] = held
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            self._set(target, value)

    def _set(self, target: ast.Subscript | ast.Attribute, value: ast.AST) -> None:
        """Read that something is set in a value."""
        changed = self._changeable(target.value)
        if changed is None:
            return
        self._use.changed.add(changed)
        if isinstance(value, ast.BinOp) and ast.unparse(target) in map(ast.unparse, _parts(value)):
            self._use.gathered.add(changed)  # a = a + 1
        key = _key_of(target)
        if key is not None:
            self._set_here.add((changed, key))
            self._use.set_keys.add((changed, key))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Read `a += b`."""
        self.visit(node.value)
        whole = node.target if isinstance(node.target, ast.Name) else node.target.value
        changed = self._changeable(whole)
        if changed is not None:
            self._use.gathered.add(changed)

    def visit_Delete(self, node: ast.Delete) -> None:
        """Read `del a[b]`."""
        for target in node.targets:
            if isinstance(target, (ast.Subscript, ast.Attribute)):
                changed = self._changeable(target.value)
                if changed is not None:
                    self._use.gathered.add(changed)

    # calls

    def visit_Call(self, node: ast.Call) -> None:
        """Read a call: of a method that changes a value, or of what gets one."""
        called = node.func
        if isinstance(called, ast.Attribute):
            changed = self._changeable(called.value)
            if changed is not None and called.attr in _GATHERING:
                self._use.gathered.add(changed)
            elif changed is not None and called.attr in _SETTING:
                self._use.changed.add(changed)
        self._pass_on(node)
        self.generic_visit(node)

    def _pass_on(self, node: ast.Call) -> None:
        """Read where the arguments of a call go."""
        for given, name in self._arguments(node):
            value = self._changeable(given)
            if value is None:
                continue
            self._use.passed_on.add((value, name))
            if self._is_loader(node.func):
                self._use.changed.add(value)

    def _arguments(self, node: ast.Call) -> Iterator[tuple[ast.AST, str]]:
        """Yield what is given to a call, with the name that it has there."""
        parameters = self._parameters_of(node.func)
        for given, name in zip_longest(node.args, [*parameters.values()][: len(node.args)]):
            yield given, name or ""
        for keyword in node.keywords:
            if keyword.arg in _CARRIERS and isinstance(keyword.value, ast.Dict):
                for key, given in zip(keyword.value.keys, keyword.value.values, strict=True):
                    yield given, _text_in(key) or ""
            else:
                yield keyword.value, parameters.get(keyword.arg or "", "")

    def _parameters_of(self, called: ast.AST) -> Mapping[str, str]:
        """Return the parameters of a function of the project's that is called."""
        if isinstance(called, ast.Name):
            return self._parameters.get(called.id, {})
        if isinstance(called, ast.Attribute) and _is_own_object(called.value):
            return self._parameters.get(called.attr, {})
        return {}

    def _is_loader(self, called: ast.AST) -> bool:
        """Tell whether a loader of items is made, which puts into an item what it loads."""
        kind: Any = self._globals.get(called.id) if isinstance(called, ast.Name) else None
        return is_of_type(kind, type) and hasattr(kind, "load_item")

    # tests

    def visit_If(self, node: ast.If) -> None:
        """Read what is tested before what is done then."""
        self._test(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Likewise."""
        self._test(node.test)
        self.generic_visit(node)

    def _test(self, test: ast.AST) -> None:
        """Read a test; one of what this very function has set before tells of no other page."""
        for node in ast.walk(test):
            for whole, key in _looked_at(node):
                value = self._changeable(whole)
                if value is None:
                    continue
                if key is None:
                    self._use.tested.add(value)
                elif (value, key) not in self._set_here:
                    self._use.tested_keys.add((value, key))


def _looked_at(node: ast.AST) -> Iterable[tuple[ast.AST, str | None]]:
    """Return the containers into which a part of a test looks, each with the key if it has one."""
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return [(node.value, _key_of(node))]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return [(node.comparators[0], _text_in(node.left))]
    if not isinstance(node, ast.Call) or not node.args:
        return []
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr == "get":
        return [(called.value, _text_in(node.args[0]))]
    if isinstance(called, ast.Name) and called.id == "len":
        return [(node.args[0], None)]
    return []


def _parts(node: ast.BinOp) -> Iterator[ast.AST]:
    """Yield the operands of a sum or the like."""
    yield node.left
    yield node.right


def _key_of(node: ast.Subscript | ast.Attribute) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else _text_in(node.slice)


def _is_own_object(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in _OF_OBJECT


def _text_in(node: ast.AST | None) -> str | None:
    """Return the text that an expression is written as."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None
