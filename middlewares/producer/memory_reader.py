"""Find what a project's code remembers from one page or item to the next, by its source."""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import getattr_static
from itertools import chain, filterfalse
from types import MethodType

from ..spider_attributes import is_of_type, own_bases
from .assignment_reader import (
    LIVE,
    assigned,
    is_empty,
    makes_container,
    returns_container,
)
from .attribute_classes import attribute_classes, class_returned
from .code_reader import reads_or
from .name_scope import (
    CONTENT,
    NameScope,
    function_cached,
    gives_next,
    is_attribute,
    is_projects_class,
    is_projects_object,
    outer_names,
    own_names,
)
from .passing_reader import passed_on
from .source_reader import (
    MAKING,
    STATISTICS,
    SourceFunction,
    classes_with_trees,
    given_to,
    hooks_of,
    last_name,
    methods_of,
    of_self,
    reached_code,
    working_nodes,
)

#: methods of containers that put something in
_PUTS = frozenset(
    {"add", "append", "appendleft", "extend", "insert", "setdefault", "update", "increment"}
)
#: those that other objects in which something is looked for have as well, such as Bloom filters
_ADDS = frozenset({"add", "append", "insert"})
#: functions that put something into their first argument
_PUTTING_FUNCTIONS = frozenset({"heappush", "heappushpop", "insort", "insort_left"})
#: methods of containers that take something out
_TAKES = frozenset({"pop", "popleft", "popitem"})
#: what a hook is given
_OF_PAGES = frozenset({"request", "response", "item"})
#: hooks of spider middlewares that pass on what callbacks yield
_PASSING_HOOKS = frozenset({"process_spider_output", "process_spider_output_async"})


@dataclass(kw_only=True)
class _Memory:
    """Collects what functions do with attributes of their object, and with names from around them.

    Both are keys, as those of `NameScope`.
    """

    containers: frozenset[str]
    classes: Mapping[str, type]  #: attributes that are objects of the project
    put: set[str] = field(default_factory=set)  #: added to, or put into
    put_somewhere: set[str] = field(default_factory=set)  #: put into what may be no container
    searched: set[str] = field(default_factory=set)  #: by `in`
    emptied: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)  #: something is taken out
    passed: set[str] = field(default_factory=set)  #: what is inside is yielded or returned
    used: set[str] = field(default_factory=set)
    statistics: set[str] = field(default_factory=set)  #: of the process, that are read
    #: objects of the project -> their classes, and the methods that are called
    helpers: dict[str, tuple[type, set[str]]] = field(default_factory=dict)
    made: set[type] = field(default_factory=set)  #: classes of the project that are called

    def holds(self, key: str) -> bool:
        """Return whether something stays in what is put into this."""
        if not is_attribute(key) or key in self.containers:
            return True
        owner, _, name = key.rpartition(".")
        kind = self.classes.get(owner)
        return kind is not None and f"self.{name}" in _container_attributes(kind)

    @property
    def kept(self) -> set[str]:
        """What is put into, and used: a buffer that is emptied is no memory."""
        kept = (self.put & self.used) | (self.put_somewhere & self.searched)
        return kept - self.emptied | self.statistics

    @property
    def buffers(self) -> set[str]:
        """What gathers something, and passes it on when it is emptied."""
        return (self.put | self.put_somewhere) & (self.emptied | self.taken) & self.passed


@reads_or(list[str])
def component_memory(kind: type) -> list[str]:
    """Return what a component keeps from its hooks' calls and uses in them, as names."""
    hooks = hooks_of(kind)
    names = _remembered(kind, hooks) | _learned(kind, hooks)
    return _shown(kind, names - _buffers(kind, hooks & _PASSING_HOOKS))


@reads_or(list[str])
def component_buffers(kind: type) -> list[str]:
    """Return in what a spider middleware holds back what callbacks yield, as names."""
    return _shown(kind, _buffers(kind, hooks_of(kind) & _PASSING_HOOKS))


@reads_or(list[str])
def attribute_memory(kind: type, methods: Collection[str]) -> list[str]:
    """Return the attributes in which methods of a spider keep something that they use."""
    names = set[str]()
    for key in filter(is_attribute, _remembered(kind, methods)):
        names.add(key.split(".")[1])
    return sorted(names)


@reads_or(list[str])
def module_memory(kind: type, methods: Collection[str]) -> list[str]:
    """Return what methods keep in their modules or in statistics, and use; as names."""
    names = _remembered(kind, methods) - _buffers(kind, methods)
    return list(filterfalse(is_attribute, sorted(names)))


