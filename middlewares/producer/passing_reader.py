"""Find what of the things that stay a function yields or returns."""

import ast
from collections.abc import Iterator

from .assignment_reader import assigned
from .name_scope import NameScope
from .source_reader import SourceFunction, last_name

#: how often names are followed from one to the next
_STEPS = 3
#: calls whose value tells of a container, and has nothing of what is in it
_MEASURES = frozenset({"len", "bool", "any", "all"})


def passed_on(function: SourceFunction, scope: NameScope) -> set[str]:
    """Return the keys of that of which a function yields or returns what is inside."""
    passed = list(_passed_values(function))
    if not passed:
        return set()
    carriers = dict[str, set[str]]()
    flows = list(_flows(function))
    for _ in range(_STEPS):
        for target, value in flows:
            keys = _carried(value, scope, carriers)
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and keys:
                    carriers.setdefault(node.id, set()).update(keys)
    keys = set[str]()
    for value in passed:
        keys |= _carried(value, scope, carriers)
    return keys


def _passed_values(function: SourceFunction) -> Iterator[ast.expr]:
    for node in function.nodes():
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Return) and node.value is not None:
            yield node.value


def _flows(function: SourceFunction) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the variables of a function, each with that of which it gets a part."""
    for node in function.nodes():
        yield from assigned(node)
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield node.target, node.iter


def _carried(value: ast.expr, scope: NameScope, carriers: dict[str, set[str]]) -> set[str]:
    """Return the keys of that of which a value has something."""
    keys = set[str]()
    waiting: list[ast.AST] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Compare):
            continue
        if isinstance(node, ast.Call) and last_name(node) in _MEASURES:
            continue
        keys.update(scope.keys_of([node]))
        if isinstance(node, ast.Name):
            keys |= carriers.get(node.id, set())
        waiting.extend(ast.iter_child_nodes(node))
    return keys
