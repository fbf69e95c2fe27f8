"""Find what a project's code remembers from one page or item to the next, by its source."""

import ast
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, filterfalse

from ..spider_attributes import is_of_type
from .code_reader import reads_or
from .source_reader import (
    SourceFunction,
    argument_names,
    class_trees,
    hooks_of,
    last_name,
    of_self,
    reached_code,
    working_nodes,
)

#: methods of containers that put something in
_PUTS = frozenset(
    {"add", "append", "appendleft", "extend", "insert", "setdefault", "update", "increment"}
)
#: what makes a container
_CONTAINERS = frozenset(
    {"set", "list", "dict", "deque", "defaultdict", "Counter", "OrderedDict", "fromkeys"}
)
#: the types of containers and counters of a module
_LIVE = (set, list, dict, deque, int, count)
#: calls that read the statistics of the process
_STATISTICS = frozenset({"get_value", "get_stats"})
#: what a hook is given
_OF_PAGES = frozenset({"request", "response", "item"})


@dataclass(kw_only=True)
class _Memory:
    """Collects what functions do with attributes of their object, and with names of the module.

    Both are keys: `self.NAME` and `NAME`.
    """

    containers: frozenset[str]
    put: set[str] = field(default_factory=set)  #: added to, or put into
    emptied: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def holds(self, key: str, statement: ast.AST) -> bool:
        """Return whether something stays in what a statement changes."""
        return (
            not _is_attribute(key) or key in self.containers or isinstance(statement, ast.AugAssign)
        )


@reads_or(list[str])
def component_memory(kind: type) -> list[str]:
    """Return what a component keeps from its hooks' calls and uses in them, as names."""
    hooks = hooks_of(kind)
    functions = reached_code(kind, hooks)
    containers = frozenset(_container_attributes(kind))
    names = _remembered(functions, containers) | _learned(kind, hooks)
    shown = []
    for name in sorted(names):
        _, is_attribute, attribute = name.partition("self.")
        shown.append(f"{kind.__qualname__}.{attribute}" if is_attribute else name)
    return shown


@reads_or(list[str])
def module_memory(kind: type, methods: Iterable[str]) -> list[str]:
    """Return what methods keep in their modules or in statistics, and use; as names."""
    names = _remembered(reached_code(kind, methods), frozenset())
    return list(filterfalse(_is_attribute, sorted(names)))


@reads_or(list[str])
def module_lessons(kind: type, teaching: Iterable[str], using: Iterable[str]) -> list[str]:
    """Return what the first methods keep in their modules, and the others use; as names."""
    kept = set[str]()
    for function in reached_code(kind, teaching):
        kept.update(_kept_in_module(function))
    used = set[str]()
    for function in reached_code(kind, using):
        used.update(_loaded_names(function) - _own_names(function))
    return sorted(kept & used)


def _kept_in_module(function: SourceFunction) -> Iterator[str]:
    """Yield the names of its module that a function sets, or puts something into."""
    names = _module_names(function) | _global_names(function)
    for node in working_nodes(function.node):
        targets = [target for target, _ in assigned(node)]
        for holder in (*targets, *_put_into(node)):
            if isinstance(holder, ast.Name) and holder.id in names:
                yield holder.id


