"""Finds the files beside a project's packages on which its code depends, by its source.

Nodes get the packages alone. Where code passes over what is missing, a job goes on without it.
"""

import ast
import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePath
from types import ModuleType

from scrapy.utils.conf import closest_scrapy_cfg

from ..spider_attributes import is_of_type
from .assignment_reader import assigned
from .code_reader import reads_or
from .effect_reader import is_for_writing
from .source_reader import is_projects, last_name
from .surroundings_reader import nodes_of, text_of

#: calls that list what is in a folder -> the pattern of what they list, or how it begins
_LISTS = {
    **dict.fromkeys(("iterdir", "listdir", "scandir"), "*"),
    **dict.fromkeys(("glob", "iglob"), ""),
    "walk": "**/*",
    "rglob": "**/",
}
#: how many files of a folder are asked for, since one tells enough and a folder may be large
_MOST_LISTED = 1_000
#: calls that write a file by its name, besides `open`
_WRITES = frozenset(
    {
        *("write_text", "write_bytes", "touch", "unlink", "remove", "to_csv", "to_excel"),
        *("FileHandler", "RotatingFileHandler", "TimedRotatingFileHandler"),
    }
)
#: calls that give the path that they were given, as far as that matters here
_SAME_PATH = frozenset(
    {
        *("Path", "PurePath", "str", "fspath", "resolve", "absolute", "as_posix"),
        *("abspath", "realpath", "normpath", "expanduser"),
    }
)


@reads_or(list[str])
def files_beside(
    modules: Iterable[ModuleType], settings_modules: Sequence[ModuleType], folder: Path
) -> list[str]:
    """Return the existing files beside the packages that code reads, sorted.

    Args:
        modules: the project's, besides those of its settings.
        settings_modules: the modules of its settings.
        folder: the working folder; paths are relative to it.
    """
    every = [*modules, *settings_modules]
    place = ProjectPlace(folder, settings_modules)
    written = _find_written(every)
    texts = set[str]()
    for module in every:
        texts.update(_paths_read(module, folder, written))
    for module in settings_modules:
        texts.update(_paths_in_settings(module, written))
    texts.update(_imported_files(every))
    paths = set(map(place.path_beside, texts))
    return sorted(paths - {""})


class ProjectPlace:
    """Knows which files of a project's folder go to the nodes."""

    def __init__(self, folder: Path, settings_modules: Iterable[ModuleType]) -> None:
        """folder: the working folder."""
        configuration = closest_scrapy_cfg(folder)
        self._folder = folder
        self._root = Path(configuration).parent if configuration else folder
        self._tops = {module.__name__.partition(".")[0] for module in settings_modules}

    def path_beside(self, text: str) -> str:
        """Return the path of a file, from the working folder; empty if it is none, or travels."""
        path = Path(os.path.normpath(self._folder / text))
        is_file = os.path.isfile(path)  # noqa: PTH113 - False for a text that no path can be
        if not is_file or not path.is_relative_to(self._root) or self._travels(path):
            return ""
        return os.path.relpath(path, self._folder)

    def _travels(self, path: Path) -> bool:
        """Return whether a file lies in a package, or is a module beside that of the settings."""
        for base in (self._root, self._root / "src"):
            if not path.is_relative_to(base):
                continue
            top = path.relative_to(base).parts[0]
            if top in self._tops or (base / top / "__init__.py").is_file():
                return True
            if top.endswith(".py") and any((base / f"{name}.py").is_file() for name in self._tops):
                return True
        return False


@dataclass
class _Written:
    """What code writes, so that a file that is there may be of an earlier crawl."""

    nodes: set[int] = field(default_factory=set)  #: ids of the parts of such calls
    names: set[str] = field(default_factory=set)  #: variables and attributes in them
    texts: set[str] = field(default_factory=set)

    def add(self, whole: ast.AST) -> None:
        """Add an expression with all its parts."""
        for node in ast.walk(whole):
            self.nodes.add(id(node))
            if isinstance(node, ast.Name | ast.Attribute):
                self.names.add(last_name(node))
            self.texts.add(text_of(node))


def _find_written(modules: Iterable[ModuleType]) -> _Written:
    """Return what modules write: files, and what their paths are made of."""
    written = _Written()
    nodes = list(nodes_of(modules))
    for node in nodes:
        if isinstance(node, ast.Call) and (is_for_writing(node) or last_name(node) in _WRITES):
            written.add(node)
    for node in nodes:
        for target, value in assigned(node):
            if last_name(target) in written.names:
                written.add(value)
    return written


def _paths_read(module: ModuleType, folder: Path, written: _Written) -> Iterator[str]:
    """Yield the paths by which a module may read files.

    Any call may read the file that its first argument names; those that only write it are known.
    """
    evaluator = _PathEvaluator(module, folder)
    for node in nodes_of([module]):
        if id(node) in written.nodes:
            continue
        if isinstance(node, ast.Call) and node.args:
            yield from _texts_in(node.args[0])
        if isinstance(node, ast.Call | ast.BinOp | ast.JoinedStr):
            yield evaluator.evaluate(node)
        yield from evaluator.list_matches(node)


def _texts_in(argument: ast.expr) -> list[str]:
    """Return the text of an argument, or those of its list."""
    parts = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
    return list(map(text_of, parts))


def _paths_in_settings(module: ModuleType, written: _Written) -> Iterator[str]:
    """Yield the values of settings that may be the names of files that are read."""
    for node in nodes_of([module]):
        for target, value in assigned(node):
            if last_name(target).isupper() and last_name(target) not in written.texts:
                yield text_of(value)


