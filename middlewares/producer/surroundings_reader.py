"""Find on what of its machine or its moment a project's code depends, by its source."""

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from inspect import getattr_static
from itertools import chain
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ..spider_attributes import is_of_type
from .assignment_reader import assigned
from .code_reader import reads_or
from .source_reader import (
    SourceFunction,
    class_trees,
    is_projects,
    last_name,
    methods_of,
    module_tree,
)

#: variables that each machine has, and those of Scrapy and of this program
_USUAL = re.compile(r"(HOME|PATH|USER|LANG|TZ|PWD|TMPDIR|PYTHON\w*|SCRAPY\w*|SDIST\w*)$")
#: settings that the producer alone uses
_PRODUCERS = re.compile(r"DISTRIBUTED_|FEED|LOG_|JOBDIR")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
#: names of the readers of python-decouple and environs
_READERS = frozenset({"config", "env"})
#: functions of Scrapy that find nothing without scrapy.cfg, and the modules that have them
_PROJECT_FUNCTIONS = frozenset({"data_path", "project_data_dir", "closest_scrapy_cfg"})
_PROJECT_MODULES = frozenset({"scrapy.utils.project", "scrapy.utils.conf"})
#: calls that have another value each time, or on each machine
_ANEW = frozenset(
    {
        *("uuid1", "uuid4", "now", "utcnow", "time", "time_ns", "token_hex", "token_urlsafe"),
        *("random", "randint", "randrange", "getpid", "gethostname"),
    }
)
#: methods that make the spider of a process
_MAKING = ("__init__", "from_crawler")


@reads_or(list[ModuleType])
def modules_of(kinds: Iterable[type]) -> list[ModuleType]:
    """Return the project's modules that have these classes, and those that they import."""
    found = dict[ModuleType, None]()
    waiting = [sys.modules.get(kind.__module__) for kind in kinds]
    while waiting:
        module = waiting.pop()
        if module is None or module in found or not is_projects(module):
            continue
        found[module] = None
        waiting += map(_module_behind, list(vars(module).values()))
    return list(found)


def _module_behind(value: Any) -> ModuleType | None:
    """Return the module that a value is, or that has its code; no code of a proxy is run."""
    if is_of_type(value, ModuleType):
        return value
    owner: object = getattr_static(value, "__module__", None)
    if is_of_type(value, FunctionType):
        owner = value.__module__
    return sys.modules.get(owner) if isinstance(owner, str) else None


@reads_or(list[str])
def variables_read(modules: Iterable[ModuleType], folder: Path) -> list[str]:
    """Return the environment variables that modules read, and that are set here.

    A file `.env` in `folder` may set them as well.
    """
    names = set()
    in_file = _variables_in(folder / ".env")
    for node in nodes_of(modules):
        name = _variable_of(node)
        if name and (name in os.environ or name in in_file) and not _USUAL.match(name):
            names.add(name)
    return sorted(names)


def nodes_of(modules: Iterable[ModuleType]) -> Iterator[ast.AST]:
    """Yield what is in modules, besides the values of settings that the producer alone uses."""
    for module in modules:
        tree = module_tree(module)
        for statement in tree.body if tree is not None else ():
            is_producers = False
            for target, _ in assigned(statement):
                is_producers |= bool(_PRODUCERS.match(last_name(target)))
            if not is_producers:
                yield from ast.walk(statement)


def _variable_of(node: ast.AST) -> str:
    """Return the environment variable that is read here; empty if none is."""
    key: ast.AST | None = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        key = node.slice if last_name(node.value) == "environ" else None
    elif isinstance(node, ast.Call) and node.args and _reads_variable(node.func):
        key = node.args[0]
    name = text_of(key)
    return name if _VARIABLE.fullmatch(name) else ""


def _reads_variable(called: ast.expr) -> bool:
    if last_name(called) == "getenv":
        return True
    if isinstance(called, ast.Attribute):
        holder = last_name(called.value)
        return holder == "env" or (holder == "environ" and called.attr == "get")
    return last_name(called) in _READERS