@reads_or(list[str])
def callback_buffers(kind: type, methods: Collection[str]) -> list[str]:
    """Return in what methods of a spider hold back what they yield later; as names."""
    names = set[str]()
    for key in _buffers(kind, methods):
        names.add(key.partition("self.")[2] if is_attribute(key) else key)
    return sorted(names)


@reads_or(list[str])
def module_lessons(kind: type, teaching: Iterable[str], using: Iterable[str]) -> list[str]:
    """Return what the first methods keep in their modules, and the others use; as names."""
    kept = set[str]()
    for function in reached_code(kind, teaching):
        kept.update(_kept_in_module(function))
    used = set[str]()
    for function in reached_code(kind, using):
        used.update(_loaded_names(function) - own_names(function))
    return sorted(kept & used)


def _shown(kind: type, keys: Iterable[str]) -> list[str]:
    """Return keys as people read them: an attribute with the name of its class."""
    shown = []
    for key in sorted(keys):
        _, is_own, attribute = key.partition("self.")
        shown.append(f"{kind.__qualname__}.{attribute}" if is_own else key)
    return shown


def _kept_in_module(function: SourceFunction) -> Iterator[str]:
    """Yield the names of its module that a function sets, or puts something into."""
    names = _module_names(function) | outer_names(function)
    scope = NameScope(function, ())
    for node in working_nodes(function.node):
        targets = [target for target, _ in assigned(node)]
        for holder in (*targets, *_stepped(node, scope), *_put_into(node)):
            if isinstance(holder, ast.Name) and holder.id in names:
                yield holder.id


def _module_names(function: SourceFunction) -> set[str]:
    """Return the containers and counters of its module that a function names."""
    live = set()
    for name, value in vars(function.module).items():
        if is_of_type(value, *LIVE):
            live.add(name)
    return live - own_names(function)


