"""Parses Python source in a process with threads, one at a time.

CPython 3.11 counts the depth of a tree for all threads together: where the collection of garbage
lets another thread in, `ast.parse` ends with a SystemError of a "recursion depth mismatch"
(https://github.com/python/cpython/issues/106905).
"""

import ast
from threading import RLock

#: held by the thread that parses; its own finalizers may parse, too
_parsing = RLock()


def parse_module(source: str | bytes) -> ast.Module:
    """Return the tree of a module's source.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as of `ast.parse`.
    """
    with _parsing:
        return ast.parse(source)


def parse_expression(text: str) -> ast.Expression:
    """Return the tree of an expression.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as of `ast.parse`.
    """
    with _parsing:
        return ast.parse(text, mode="eval")
