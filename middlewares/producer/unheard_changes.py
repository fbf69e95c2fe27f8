"""Find what callbacks of index pages read that only code of jobs sets or counts.

In one process they see it, and may end by it; the producer never hears of it.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from .code_reader import reads_or
from .path_reader import CALL, NamePath, PathReader
from .place_reader import shared_places
from .source_reader import (
    STATISTICS,
    SourceFunction,
    given_to,
    handlers_of,
    hooks_of,
    last_name,
    reached_code,
    working_nodes,
)
from .spider_reads import attributes_set, index_callbacks, spider_arguments

#: hooks and signals with which code gets items
_ITEM_HOOKS = frozenset({"process_item", "item_completed"})
_ITEM_SIGNALS = ("item_",)
#: methods that count in the statistics of the process
_COUNTS = frozenset({"set_value", "inc_value", "max_value", "min_value"})
#: statistics that say nothing of pages
_OF_PROCESS = frozenset({"start_time"})
_SPIDER = "spider"


@reads_or(frozenset[str])
def unheard_on_index(
    kind: type, callbacks: Collection[str], components: Iterable[type]
) -> frozenset[str]:
    """Return what callbacks of index pages read and jobs set, as names.

    Helpers that both of them call are left out: what these keep, each process has for itself.
    """
    methods = {*callbacks, *handlers_of(kind, _ITEM_SIGNALS)}
    in_jobs = reached_code(kind, methods)
    on_index = list[SourceFunction]()
    for function in reached_code(kind, index_callbacks(kind, methods)):
        if function not in in_jobs:
            on_index.append(function)
    changed = set[str]()
    setting = list(in_jobs)
    for function in in_jobs:
        changed.update(attributes_set(function))
    for component in components:
        of_items, others = _component_code(component)
        setting += of_items
        changed.update(_spider_attributes_set(of_items, only_flags=False))
        changed.update(_spider_attributes_set(others, only_flags=True))
    read = set[str]()
    for function in on_index:
        read.update(_attributes_read(function))
    found = (changed & read).union(shared_places(kind, setting, on_index))
    return frozenset(found.union(_statistics_read(on_index, in_jobs)))


def _component_code(kind: type) -> tuple[list[SourceFunction], list[SourceFunction]]:
    """Return the code of a component that gets items, and its other code that gets pages.

    The other one runs for index pages, too.
    """
    hooks = hooks_of(kind)
    item_hooks = handlers_of(kind, _ITEM_SIGNALS) | (hooks & _ITEM_HOOKS)
    return reached_code(kind, item_hooks), reached_code(kind, hooks - item_hooks)


def _spider_attributes_set(
    functions: Iterable[SourceFunction], *, only_flags: bool
) -> Iterator[str]:
    """Yield the attributes of the spider that code of a component sets.

    only_flags: only those that it switches or counts.
    """
    for function in functions:
        for change in PathReader(function).changes():
            name = _after_spider(change.path)
            if name and (change.is_flag or not only_flags):
                yield name


def _after_spider(path: NamePath) -> str:
    """Return the name of an attribute of the spider in a path; empty if there is none."""
    if _SPIDER not in path:
        return ""
    names = path[path.index(_SPIDER) + 1 :]
    return "" if not names or CALL in names[1:2] else names[0]


def _attributes_read(function: SourceFunction) -> Iterator[str]:
    """Yield the attributes of the spider that a function reads."""
    holders = {"self"} if function.is_method else spider_arguments(function)
    for holder, *names in PathReader(function).reads():
        if holder in holders and names:
            yield names[0]


def _statistics_read(
    functions: Collection[SourceFunction], in_jobs: Iterable[SourceFunction]
) -> Iterator[str]:
    """Yield the methods by which functions read statistics of pages that others get, too."""
    own = set[str]()
    for function in functions:
        own.update(_names_in_calls(function, _COUNTS))
    for function in in_jobs:
        own.difference_update(_names_in_calls(function, _COUNTS))
    for function in functions:
        if not _knows_statistics(function):
            continue
        no_use = set(map(id, _only_reported(function)))
        for call in PathReader(function).calls():
            if last_name(call) not in STATISTICS or id(call) in no_use:
                continue
            names = set(_texts_given(call))
            if not names or not names <= own | _OF_PROCESS:
                yield f"stats.{last_name(call)}"


def _knows_statistics(function: SourceFunction) -> bool:
    """Return whether a function names statistics: others have such methods as well."""
    for node in function.nodes():
        if isinstance(node, ast.Name | ast.Attribute) and "stats" in last_name(node).lower():
            return True
    return False


def _names_in_calls(function: SourceFunction, methods: Collection[str]) -> Iterator[str]:
    for node in function.nodes():
        if isinstance(node, ast.Call) and last_name(node) in methods:
            yield from _texts_given(node)


def _texts_given(call: ast.Call) -> Iterator[str]:
    for value in given_to(call):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _only_reported(function: SourceFunction) -> Iterator[ast.expr]:
    """Yield what is set to a variable that a function only writes to logs."""
    loaded = set[str]()
    for node in working_nodes(function.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            loaded.add(node.id)
    for node in function.nodes():
        if isinstance(node, ast.Assign) and last_name(node.targets[0]) not in loaded:
            yield node.value