def _loaded_names(function: SourceFunction) -> set[str]:
    names = set()
    for node in working_nodes(function.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
    return names


def _remembered(kind: type, methods: Iterable[str]) -> set[str]:
    """Return the keys of what methods keep and use, themselves or in objects of the project."""
    memory = _read_methods(kind, frozenset(methods))
    keys = set(memory.kept)
    known = dict[tuple[type, frozenset[str]], bool]()
    for key, (helper, called) in memory.helpers.items():
        if _remembers(helper, frozenset(called), known):
            keys.add(key)
    for made in memory.made:
        keys.update(_kept_in_making(made))
    return keys


def _remembers(
    kind: type, methods: frozenset[str], known: dict[tuple[type, frozenset[str]], bool]
) -> bool:
    """Return whether an object's methods keep and use something. `known`: what was found before."""
    if (kind, methods) in known:
        return known[kind, methods]
    known[kind, methods] = False  # an object that leads back to itself
    memory = _read_methods(kind, methods)
    found = bool(memory.kept or _learned(kind, methods, only_given=True))
    for helper, called in memory.helpers.values():
        found = found or _remembers(helper, frozenset(called), known)
    known[kind, methods] = found
    return found


def _kept_in_making(kind: type) -> Iterator[str]:
    """Yield what stays from one object of a class to the next when they are made, as keys."""
    for key in _read_methods(kind, MAKING).kept:
        if not is_attribute(key):
            yield key


def _buffers(kind: type, methods: Iterable[str]) -> set[str]:
    """Return the keys of what gathers and passes on, and of objects of the project that do so."""
    memory = _read_methods(kind, frozenset(methods))
    keys = set(memory.buffers)
    for key, (helper, called) in memory.helpers.items():
        if _read_methods(helper, frozenset(called)).buffers:
            keys.add(key)
    return keys


@cache
def _read_methods(kind: type, methods: frozenset[str]) -> _Memory:
    """Return what methods, and what they call in the project, do with what stays."""
    memory = _Memory(containers=_container_attributes(kind), classes=attribute_classes(kind))
    own = own_bases(kind)
    for function in reached_code(kind, methods):
        scope = NameScope(function, own)
        _read_function(function, scope, memory)
        _read_helpers(function, scope, memory)
        memory.passed |= passed_on(function, scope)
    return memory


def _learned(kind: type, hooks: Iterable[str], *, only_given: bool = False) -> set[str]:
    """Return the attributes that one hook sets, and that another one reads, or itself before.

    `only_given`: only those that are set to something made of what the hook is given.
    """
    learned = set[str]()
    read = set[str]()
    for hook in hooks:
        functions = reached_code(kind, [hook])
        lines = _setting_lines(functions, only_given=only_given)
        learned.update(lines)
        for key, line in chain.from_iterable(map(_reads_in, functions)):
            if line < lines.get(key, line + 1):
                read.add(key)
    return learned & read


def _setting_lines(functions: Iterable[SourceFunction], *, only_given: bool) -> dict[str, int]:
    """Return in which line each attribute is set first."""
    lines = dict[str, int]()
    for function in functions:
        given = own_names(function) - {"self"}
        for key, line, value in _settings_in(function):
            if not only_given or not given.isdisjoint(map(last_name, ast.walk(value))):
                lines[key] = min(line, lines.get(key, line))
    return lines


def _settings_in(function: SourceFunction) -> Iterator[tuple[str, int, ast.expr]]:
    """Yield the attributes that a function sets to what it has learned, with line and value."""
    made = set[int]()
    for branch in function.nodes():
        if isinstance(branch, ast.If):
            made.update(map(id, _made_once(branch)))
    for node in function.nodes():
        for target, value in assigned(node):
            if of_self(target) and id(node) not in made and not is_empty(value):
                yield f"self.{last_name(target)}", target.lineno, value


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


@cache
def _container_attributes(kind: type) -> frozenset[str]:
    """Return `self.NAME` for each attribute that some code of a class makes a container."""
    keys = {"self.__dict__", CONTENT}
    for base, tree, module in classes_with_trees(kind):
        for name, value in vars(base).items():
            if is_of_type(value, *LIVE) or gives_next(value):
                keys.add(f"self.{name}")
        for target, value in chain.from_iterable(map(assigned, ast.walk(tree))):
            if makes_container(value, module) and (of_self(target) or _is_in(target, tree)):
                keys.add(f"self.{last_name(target)}")
    keys.update(_cached_containers(kind))
    return frozenset(keys)


def _cached_containers(kind: type) -> Iterator[str]:
    """Yield the cached properties of a class that are containers, as keys."""
    for method in methods_of(kind):
        decorators = set(map(last_name, method.node.decorator_list))
        if "cached_property" in decorators and returns_container(method):
            yield f"self.{method.name}"


def _is_in(target: ast.expr, tree: ast.ClassDef) -> bool:
    """Return whether a statement right in the body of a class sets this."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and target in ast.walk(statement):
            return True
    return False


def _read_function(function: SourceFunction, scope: NameScope, memory: _Memory) -> None:
    """Add to `memory` what a function puts into what, and what it uses."""
    no_use = set(scope.alias_values)
    for node in working_nodes(function.node):
        holders = list(_holders_in(node, scope, memory))
        if not isinstance(node, ast.Call):  # the value of a call may be used
            for holder in holders:
                no_use.update(map(id, ast.walk(holder)))
                no_use.update(_counted(node, scope.key_of(holder), scope))
        memory.emptied.update(scope.keys_of(_emptied(node, scope)))
        memory.taken.update(scope.keys_of(_taken_from(node)))
        memory.searched.update(scope.keys_of(_searched(node)))
        if isinstance(node, ast.Call) and last_name(node) in STATISTICS:
            memory.statistics.add(f"stats.{last_name(node)}")
    for node in working_nodes(function.node):
        is_load = isinstance(getattr(node, "ctx", None), ast.Load) or isinstance(node, ast.Call)
        if is_load and id(node) not in no_use:
            memory.used.update(scope.keys_of([node]))


def _holders_in(node: ast.AST, scope: NameScope, memory: _Memory) -> Iterator[ast.expr]:
    """Yield what keeps something by a statement or a call, once it is noted in `memory`."""
    for holder in _stepped(node, scope):
        key = scope.key_of(holder)
        if key is not None and not scope.is_alias(holder):
            memory.put.add(key)
            yield holder
    for holder in _put_into(node):
        key = scope.key_of(holder)
        if key is None:
            continue
        if memory.holds(key):
            memory.put.add(key)
            yield holder
        elif isinstance(node, ast.Expr) and last_name(node.value) in _ADDS:
            memory.put_somewhere.add(key)


def _counted(node: ast.AST, key: str | None, scope: NameScope) -> Iterator[int]:
    """Yield where a statement reads what it only counts on, by `id`: `a[k] = a.get(k, 0) + 1`."""
    if not isinstance(node, ast.Assign) or len(node.targets) > 1:  # another name gets the value
        return
    for inner in ast.walk(node.value):
        if scope.key_of(inner) == key:
            yield id(inner)


def _stepped(node: ast.AST, scope: NameScope) -> Iterator[ast.expr]:
    """Yield what a statement sets to something computed from what it was before."""
    if isinstance(node, ast.AugAssign):
        yield node.target.value if isinstance(node.target, ast.Subscript) else node.target
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if scope.steps_on(target, node.value):
                yield target


def _put_into(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement or a call puts something into."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield target.value
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _holder_of(node.value, _PUTS)
        if last_name(node.value) in _PUTTING_FUNCTIONS:
            yield from node.value.args[:1]
    elif isinstance(node, ast.Call):
        yield node.func  # `take = count().__next__` is called by its name
        yield from _holder_of(node, {"setdefault", "__next__"})
        if last_name(node) == "next":
            yield from node.args[:1]


def _holder_of(call: ast.Call, methods: Collection[str]) -> Iterator[ast.expr]:
    """Yield the object of which one of these methods is called."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in methods:
        yield call.func.value


def _emptied(node: ast.AST, scope: NameScope) -> Iterator[ast.expr]:
    """Yield what a statement empties: a buffer is no memory."""
    for target, value in assigned(node):
        if is_empty(value) and not scope.is_alias(target):
            yield target
    if isinstance(node, ast.Call):
        yield from _holder_of(node, {"clear"})


def _taken_from(node: ast.AST) -> Iterator[ast.expr]:
    """Yield that from which a statement or a call takes something out."""
    if isinstance(node, ast.Call):
        yield from _holder_of(node, _TAKES)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield target.value
    for target, value in assigned(node):
        if isinstance(value, ast.Subscript) and ast.unparse(value.value) == ast.unparse(target):
            yield target


def _searched(node: ast.AST) -> Iterator[ast.expr]:
    """Yield that in which something is looked for."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        yield node.comparators[0]


def _read_helpers(function: SourceFunction, scope: NameScope, memory: _Memory) -> None:
    """Add to `memory` the objects of the project that a function uses, with their methods."""
    for node in working_nodes(function.node):
        for expression, method in _methods_used(node):
            holder = scope.origin_of(expression)
            kind = _class_of(holder, method, scope, memory)
            if kind is not None:
                name = scope.key_of(holder) or ast.unparse(holder)
                memory.helpers.setdefault(name, (kind, set()))[1].add(method)
        if isinstance(node, ast.Call):
            _read_called(node.func, scope.value_of(node.func), memory)


def _class_of(holder: ast.expr, method: str, scope: NameScope, memory: _Memory) -> type | None:
    """Return the project's class of an object that stays; None if it is none.

    A class stays itself, with what its class methods keep.
    """
    key = scope.key_of(holder)
    if key is not None and key in memory.classes:
        return memory.classes[key]
    if isinstance(holder, ast.Call):
        return class_returned(function_cached(scope.value_of(holder.func)))
    value = scope.value_of(holder)
    if is_projects_object(value):
        return type(value)
    if not is_of_type(value, type) or not is_projects_class(value):
        return None
    is_of_class = is_of_type(getattr_static(value, method, None), classmethod, staticmethod)
    return value if is_of_class else None


def _read_called(called: ast.expr, value: object, memory: _Memory) -> None:
    """Add to `memory` a class that is called, or a method by a name: `take = Numbers().take`."""
    name = ast.unparse(called)
    if is_of_type(value, type) and is_projects_class(value):
        memory.made.add(value)
    elif is_of_type(value, MethodType) and is_projects_object(value.__self__):
        kind = type(value.__self__)
        memory.helpers.setdefault(name, (kind, set()))[1].add(value.__name__)
    elif gives_next(value):
        memory.put.add(name)
        memory.used.add(name)


def _methods_used(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield the objects of which an expression may use a method, with the method's name."""
    if isinstance(node, ast.Attribute):
        yield node.value, node.attr
    elif isinstance(node, ast.Call):
        for called in (node.func, *given_to(node)):  # as in `filter(self.is_new, items)`
            yield called, "__call__"
        if last_name(node) == "next":
            for argument in node.args[:1]:
                yield argument, "__next__"
    elif isinstance(node, ast.Subscript):
        is_read = isinstance(node.ctx, ast.Load)
        yield node.value, "__getitem__" if is_read else "__setitem__"
    for searched in _searched(node):
        yield searched, "__contains__"
