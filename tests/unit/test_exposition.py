"""Prometheus' text format: what is written can be read again by its rules, whatever names are in it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.prometheus import parse

from scrapyd_dist.upkeep.exposition import Family, render


def family(name: str = "a", kind: str = "gauge", help_: str = "What it is.", **more: object) -> Family:
    return Family(name=name, kind=kind, help=help_, **more)  # type: ignore[arg-type]  # any fields


def test_the_text_is_that_of_the_format() -> None:
    text = render([
        family("sdist_jobs_total", "counter", "Jobs.\nAll \\o/", samples=[({"node": 'a"\\c\nd'}, 3), ({}, 0.5)]),
        family("sdist_none", samples=[]),
    ])  # fmt: skip
    assert text == (
        "# HELP sdist_jobs_total Jobs.\\nAll \\\\o/\n"
        "# TYPE sdist_jobs_total counter\n"
        'sdist_jobs_total{node="a\\"\\\\c\\nd"} 3\n'
        "sdist_jobs_total 0.5\n"
    )


LABELS = st.dictionaries(st.sampled_from(["node", "url", "_x"]), st.text(max_size=20), max_size=3)
NUMBERS = st.integers(-(10**12), 10**12) | st.floats()


@given(LABELS, NUMBERS, st.text(max_size=30))
def test_whatever_is_written_is_read_again(labels: dict[str, str], value: float, words: str) -> None:
    (found,) = parse(render([family(help_=words, samples=[(labels, value)])])).values()
    ((read_labels, read_value),) = found.samples
    assert read_labels == {name: text.encode("utf-8", "replace").decode() for name, text in labels.items()}
    assert read_value == value or (math.isnan(read_value) and math.isnan(value))


@pytest.mark.parametrize(
    "families",
    [
        [family("a-b", samples=[({}, 1)])],
        [family("1a", samples=[({}, 1)])],
        [family("a_total", samples=[({}, 1)])],
        [family("a", "counter", samples=[({}, 1)])],
        [family("a", "histogram", samples=[({}, 1)])],
        [family(samples=[({"a-b": "x"}, 1)])],
        [family(samples=[({"__a": "x"}, 1)])],
        [family(samples=[({"a": "x"}, 1), ({"a": "x"}, 2)])],
        [family(samples=[({}, 1)]), family(samples=[({}, 1)])],
    ],
)
def test_what_prometheus_would_refuse_is_never_made(families: list[Family]) -> None:
    with pytest.raises(ValueError, match=r"cannot be|comes twice|ends in _total"):
        render(families)
