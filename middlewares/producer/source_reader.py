"""Read the source of a project's classes as syntax trees; it is never run.

What is not at hand as source is left out.
"""

import ast
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TypeAlias

from scrapyd_dist.syntax_trees import parse_module

from ..spider_attributes import is_of_type, own_bases
from .code_reader import function_in, reads_or

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

#: packages whose code is not the project's, wherever it lies
_FOREIGN = ("scrapy", "scrapyd_dist")
#: folders of installed packages
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: methods with which a component begins, and those with which it ends
BEGINNINGS = frozenset(
    {"__init__", "__new__", "from_crawler", "from_settings", "open_spider", "spider_opened"}
)
ENDS = frozenset({"closed", "close_spider", "spider_closed", "engine_stopped"})
#: methods that make an object
MAKING = frozenset({"__new__", "__init__", "__post_init__"})
#: methods that read the statistics of the process
STATISTICS = frozenset({"get_value", "get_stats"})
#: methods of components that Scrapy calls for requests, pages and items
_HOOKS = frozenset({"item_completed", "get_media_requests", "file_path", "media_downloaded"})
#: signals that come while pages are crawled
_WORK_SIGNALS = ("item_", "request_", "response_", "headers_", "bytes_", "spider_error")
#: calls whose arguments only come into a log, or into statistics
_REPORTS = frozenset(
    {
        *("debug", "info", "warning", "error", "exception", "critical", "log", "print"),
        *("set_value", "inc_value", "max_value", "min_value"),
    }
)
#: types of values that stay as they are
_PLAIN = (str, bytes, int, float, tuple, frozenset, type(None))
#: signals with which a process ends
_END_SIGNALS = ("spider_closed", "engine_stopped")


@dataclass(frozen=True, kw_only=True)
class SourceFunction:
    """Holds a function of the project."""

    name: str
    node: FunctionNode
    module: ModuleType  #: whose names it uses
    is_method: bool = True
    #: names that it has from around it -> what they stand for: of its closure, and of defaults of
    #: arguments that can be changed
    bound: Mapping[str, object] = field(default_factory=dict, compare=False)

    def nodes(self) -> Iterator[ast.AST]:
        """Yield everything in it, with what is defined inside of it."""
        return iter(_nodes_in(self.node))


@cache
def _nodes_in(function: FunctionNode) -> tuple[ast.AST, ...]:
    """Return everything in a function: several readers walk it, and some of them often."""
    return tuple(ast.walk(function))


def is_projects(module: ModuleType | None) -> bool:
    """Return whether a module is the project's own, and not of an installed package."""
    file = getattr(module, "__file__", None)
    if module is None or not file or module.__name__.partition(".")[0] in _FOREIGN:
        return False
    return _INSTALLED.isdisjoint(Path(file).parts) and not file.startswith(_LIBRARY)


#: the folder of Python's own modules
_LIBRARY = str(Path(ast.__file__).parent)


@cache
def module_tree(module: ModuleType) -> ast.Module | None:
    """Return the syntax tree of a module; None if its source is not at hand."""
    try:
        return parse_module(inspect.getsource(module))
    except Exception:  # noqa: BLE001 - a loader, and the parser of deep code, may raise anything
        return None


def class_trees(kind: type) -> Iterator[tuple[ast.ClassDef, ModuleType]]:
    """Yield the trees of a class and of those that it is made from, if they are the project's."""
    for _, tree, module in classes_with_trees(kind):
        yield tree, module


def classes_with_trees(kind: type) -> Iterator[tuple[type, ast.ClassDef, ModuleType]]:
    """Yield a class and those that it is made from, if they are the project's, with their trees."""
    for base in own_bases(kind):
        module = sys.modules.get(base.__module__)
        tree = module_tree(module) if module is not None and is_projects(module) else None
        if tree is None or module is None:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                yield base, node, module
                break


def methods_of(kind: type) -> Iterator[SourceFunction]:
    """Yield the methods of a class and of those that it is made from.

    What the project's decorators have put around a method comes after it, by the same name.
    """
    for base, tree, module in classes_with_trees(kind):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                layers = list(sources_of(vars(base).get(node.name)))
                yield from _with_layers(node, module, layers)


def _with_layers(
    node: FunctionNode, module: ModuleType, layers: Iterable[SourceFunction]
) -> Iterator[SourceFunction]:
    """Yield a method, with the names that it has from around it, and what is put around it."""
    bound: Mapping[str, object] = {}
    around = []
    for layer in layers:
        if layer.node is node:
            bound = layer.bound
        else:
            around.append(replace(layer, name=node.name, is_method=True))
    yield SourceFunction(name=node.name, node=node, module=module, bound=bound)
    yield from around


def reached_code(kind: type, names: Iterable[str]) -> list[SourceFunction]:
    """Return methods of a class by their names, and what they call in the project, at any depth."""
    methods = list(methods_of(kind))
    wanted = set(names)
    waiting = list(_named(methods, wanted))
    if wanted >= MAKING:
        waiting.extend(_factories(kind))
    found = dict.fromkeys(waiting)
    while waiting:
        function = waiting.pop()
        for called in _called_by(function, methods):
            if called not in found:
                found[called] = None
                waiting.append(called)
    return list(found)


def _factories(kind: type) -> Iterator[SourceFunction]:
    """Yield the functions that make the values of a dataclass's fields."""
    for one in getattr(kind, "__dataclass_fields__", {}).values():
        yield from sources_of(one.default_factory)


def _named(methods: Iterable[SourceFunction], names: Collection[str]) -> Iterator[SourceFunction]:
    for method in methods:
        if method.name in names:
            yield method


