"""Find which attributes of the spider the project's code sets on the index and reads in jobs.

The code of jobs is that of target callbacks, of what they call, and of components.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from .code_reader import attribute_use, reads_or
from .memory_reader import module_lessons
from .path_reader import CALL, PathChange, PathReader
from .place_reader import shared_places
from .source_reader import (
    SourceFunction,
    argument_names,
    given_to,
    hooks_of,
    last_name,
    methods_of,
    of_self,
    reached_code,
    working_nodes,
)

#: calls and attributes that read attributes by names that are values
_BY_NAME = frozenset({"getattr", "attrgetter", "vars", "__dict__"})
#: what a spider is called in code that is given one
_SPIDER = "spider"
#: attributes that Scrapy's own components read of a job's spider, at each request or page
_OF_SCRAPY = frozenset({"allowed_domains", "handle_httpstatus_list"})
#: methods with which a walk begins
_STARTS = ("start", "start_requests")


@reads_or(frozenset[str])
def read_in_jobs(
    kind: type, callbacks: Iterable[str], components: Iterable[type]
) -> frozenset[str]:
    """Return the attributes of the spider that these target callbacks and components read.

    Scrapy's own components are among them.
    """
    logged = _only_logged(kind, callbacks)
    names = (attribute_use(kind, callbacks).read - logged) | _OF_SCRAPY
    given = _read_in_callbacks(kind, callbacks) | _read_in_components(components)
    return names | given | attribute_use(kind, given).read


@reads_or(frozenset[str])
def surely_read(kind: type, callbacks: Iterable[str]) -> frozenset[str]:
    """Return the attributes of which the code of these target callbacks tells that it reads them.

    What the callbacks set themselves is left out: it may be a cache, or a count of their own. What
    Scrapy reads is there in any case: by it, requests are made or dropped, and pages taken or not.
    """
    use = attribute_use(kind, callbacks)
    names = set(use.read)
    for function in filter(_is_method, reached_code(kind, callbacks)):
        names.update(_read_by_getattr(function))
    return (frozenset(names) - use.kept - _only_logged(kind, callbacks)) | _OF_SCRAPY


@reads_or(frozenset[str])
def set_on_index(kind: type, callbacks: Iterable[str]) -> frozenset[str]:
    """Return the attributes that callbacks of a spider set, without those of target pages.

    What target callbacks set themselves is left out, too.
    """
    others = index_callbacks(kind, callbacks)
    names = set(attribute_use(kind, others).kept)
    of_targets = reached_code(kind, callbacks)
    for function in reached_code(kind, others):
        if function not in of_targets:
            names.update(attributes_set(function))
    for function in of_targets:
        names.difference_update(attributes_set(function, is_itself=True))
    return frozenset(names) - attribute_use(kind, callbacks).kept


@reads_or(list[str])
def learned_on_index(
    kind: type, callbacks: Collection[str], components: Iterable[type] = ()
) -> list[str]:
    """Return where outside of the spider a walk keeps something that jobs use.

    These are names and attributes of modules, classes and objects of the project, and variables of
    the environment.
    """
    others = index_callbacks(kind, callbacks)
    using = reached_code(kind, callbacks)
    for component in components:
        using += reached_code(component, hooks_of(component))
    names = set(module_lessons(kind, others, callbacks))
    return sorted(names.union(shared_places(kind, reached_code(kind, others), using)))


@reads_or(frozenset[str])
def made_by_properties(kind: type, methods: Iterable[str]) -> frozenset[str]:
    """Return the attributes that only properties set, to keep what they return.

    Each process makes them for itself, and nothing is remembered in them.
    """
    made = set[str]()
    changed = set[str]()
    for function in reached_code(kind, methods):
        changes = PathReader(function).changes()
        for change in filter(_is_of_itself, changes):
            is_made = len(change.path) == 2 and not change.is_put and _is_getter(function)
            if is_made and not _names_itself(change):
                made.add(change.path[1])
            else:
                changed.add(change.path[1])
    return frozenset(made - changed)


def _is_of_itself(change: PathChange) -> bool:
    return change.path[0] == "self" and len(change.path) > 1


def _is_getter(function: SourceFunction) -> bool:
    for decorator in function.node.decorator_list:
        if last_name(decorator).endswith("property"):
            return True
    return False


def _names_itself(change: PathChange) -> bool:
    """Return whether an attribute is set to a value that is made of what it was."""
    return change.value is not None and change.path[-1] in map(last_name, ast.walk(change.value))


def attributes_set(function: SourceFunction, *, is_itself: bool = False) -> Iterator[str]:
    """Yield the attributes of the spider that a function sets or changes inside.

    is_itself: only those that are set, or into which something is put, and not into a part of them.
    """
    holders = {"self"} if function.is_method else spider_arguments(function)
    for change in PathReader(function).changes():
        holder, *names = change.path
        if holder not in holders or not names or CALL in names[1:2]:
            continue
        if not is_itself or len(names) == 1:
            yield names[0]


def index_callbacks(kind: type, callbacks: Iterable[str]) -> set[str]:
    """Return the names of a spider's callbacks and starts that no target callback calls."""
    of_targets = set(map(_name_of, reached_code(kind, callbacks)))
    return set(map(_name_of, filter(_is_index_callback, methods_of(kind)))) - of_targets


