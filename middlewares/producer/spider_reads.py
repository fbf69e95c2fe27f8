"""Find which attributes of the spider the project's code sets on the index and reads in jobs.

The code of jobs is that of target callbacks, of what they call, and of components.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from .code_reader import attribute_use, reads_or
from .memory_reader import module_lessons
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
    return names | _read_in_callbacks(kind, callbacks) | _read_in_components(components)


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
    others = _index_callbacks(kind, callbacks)
    names = set(attribute_use(kind, others).kept)
    for function in reached_code(kind, others):
        names.update(_set_otherwise(function))
    return frozenset(names) - attribute_use(kind, callbacks).kept


@reads_or(list[str])
def learned_on_index(kind: type, callbacks: Collection[str]) -> list[str]:
    """Return the names of modules in which a walk keeps something that target callbacks use."""
    return module_lessons(kind, _index_callbacks(kind, callbacks), callbacks)


def _index_callbacks(kind: type, callbacks: Iterable[str]) -> set[str]:
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


def _set_otherwise(function: SourceFunction) -> Iterator[str]:
    """Yield the attributes that `setattr`, or an attribute of theirs, changes."""
    for node in function.nodes():
        if isinstance(node, ast.Call) and last_name(node) == "setattr" and len(node.args) == 3:
            holder, name, _ = node.args
            if last_name(holder) in ("self", _SPIDER) and isinstance(name, ast.Constant):
                yield str(name.value)
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if of_self(node.value):
            yield last_name(node.value)


def _read_in_callbacks(kind: type, methods: Iterable[str]) -> frozenset[str]:
    """Return the attributes that methods of a spider read by name, or that their helpers read."""
    names = set[str]()
    functions = reached_code(kind, methods)
    gives_itself = any(map(_gives_itself, functions))
    for function in functions:
        if function.is_method:
            names.update(_read_by_name(function, {"self", _SPIDER}))
        elif gives_itself:
            holders = _spider_arguments(function)
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


def _spider_arguments(function: SourceFunction) -> set[str]:
    """Return the arguments in which a function may have the spider."""
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