def _called_by(
    function: SourceFunction, methods: Iterable[SourceFunction]
) -> Iterator[SourceFunction]:
    """Yield the methods and functions of the project that a function names."""
    for node in function.nodes():
        if isinstance(node, ast.Attribute) and function.is_method and of_self(node):
            # What is set is no method that is called, unless it is a property.
            is_set = isinstance(node.ctx, ast.Store)
            for method in _named(methods, {node.attr}):
                if _is_setter(method) == is_set:
                    yield method
        else:
            called = named_object(node, function.module)
            if is_of_type(called, FunctionType):
                yield from sources_of(called)


def _is_setter(method: SourceFunction) -> bool:
    """Return whether a method is called when an attribute is set."""
    return "setter" in map(last_name, method.node.decorator_list)


def named_object(node: ast.AST, module: ModuleType) -> object:
    """Return what a name, or a name in another module, stands for; None if nothing is known."""
    if isinstance(node, ast.Name):
        return vars(module).get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = vars(module).get(node.value.id)
        if is_of_type(owner, ModuleType):
            return vars(owner).get(node.attr)
    return None


def sources_of(member: object) -> Iterator[SourceFunction]:
    """Yield the source of a function of the project, and of those that it is wrapped around."""
    function = function_in(member)
    seen = set[FunctionType]()
    while function is not None and function not in seen:
        seen.add(function)
        # `__module__` is that of the wrapped function
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        if module is not None and is_projects(module):
            code = function.__code__
            node = _function_nodes(module).get((code.co_name, code.co_firstlineno))
            if node is not None:
                yield SourceFunction(
                    name=node.name,
                    node=node,
                    module=module,
                    is_method=False,
                    bound=_bound_names(function),
                )
        function = function_in(getattr(function, "__wrapped__", None))


@cache
def _function_nodes(module: ModuleType) -> dict[tuple[str, int], FunctionNode]:
    """Return all functions in a module's source, by their names and first lines."""
    nodes = dict[tuple[str, int], FunctionNode]()
    for node in ast.walk(module_tree(module) or ast.Module([], [])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.decorator_list[0] if node.decorator_list else node
            nodes[node.name, first.lineno] = node
        elif isinstance(node, ast.Lambda):
            nodes.setdefault(("<lambda>", node.lineno), _named_lambda(node))
    return nodes


def _named_lambda(node: ast.Lambda) -> ast.FunctionDef:
    """Return the function that a lambda stands for."""
    return ast.FunctionDef(
        name="lambda",
        args=node.args,
        body=[ast.copy_location(ast.Return(value=node.body), node)],
        decorator_list=[],
        lineno=node.lineno,
        col_offset=node.col_offset,
    )


def _bound_names(function: FunctionType) -> dict[str, object]:
    """Return what a function has of its closure, and defaults of arguments that can be changed."""
    code = function.__code__
    bound = dict[str, object]()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # nothing is in it yet
            bound[name] = cell.cell_contents
    values = function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(positional[len(positional) - len(values) :], values, strict=False))
    for name, value in (defaults | (function.__kwdefaults__ or {})).items():
        if not is_of_type(value, *_PLAIN):
            bound[name] = value
    return bound


def of_self(node: ast.AST) -> bool:
    """Return whether this is `self.NAME`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def last_name(node: ast.AST) -> str:
    """Return the last name of `a.b.c`, or of the call of it; empty if it has none."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def given_to(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the values that a call passes on."""
    yield from call.args
    for keyword in call.keywords:
        yield keyword.value


def argument_names(function: SourceFunction) -> Iterator[str]:
    """Yield the names of a function's arguments."""
    arguments = function.node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument.arg


def hooks_of(kind: type) -> set[str]:
    """Return the methods of a component that Scrapy calls for requests, pages and items."""
    hooks = handlers_of(kind)
    for method in methods_of(kind):
        if method.name.startswith("process_") or method.name in _HOOKS:
            hooks.add(method.name)
    return hooks


def ends_of(kind: type) -> set[str]:
    """Return the methods of a class that Scrapy calls when a process ends."""
    ends = handlers_of(kind, _END_SIGNALS)
    for method in methods_of(kind):
        if method.name in ENDS:
            ends.add(method.name)
    return ends


@reads_or(set[str])
def handlers_of(kind: type, signals: tuple[str, ...] = _WORK_SIGNALS) -> set[str]:
    """Return the methods that are connected to signals whose names begin so."""
    handlers = set()
    for method in methods_of(kind):
        for node in method.nodes():
            if not isinstance(node, ast.Call) or last_name(node) != "connect":
                continue
            handler, *others = map(last_name, [*given_to(node), node])
            for name in others:
                if name.startswith(signals):
                    handlers.add(handler)
    return handlers


@reads_or(set[str])
def errbacks_of(kind: type) -> set[str]:
    """Return the methods of a spider that it gives to requests as errbacks."""
    errbacks = set()
    for method in methods_of(kind):
        for node in method.nodes():
            if isinstance(node, ast.keyword) and node.arg == "errback":
                errbacks.add(last_name(node.value))
    return errbacks


@cache
def working_nodes(function: ast.AST) -> tuple[ast.AST, ...]:
    """Return what is in a function, without what only comes into a log."""
    nodes = []
    waiting = [function]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and last_name(node) in _REPORTS:
            continue
        if isinstance(node, ast.If) and all(map(_only_reports, [*node.body, *node.orelse])):
            continue
        nodes.append(node)
        waiting.extend(ast.iter_child_nodes(node))
    return tuple(nodes)


def _only_reports(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call) and last_name(statement.value) in _REPORTS
    return isinstance(statement, ast.Pass)
