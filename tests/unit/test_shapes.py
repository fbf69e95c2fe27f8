"""The checker of documents finds what it should, so that the documents' own test can fail."""

from typing import Any

import pytest
from rig.documents import NUMBER, misfits


@pytest.mark.parametrize(
    ("value", "shape", "found"),
    [
        (None, (str, None), []),
        (1.5, NUMBER, []),
        ([], [int], []),
        ({"a": 1, "more": 2}, {"a": int}, []),
        ({"x": [1]}, {str: [int]}, []),
        (True, int, ["$: True is not int"]),
        (1, bool, ["$: 1 is not bool"]),
        ("1", NUMBER, ["$: '1' is not int"]),
        ({"a": 1}, [int], ["$: {'a': 1} is not a list"]),
        ([1, "2"], [int], ["$[1]: '2' is not int"]),
        ({}, {"a": int}, ["$.a: is not there"]),
        ({"a": {"b": None}}, {"a": {"b": str}}, ["$.a.b: None is not str"]),
        ({"a": ""}, {str: int}, ["$.a: '' is not int"]),
        ([], {"a": int}, ["$: [] is not an object"]),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(value: Any, shape: Any, found: list[str]) -> None:
    assert misfits(value, shape) == found
