"""A small checker of JSON documents: shapes are written in Python, and what does not fit is named by its path."""

from typing import Any

#: what a number may be
NUMBER = (int, float)


def misfits(value: Any, shape: Any, path: str = "$") -> list[str]:
    """Where a value is not of a shape; nothing when it is.

    Args:
        value: what came out of JSON.
        shape: a type; None; `object`, which is anything; a tuple of shapes, one of which has to fit; `[shape]`, a list
            of such values; a dict of names, which have to be there (more may be); `{str: shape}`, a mapping of any
            names.
        path: where the value stands.
    """
    if shape is object:
        return []
    if isinstance(shape, tuple):
        tried = [misfits(value, one, path) for one in shape]
        return [] if not all(tried) else min(tried, key=len)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [_wrong(path, "a list", value)]
        return [text for at, one in enumerate(value) for text in misfits(one, shape[0], f"{path}[{at}]")]
    if isinstance(shape, dict):
        return _object(value, shape, path)
    # A bool is an int to Python, and none to a reader of JSON: hence the very type.
    fits = value is None if shape is None else type(value) is shape
    return [] if fits else [_wrong(path, shape, value)]


def _object(value: Any, shape: dict[Any, Any], path: str) -> list[str]:
    if not isinstance(value, dict):
        return [_wrong(path, "an object", value)]
    if set(shape) == {str}:
        return [text for name, one in value.items() for text in misfits(one, shape[str], f"{path}.{name}")]
    found = [f"{path}.{name}: is not there" for name in shape if name not in value]
    for name in shape.keys() & value.keys():
        found += misfits(value[name], shape[name], f"{path}.{name}")
    return found


def _wrong(path: str, shape: object, value: object) -> str:
    wanted = shape.__name__ if isinstance(shape, type) else str(shape)
    return f"{path}: {value!r:.80} is not {wanted}"
