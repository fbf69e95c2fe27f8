"""Find of which of the project's classes the attributes of a component or a spider are."""

import ast
from collections.abc import Iterator
from types import FunctionType, ModuleType

from ..spider_attributes import is_of_type
from .assignment_reader import assigned
from .name_scope import is_projects_class, is_projects_object
from .source_reader import (
    classes_with_trees,
    last_name,
    named_object,
    sources_of,
)


def attribute_classes(kind: type) -> dict[str, type]:
    """Return the project's class of each attribute `self.NAME` for which the code names one.

    It is called there, or is the annotation of an attribute or of an argument.
    """
    classes = dict[str, type]()
    for base, tree, module in classes_with_trees(kind):
        for name, value in vars(base).items():
            if is_projects_object(value):
                classes.setdefault(f"self.{name}", type(value))
        arguments = _argument_classes(tree, module)
        for node in ast.walk(tree):
            for name, found in _classes_set(node, module, arguments):
                classes.setdefault(f"self.{name}", found)
    return classes


def _classes_set(
    node: ast.AST, module: ModuleType, arguments: dict[str, type]
) -> Iterator[tuple[str, type]]:
    """Yield the attributes that a statement makes objects of the project, with their classes."""
    if isinstance(node, ast.AnnAssign):
        annotated = _class_named(node.annotation, module)
        if annotated is not None:
            yield last_name(node.target), annotated
    for target, value in assigned(node):
        if not isinstance(target, ast.Attribute):
            continue
        for part in _alternatives(value):
            found = arguments.get(part.id) if isinstance(part, ast.Name) else None
            found = found or class_made(part, module)
            if found is not None:
                yield target.attr, found


def _alternatives(value: ast.expr) -> list[ast.expr]:
    """Return the expressions of which one is the value."""
    if isinstance(value, ast.BoolOp):
        return value.values
    if isinstance(value, ast.IfExp):
        return [value.body, value.orelse]
    return [value]


def class_made(value: ast.AST, module: ModuleType) -> type | None:
    """Return the project's class of which a call makes an object; None if it is none."""
    if not isinstance(value, ast.Call):
        return None
    found = _class_named(value.func, module)
    if found is None and isinstance(value.func, ast.Attribute):  # as `Quota.from_settings(…)`
        found = _class_named(value.func.value, module)
    return found or class_returned(named_object(value.func, module))


def class_returned(function: object) -> type | None:
    """Return the class of which a function of the project makes an object that it returns."""
    if not is_of_type(function, FunctionType):
        return None
    for source in sources_of(function):
        for node in source.nodes():
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                return _class_named(node.value.func, source.module)
    return None


def _class_named(node: ast.AST | None, module: ModuleType) -> type | None:
    found = named_object(node, module) if node is not None else None
    return found if is_of_type(found, type) and is_projects_class(found) else None


def _argument_classes(tree: ast.ClassDef, module: ModuleType) -> dict[str, type]:
    """Return the classes of arguments: by their annotations, or by what a class gives itself."""
    classes = dict[str, type]()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            found = _class_named(node.annotation, module)
            if found is not None:
                classes[node.arg] = found
        elif isinstance(node, ast.Call) and last_name(node) in ("cls", tree.name):
            for name, value in _given_arguments(node, tree):
                found = class_made(value, module)
                if found is not None:
                    classes.setdefault(name, found)
    return classes


def _given_arguments(call: ast.Call, tree: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a call that makes an object of a class gives, each with the argument's name."""
    yield from zip(_own_arguments(tree), call.args, strict=False)
    for keyword in call.keywords:
        yield keyword.arg or "", keyword.value


def _own_arguments(tree: ast.ClassDef) -> Iterator[str]:
    """Yield the names of the arguments with which an object of a class is made."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for argument in node.args.args[1:]:
                yield argument.arg
