"""The checker of documents finds what it should, so that the documents' own test can fail."""

from typing import Any

import pytest
from rig.shapes import NUMBER, misfits


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (1, int), (True, bool), ("x", str), (None, None), (None, (str, None)), (1.5, NUMBER), (2, NUMBER), ([], [int]),
        ([1, 2], [int]), ({"a": 1, "more": 2}, {"a": int}), ({}, {str: int}), ({"x": [1]}, {str: [int]}),
    ],
)  # fmt: skip
def test_what_fits(value: Any, shape: Any) -> None:
    assert misfits(value, shape) == []


@pytest.mark.parametrize(
    ("value", "shape", "text"),
    [
        (True, int, "$: True is not int"),
        (1, bool, "$: 1 is not bool"),
        (None, str, "$: None is not str"),
        ("1", NUMBER, "$: '1' is not int"),
        ({"a": 1}, [int], "$: {'a': 1} is not a list"),
        ([1, "2"], [int], "$[1]: '2' is not int"),
        ({}, {"a": int}, "$.a: is not there"),
        ({"a": {"b": None}}, {"a": {"b": str}}, "$.a.b: None is not str"),
        ({"a": ""}, {str: int}, "$.a: '' is not int"),
        ([], {"a": int}, "$: [] is not an object"),
    ],
)
def test_what_does_not(value: Any, shape: Any, text: str) -> None:
    assert misfits(value, shape) == [text]
