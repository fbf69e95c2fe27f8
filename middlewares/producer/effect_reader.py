"""Find where a project's code writes files, and what it reports as its process ends."""

import ast
from collections.abc import Iterable, Iterator
from types import ModuleType

from .code_reader import reads_or
from .source_reader import (
    SourceFunction,
    ends_of,
    given_to,
    handlers_of,
    last_name,
    methods_of,
    module_tree,
    reached_code,
    working_nodes,
)

#: calls that write a file by its name
_WRITES = frozenset(
    {
        *("write_text", "write_bytes", "urlretrieve", "savetxt"),
        *("to_csv", "to_excel", "to_parquet", "to_feather", "to_pickle", "to_html"),
    }
)
#: modules that open a file to write into it, whatever they are given
_FILE_MODULES = frozenset({"sqlite3", "aiosqlite", "shelve", "dbm"})
#: modules each call of which goes to a server
_CLIENTS = frozenset({"requests", "httpx", "smtplib"})
#: other calls that write or send what a process has counted, or read its counts
_REPORTS = frozenset(
    {
        *("dump", "write", "save", "to_json", "to_sql", "urlopen", "post", "sendmail"),
        *("send_message", "send_mail", "send", "publish", "get_value", "get_stats"),
        *("check_call", "check_output", "Popen", "system"),
    }
)
#: signals that each process gets as it begins
_BEGIN_SIGNALS = ("spider_opened", "engine_started")
#: what is not run where it stands
_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: the letters of a mode in which a file is opened, and those of one that is written
_MODE = frozenset("rwaxbt+")
_WRITTEN = frozenset("wax+")


@reads_or(list[str])
def reporting_ends(kind: type) -> list[str]:
    """Return the methods with which a class ends that write, send or judge something."""
    ends = [end for end in sorted(ends_of(kind)) if _reports_in(kind, end)]
    return [f"{kind.__qualname__}.{end}" for end in ends]


def _reports_in(kind: type, method: str) -> bool:
    return any(map(_is_report, _calls_in(reached_code(kind, [method]))))


@reads_or(list[str])
def writing_methods(kind: type, methods: Iterable[str]) -> list[str]:
    """Return the functions, of those that methods reach, that write files."""
    names = set()
    for function in reached_code(kind, methods):
        if any(map(_writes_file, _calls_in([function]))):
            names.add(function.name)
    return sorted(names)


@reads_or(bool)
def writes_files(kind: type) -> bool:
    """Return whether some code of a class writes a file, or a database in a file."""
    return any(map(_writes_file, _calls_in(methods_of(kind))))


@reads_or(bool)
def only_reads_files(kind: type) -> bool:
    """Return whether code of a class opens files, and each of them only to read it."""
    calls = [call for call in _calls_in(methods_of(kind)) if last_name(call) == "open"]
    return bool(calls) and all(map(_is_for_reading, calls))


@reads_or(list[str])
def writing_beginnings(kind: type) -> list[str]:
    """Return the methods with which a spider begins in each process that write files."""
    methods = sorted({"__init__", "from_crawler", *handlers_of(kind, _BEGIN_SIGNALS)})
    return [f"{kind.__qualname__}.{method}" for method in methods if _writes_in(kind, method)]


def _writes_in(kind: type, method: str) -> bool:
    return any(map(_writes_file, _calls_in(reached_code(kind, [method]))))


@reads_or(list[str])
def writing_modules(modules: Iterable[ModuleType]) -> list[str]:
    """Return the modules that write files when they are imported."""
    return [module.__name__ for module in modules if any(map(_writes_file, _calls_at_once(module)))]


def _calls_at_once(module: ModuleType) -> Iterator[ast.Call]:
    """Yield the calls that are made when a module is imported."""
    waiting: list[ast.AST] = [module_tree(module) or ast.Module([], [])]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _LATER) or _is_of_script(node):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _is_of_script(node: ast.AST) -> bool:
    """Return whether this is `if __name__ == …`."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    return last_name(node.test.left) == "__name__"


def _calls_in(functions: Iterable[SourceFunction]) -> Iterator[ast.Call]:
    for function in functions:
        for node in working_nodes(function.node):
            if isinstance(node, ast.Call):
                yield node


def _is_report(call: ast.Call) -> bool:
    return _writes_file(call) or last_name(call) in _REPORTS or _module_of(call) in _CLIENTS


def _writes_file(call: ast.Call) -> bool:
    name = last_name(call)
    if name in ("open", "connect") and _module_of(call) in _FILE_MODULES:
        return True
    return name in _WRITES or (name == "open" and is_for_writing(call))


def is_for_writing(call: ast.Call) -> bool:
    """Return whether a call of `open` names a mode in which a file is written."""
    for value in given_to(call):
        mode = value.value if isinstance(value, ast.Constant) else ""
        if isinstance(mode, str) and _MODE.issuperset(mode) and not _WRITTEN.isdisjoint(mode):
            return True
    return False


def _is_for_reading(call: ast.Call) -> bool:
    """Return whether a call of `open` names no mode in which a file is written, or may be."""
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    is_method = isinstance(call.func, ast.Attribute)  # of a path: then the mode comes first
    modes += call.args[0 if is_method else 1 : 2]
    is_known = all(isinstance(mode, ast.Constant) for mode in modes)
    return is_known and not is_for_writing(call)


def _module_of(call: ast.Call) -> str:
    """Return the name of which a method is called; empty if it is none."""
    holder = call.func.value if isinstance(call.func, ast.Attribute) else None
    return holder.id if isinstance(holder, ast.Name) else ""