def _loaded_names(function: SourceFunction) -> set[str]:
    names = set()
    for node in working_nodes(function.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
    return names


def _is_attribute(key: str) -> bool:
    return key.startswith("self.")


def _remembered(functions: Iterable[SourceFunction], containers: frozenset[str]) -> set[str]:
    memory = _Memory(containers=containers)
    statistics = set[str]()
    for function in functions:
        _read_function(function, memory)
        for node in working_nodes(function.node):
            if isinstance(node, ast.Call) and last_name(node) in _STATISTICS:
                statistics.add(f"stats.{last_name(node)}")
    return ((memory.put & memory.used) - memory.emptied) | statistics


def _learned(kind: type, hooks: Iterable[str]) -> set[str]:
    """Return the attributes that one hook sets, and that another one reads, or itself before."""
    learned = set[str]()
    read = set[str]()
    for hook in hooks:
        functions = reached_code(kind, [hook])
        lines = _setting_lines(functions)
        learned.update(lines)
        for key, line in chain.from_iterable(map(_reads_in, functions)):
            if line < lines.get(key, line + 1):
                read.add(key)
    return learned & read


def _setting_lines(functions: Iterable[SourceFunction]) -> dict[str, int]:
    """Return in which line each attribute is set first."""
    lines = dict[str, int]()
    for key, line in chain.from_iterable(map(_settings_in, functions)):
        lines[key] = min(line, lines.get(key, line))
    return lines


def _settings_in(function: SourceFunction) -> Iterator[tuple[str, int]]:
    """Yield the attributes that a function sets to what it has learned, each with its line."""
    made = set[int]()
    for branch in function.nodes():
        if isinstance(branch, ast.If):
            made.update(map(id, _made_once(branch)))
    for node in function.nodes():
        for target, value in assigned(node):
            if of_self(target) and id(node) not in made and not _is_empty(value):
                yield f"self.{last_name(target)}", target.lineno


def _reads_in(function: SourceFunction) -> Iterator[tuple[str, int]]:
    for node in working_nodes(function.node):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and of_self(node):
            yield f"self.{node.attr}", node.lineno


def _made_once(branch: ast.If) -> Iterator[ast.AST]:
    """Yield what makes a thing that is not there yet, of nothing that came with a page."""
    tested = set(map(last_name, filter(of_self, ast.walk(branch.test))))
    for statement in branch.body:
        for node in ast.walk(statement):
            for target, value in assigned(node):
                is_of_page = not _OF_PAGES.isdisjoint(map(last_name, ast.walk(value)))
                if of_self(target) and last_name(target) in tested and not is_of_page:
                    yield node


def _container_attributes(kind: type) -> Iterator[str]:
    """Yield `self.NAME` for each attribute that some code of a class makes a container."""
    for tree, _ in class_trees(kind):
        for node in ast.walk(tree):
            for target, value in assigned(node):
                if not _makes_container(value):
                    continue
                if of_self(target):
                    yield f"self.{last_name(target)}"
                elif isinstance(target, ast.Name) and node in tree.body:
                    yield f"self.{target.id}"


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


def _makes_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return last_name(value) in _CONTAINERS or last_name(value) == "count"
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp)


def _is_empty(value: ast.expr) -> bool:
    """Return whether a value is an empty container or 0: a buffer is emptied so."""
    if isinstance(value, ast.Call):
        return last_name(value) in _CONTAINERS and not value.args
    if isinstance(value, ast.Constant):
        return value.value == 0
    entries = getattr(value, "elts", getattr(value, "keys", None))
    return entries == []


def _read_function(function: SourceFunction, memory: _Memory) -> None:
    """Add to `memory` what a function puts into what, and what it uses."""
    names = _module_names(function)
    no_use = set[int]()
    for node in working_nodes(function.node):
        for holder in _put_into(node):
            key = _key_of(holder, names)
            if key is None or not memory.holds(key, node):
                continue
            memory.put.add(key)
            if not isinstance(node, ast.Call):  # the value of a call may be used
                no_use.update(map(id, ast.walk(holder)))
        memory.emptied.update(_keys_of(_emptied(node), names))
    for node in working_nodes(function.node):
        if isinstance(getattr(node, "ctx", None), ast.Load) and id(node) not in no_use:
            memory.used.update(_keys_of([node], names))


def _put_into(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement or a call adds to, or puts something into."""
    if isinstance(node, ast.AugAssign):
        yield node.target.value if isinstance(node.target, ast.Subscript) else node.target
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield target.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _holder_of(node.value, _PUTS)
    elif isinstance(node, ast.Call):
        yield from _holder_of(node, {"setdefault"})
        if last_name(node) == "next":
            yield from node.args[:1]


def _holder_of(call: ast.Call, methods: Collection[str]) -> Iterator[ast.expr]:
    """Yield the object of which one of these methods is called."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in methods:
        yield call.func.value


def _emptied(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement empties: a buffer is no memory."""
    for target, value in assigned(node):
        if _is_empty(value):
            yield target
    if isinstance(node, ast.Call):
        yield from _holder_of(node, {"clear"})


def _keys_of(nodes: Iterable[ast.AST], names: Collection[str]) -> Iterator[str]:
    for node in nodes:
        key = _key_of(node, names)
        if key is not None:
            yield key


def _key_of(node: ast.AST, names: Collection[str]) -> str | None:
    """Return the key of an expression; None if it is neither of `self` nor one of the names."""
    if isinstance(node, ast.Name):
        return node.id if node.id in names else None
    return f"self.{last_name(node)}" if of_self(node) else None


def _module_names(function: SourceFunction) -> set[str]:
    """Return the containers and counters of its module that a function names."""
    live = set()
    for name, value in vars(function.module).items():
        if is_of_type(value, *_LIVE):
            live.add(name)
    return live - _own_names(function)


def _own_names(function: SourceFunction) -> set[str]:
    """Return the names of a function's arguments and variables."""
    own = set(argument_names(function))
    for node in function.nodes():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    return own - _global_names(function)


def _global_names(function: SourceFunction) -> set[str]:
    """Return the names of its module that a function may set."""
    names = set[str]()
    for node in function.nodes():
        if isinstance(node, ast.Global):
            names.update(node.names)
    return names
