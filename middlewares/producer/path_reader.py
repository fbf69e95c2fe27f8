"""Read which values the code of a function changes, and which it reads, as paths of names.

`self.session.headers["X"] = 1` changes `self`, `session`, `headers`. A variable that is set once
stands for what it is set to.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .source_reader import SourceFunction, argument_names, last_name, working_nodes

NamePath: TypeAlias = tuple[str, ...]

#: what stands in a path for a call
CALL = "()"
#: methods that put something into their object; `set` is that of an event, too
_PUTS = frozenset(
    {
        *("add", "append", "appendleft", "extend", "insert", "setdefault", "update"),
        *("set", "set_cookie", "put", "push", "increment"),
    }
)


@dataclass(frozen=True, kw_only=True)
class PathChange:
    """Says what a statement or a call changes."""

    path: NamePath
    is_put: bool = False  #: whether something is put into a value that stays
    value: ast.expr | None = None  #: to which it is set

    @property
    def is_flag(self) -> bool:
        """Whether it switches or counts something."""
        return self.is_put or (
            isinstance(self.value, ast.Constant) and isinstance(self.value.value, bool)
        )


class PathReader:
    """Reads one function."""

    def __init__(self, function: SourceFunction) -> None:
        self.function = function
        self._nodes = list(working_nodes(function.node))
        self._globals = _global_names(self._nodes)
        self._aliases = dict[str, ast.expr]()
        #: names of its arguments and variables
        self.own = set(argument_names(function))
        self._read_variables()

    def path_of(self, node: ast.AST) -> NamePath:
        """Return the path of an expression, without keys; empty if it begins with no name."""
        parts = list[str]()
        known = set[str]()
        while not isinstance(node, ast.Name) or self._is_alias(node.id, known):
            if isinstance(node, ast.Name):
                known.add(node.id)
                node = self._aliases[node.id]
            elif isinstance(node, ast.Call):
                parts.append(CALL)
                node = node.func
            elif isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Subscript | ast.Await):
                node = node.value
            else:
                return ()
        return (node.id, *reversed(parts))

    def changes(self) -> Iterator[PathChange]:
        """Yield what the function changes, besides its own variables."""
        for node in self._nodes:
            for change in self._changes_by(node):
                if change.path:
                    yield change

    def reads(self) -> Iterator[NamePath]:
        """Yield what the function reads, without that into which it only puts something."""
        no_use = set[int]()
        for node in self._nodes:
            for holder in _holders_of(node):
                no_use.update(map(id, ast.walk(holder)))
        for node in self._nodes:
            path = () if id(node) in no_use else self._read_by(node)
            if path:
                yield path

    def calls(self) -> Iterator[ast.Call]:
        """Yield the calls in the function, without those that write logs."""
        for node in self._nodes:
            if isinstance(node, ast.Call):
                yield node

    def _is_alias(self, name: str, known: Iterable[str]) -> bool:
        return name in self._aliases and name not in known

    def _read_variables(self) -> None:
        values = dict[str, ast.expr]()
        often = set[str](self.own)
        for node in self.function.nodes():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                if node.id in self.own:
                    often.add(node.id)
                self.own.add(node.id)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = node.value
        self.own -= self._globals
        for name, value in values.items():
            if name not in often and name not in self._globals:
                self._aliases[name] = value

    def _changes_by(self, node: ast.AST) -> Iterator[PathChange]:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from self._set_in(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from self._set_in(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            yield from self._set_in(node.target, None)
        elif isinstance(node, ast.Call):
            yield from self._changed_by_call(node)

    def _set_in(self, target: ast.expr, value: ast.expr | None) -> Iterator[PathChange]:
        """Yield what is set; without a value, something is added to it."""
        if isinstance(target, ast.Tuple):
            for one in target.elts:
                yield from self._set_in(one, target)
        elif isinstance(target, ast.Subscript):
            yield PathChange(path=self.path_of(target.value), is_put=True)
        elif isinstance(target, ast.Attribute):
            yield PathChange(path=self.path_of(target), is_put=value is None, value=value)
        elif isinstance(target, ast.Name) and target.id in self._globals:
            yield PathChange(path=(target.id,), is_put=value is None, value=value)

    def _changed_by_call(self, call: ast.Call) -> Iterator[PathChange]:
        if isinstance(call.func, ast.Attribute) and call.func.attr in _PUTS:
            yield PathChange(path=self.path_of(call.func.value), is_put=True)
        elif last_name(call) == "setattr" and len(call.args) == 3:
            holder, name, value = call.args
            path = self.path_of(holder)
            if path and isinstance(name, ast.Constant):
                yield PathChange(path=(*path, str(name.value)), value=value)

    def _read_by(self, node: ast.AST) -> NamePath:
        """Return the path of what an expression reads; empty if it reads none."""
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            return self.path_of(node)
        if isinstance(node, ast.Call) and last_name(node) == "getattr" and len(node.args) > 1:
            holder, name, *_ = node.args
            path = self.path_of(holder)
            if path and isinstance(name, ast.Constant):
                return (*path, str(name.value))
        return ()


def _holders_of(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement only changes: it does not use it."""
    targets = list[ast.expr]()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Attribute | ast.Subscript):
            yield target.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr in _PUTS:
            yield called


def _global_names(nodes: Iterable[ast.AST]) -> set[str]:
    names = set[str]()
    for node in nodes:
        if isinstance(node, ast.Global):
            names.update(node.names)
    return names