def _is_method(function: SourceFunction) -> bool:
    return function.is_method


def _only_logged(kind: type, callbacks: Iterable[str]) -> set[str]:
    """Return the attributes that callbacks, and methods that they call, only write to logs."""
    named = set[str]()
    used = set[str]()
    for function in filter(_is_method, reached_code(kind, callbacks)):
        named.update(_of_itself(function.nodes()))
        used.update(_of_itself(working_nodes(function.node)))
    return named - used


def _of_itself(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of attributes of `self` among the parts of a method."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and of_self(node):
            yield node.attr


def _read_by_getattr(function: SourceFunction) -> Iterator[str]:
    """Yield the attributes that a method reads by `getattr` of itself and a written name."""
    for node in working_nodes(function.node):
        if not isinstance(node, ast.Call) or last_name(node) != "getattr" or len(node.args) < 2:
            continue
        holder, name, *_ = node.args
        if isinstance(holder, ast.Name) and holder.id == "self" and isinstance(name, ast.Constant):
            yield str(name.value)


def _name_of(function: SourceFunction) -> str:
    return function.name


def _is_index_callback(method: SourceFunction) -> bool:
    return method.name in _STARTS or "response" in argument_names(method)


def _read_in_callbacks(kind: type, methods: Iterable[str]) -> frozenset[str]:
    """Return the attributes that methods of a spider read by name, or that their helpers read."""
    names = set[str]()
    functions = reached_code(kind, methods)
    gives_itself = any(map(_gives_itself, functions))
    for function in functions:
        if function.is_method:
            names.update(_read_by_name(function, {"self", _SPIDER}))
        elif gives_itself:
            holders = spider_arguments(function)
            names.update(_read_of(function, holders))
            names.update(_read_by_name(function, holders))
    return frozenset(names)


def _read_in_components(kinds: Iterable[type]) -> frozenset[str]:
    """Return the attributes of the spider that components read."""
    names = set[str]()
    for kind in kinds:
        for function in reached_code(kind, hooks_of(kind)):
            names.update(_read_of(function, {_SPIDER}))
            names.update(_read_by_name(function, {_SPIDER}))
    return frozenset(names)


def _gives_itself(function: SourceFunction) -> bool:
    """Return whether a method passes its spider on as an argument."""
    if not function.is_method:
        return False
    for node in function.nodes():
        if isinstance(node, ast.Call):
            for value in given_to(node):
                if isinstance(value, ast.Name) and value.id == "self":
                    return True
    return False


def spider_arguments(function: SourceFunction) -> set[str]:
    """Return the arguments of a function of a module in which a function may have the spider."""
    names = set(argument_names(function))
    return names & {_SPIDER, "self"} or names - {"response", "request", "item"}


def _read_of(function: SourceFunction, holders: set[str]) -> Iterator[str]:
    """Yield the attributes that a function reads of what has one of these names."""
    for node in working_nodes(function.node):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        holder = node.value
        if isinstance(holder, ast.Name | ast.Attribute) and last_name(holder) in holders:
            yield node.attr


def _read_by_name(function: SourceFunction, holders: set[str]) -> Iterator[str]:
    """Yield the texts in a function that reads attributes of these by names that are values."""
    nodes = list(working_nodes(function.node))
    if not any(_reads_by_name(node, holders) for node in nodes):
        return
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _reads_by_name(node: ast.AST, holders: set[str]) -> bool:
    if isinstance(node, ast.Call) and last_name(node) in _BY_NAME:
        return not holders.isdisjoint(map(last_name, node.args))
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return last_name(node.value) in holders
    return False