def text_of(node: ast.AST | None) -> str:
    """Return the text of a constant; empty for anything else."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if is_text and isinstance(node, ast.Constant) else ""


def _variables_in(file: Path) -> set[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return set()
    return set(re.findall(r"^\s*(?:export\s+)?(\w+)\s*=", text, re.MULTILINE))


@reads_or(list[str])
def project_paths_read(modules: Iterable[ModuleType]) -> list[str]:
    """Return the functions of Scrapy that look for scrapy.cfg, with the modules that use them."""
    uses = dict[str, None]()
    for module in modules:
        for node in nodes_of([module]):
            for name in _project_functions(node):
                uses[f"{name} in {module.__name__}"] = None
    return sorted(uses)


def _project_functions(node: ast.AST) -> Iterator[str]:
    """Yield the functions by which a project's folder is found that are imported or called here."""
    if isinstance(node, ast.ImportFrom) and node.module in _PROJECT_MODULES:
        for imported in node.names:
            if imported.name in _PROJECT_FUNCTIONS:
                yield imported.name
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _PROJECT_FUNCTIONS.intersection([node.func.attr])


@reads_or(bool)
def uses_all_arguments(kind: type) -> bool:
    """Return whether an `__init__` does something with all of its other arguments.

    To pass them on, or to look for one, is no such thing.
    """
    for method in methods_of(kind):
        others = method.node.args.kwarg
        if method.name != "__init__" or others is None:
            continue
        innocent = set[int]()
        for node in method.nodes():
            innocent.update(map(id, _innocent_uses(node)))
        for node in method.nodes():
            is_read = isinstance(node, ast.Name) and node.id == others.arg
            if is_read and id(node) not in innocent:
                return True
    return False


def _innocent_uses(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is passed on, or searched for one entry."""
    if (isinstance(node, ast.keyword) and node.arg is None) or isinstance(node, ast.Subscript):
        yield node.value
    elif isinstance(node, ast.Compare):
        yield from node.comparators
    elif isinstance(node, ast.Attribute) and node.attr in ("get", "pop", "setdefault"):
        yield node.value


@reads_or(bool)
def reads_feeds(kind: type) -> bool:
    """Return whether code of a class reads the setting FEEDS."""
    nodes = chain.from_iterable(map(SourceFunction.nodes, methods_of(kind)))
    return "FEEDS" in chain.from_iterable(map(_settings_read, nodes))


def _settings_read(node: ast.AST) -> Iterator[str]:
    """Yield the texts by which something is got from a mapping."""
    if isinstance(node, ast.Call) and last_name(node).startswith("get"):
        yield from map(text_of, node.args)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield text_of(node.slice)


@reads_or(set[str])
def attributes_made_anew(kind: type) -> set[str]:
    """Return the attributes of a spider that have another value in each process."""
    names = set()
    for tree, _ in class_trees(kind):
        for statement in tree.body:
            is_function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and getattr(statement, "name", "") not in _MAKING:
                continue
            for node in ast.walk(statement):
                for target, value in assigned(node):
                    is_attribute = isinstance(target, ast.Attribute) or not is_function
                    if is_attribute and _is_made_anew(value):
                        names.add(last_name(target))
    return names


@reads_or(set[str])
def settings_made_anew(module: ModuleType | None) -> set[str]:
    """Return the settings of a module that have another value in each process."""
    tree = module_tree(module) if module is not None else None
    names = set()
    for statement in tree.body if tree is not None else ():
        for target, value in assigned(statement):
            if last_name(target).isupper() and _is_made_anew(value):
                names.add(last_name(target))
    return names


@reads_or(set[str])
def texts_in(modules: Iterable[ModuleType]) -> set[str]:
    """Return all texts in modules."""
    return set(map(text_of, nodes_of(modules)))


def _is_made_anew(value: ast.expr) -> bool:
    """Return whether a value is another one in each process; the day is the same in all."""
    is_anew = False
    for node in ast.walk(value):
        if not isinstance(node, ast.Call):
            continue
        if last_name(node) == "date" or (last_name(node) == "strftime" and _is_day(node)):
            return False
        is_anew |= last_name(node) in _ANEW
    return is_anew


def _is_day(call: ast.Call) -> bool:
    form = "".join(map(text_of, call.args))
    return bool(form) and not re.search(r"%-?[HIMSfTXcsRp]", form)