def _imported_files(modules: Iterable[ModuleType]) -> Iterator[str]:
    """Yield the files of the modules that are imported by name, if they are the project's."""
    for node in nodes_of(modules):
        for name in _names_imported(node):
            module = sys.modules.get(name)
            if module is not None and is_projects(module):
                yield module.__file__ or ""


def _names_imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module or ""]
    return []


def _is_path(value: object) -> bool:
    return is_of_type(value, str) or is_of_type(value, PurePath)


def _is_join(call: ast.Call) -> bool:
    """Return whether this is `os.path.join(…)`."""
    holder = call.func.value if isinstance(call.func, ast.Attribute) else None
    return last_name(call) == "join" and holder is not None and last_name(holder) == "path"


def _pattern_in(folder: str, pattern: str) -> str:
    """Return the pattern of paths in a folder; empty if the folder is not known."""
    return f"{glob.escape(folder)}/{pattern}" if folder else ""


class _PathEvaluator:
    """Works out which paths a module's expressions give, without running them.

    A path that is not known is an empty text.
    """

    def __init__(self, module: ModuleType, folder: Path) -> None:
        """folder: the working folder."""
        self._module = module
        self._folder = folder
        self._known = {"__file__": str(module.__file__)}
        for name, value in vars(module).items():
            if _is_path(value):
                self._known.setdefault(name, str(value))
        for node in nodes_of([module]):
            for target, value in assigned(node):
                if isinstance(target, ast.Name):
                    self._known.setdefault(target.id, self.evaluate(value))

    def evaluate(self, node: ast.AST) -> str:
        """Return the path that an expression gives."""
        for kind, evaluate in self._kinds.items():
            if isinstance(node, kind):
                return evaluate(self, node)
        return text_of(node)

    def list_matches(self, node: ast.AST) -> list[str]:
        """Return the files that a call lists, if its folder and its pattern are known."""
        pattern = self._pattern_listed(node) if isinstance(node, ast.Call) else ""
        matches = glob.iglob(pattern, root_dir=self._folder, recursive=True)  # noqa: PTH207
        return list(islice(matches, _MOST_LISTED))

    def _pattern_listed(self, call: ast.Call) -> str:
        """Return the pattern of the files that a call lists; empty if it is not known."""
        name = last_name(call)
        if name not in _LISTS:
            return ""
        given = self.evaluate(call.args[0]) if call.args else ""
        holder = call.func.value if isinstance(call.func, ast.Attribute) else None
        if holder is not None and last_name(holder) not in ("glob", "os"):
            return _pattern_in(self.evaluate(holder), _LISTS[name] + given)
        if name in ("glob", "iglob"):
            return given
        return _pattern_in(given if call.args else ".", _LISTS[name])

    def _evaluate_name(self, node: ast.Name) -> str:
        return self._known.get(node.id, "")

    def _evaluate_attribute(self, node: ast.Attribute) -> str:
        if node.attr == "parent":
            return os.path.dirname(self.evaluate(node.value))  # noqa: PTH120 - a text
        holder = vars(self._module).get(last_name(node.value))
        value = vars(holder).get(node.attr) if is_of_type(holder, ModuleType) else None
        return str(value) if _is_path(value) else ""

    def _evaluate_subscript(self, node: ast.Subscript) -> str:
        """Evaluate `path.parents[n]`."""
        number = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if last_name(node.value) != "parents" or not isinstance(number, int):
            return ""
        holder = node.value.value if isinstance(node.value, ast.Attribute) else node.value
        parents = Path(self.evaluate(holder)).parents
        return str(parents[number]) if number < len(parents) else ""

    def _evaluate_operation(self, node: ast.BinOp) -> str:
        left = self.evaluate(node.left)
        right = self.evaluate(node.right)
        if not left or not right:
            return ""
        return f"{left}/{right}" if isinstance(node.op, ast.Div) else f"{left}{right}"

    def _evaluate_text(self, node: ast.JoinedStr) -> str:
        parts = []
        for part in node.values:
            whole = part.value if isinstance(part, ast.FormattedValue) else part
            parts.append(self.evaluate(whole))
        return "".join(parts) if all(parts) else ""

    def _evaluate_call(self, node: ast.Call) -> str:
        name = last_name(node)
        if name in ("cwd", "getcwd"):
            return str(self._folder)
        given = self._list_given(node)
        if not given or not all(given):
            return ""
        if name == "dirname":
            return os.path.dirname(given[0])  # noqa: PTH120 - a text
        is_path = name in _SAME_PATH or name == "joinpath" or _is_join(node)
        return "/".join(given) if is_path else ""

    def _list_given(self, call: ast.Call) -> list[str]:
        """Return the paths of which a call makes one, that of which a method is called first."""
        given = list(map(self.evaluate, call.args))
        if isinstance(call.func, ast.Attribute):
            is_method = call.func.attr == "joinpath"
            is_method |= call.func.attr in _SAME_PATH and not given
            if is_method:
                given.insert(0, self.evaluate(call.func.value))
        return given

    #: kind of an expression -> what evaluates it
    _kinds: dict[type[ast.AST], Callable[..., str]] = {  # noqa: RUF012
        ast.Name: _evaluate_name,
        ast.Attribute: _evaluate_attribute,
        ast.Subscript: _evaluate_subscript,
        ast.BinOp: _evaluate_operation,
        ast.JoinedStr: _evaluate_text,
        ast.Call: _evaluate_call,
    }
