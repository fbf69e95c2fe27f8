"""What drawings are made of: escaping, scales, round ticks, labels that keep apart."""

import html
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scrapyd_dist.report.svg import Picture, Scale, apart, box, line, tag, ticks, time_ticks
from scrapyd_dist.report.texts import amount, clipped, clipped_names, escape, short, span


@given(st.text(alphabet=st.characters()))
def test_an_escaped_text_comes_back_as_it_was_but_for_what_no_document_may_have(text: str) -> None:
    assume("://" not in text)  # of an address the password goes
    plain = escape(text)
    assert not set(plain) & set("<>\"'")
    back = html.unescape(plain)
    assert len(back) == len(text)
    assert all(a in {b, "\ufffd"} for a, b in zip(back, text, strict=True))
    ET.fromstring(tag("text", text=text, title=text))  # noqa: S314 - our own


def test_a_tag() -> None:
    assert tag("rect", x=1.0, y=2.25, class_="a", fill=None) == '<rect x="1" y="2.2" class="a"/>'
    assert tag("text", text="<", text_anchor="end") == '<text text-anchor="end">&lt;</text>'


@given(st.floats(min_value=0.001, max_value=1e12), st.integers(min_value=1, max_value=8))
def test_ticks_are_few_and_go_to_the_end(high: float, count: int) -> None:
    found = ticks(high, count)
    assert found[0] == 0
    assert found[-1] >= high * 0.999
    assert found == sorted(found)
    assert 2 <= len(found) <= count + 2


def test_ticks_of_whole_things_are_whole() -> None:
    assert ticks(3) == [0, 1, 2, 3]
    assert ticks(7) == [0, 2, 4, 6, 8]
    assert ticks(0) == [0, 1]
    assert ticks(5200) == [0, 2000, 4000, 6000]


@given(st.floats(min_value=0.01, max_value=1e8), st.integers(min_value=2, max_value=12))
def test_times_are_few_and_within(seconds: float, count: int) -> None:
    found = time_ticks(seconds, count)
    assert found[0] == 0
    assert found[-1] <= seconds
    assert len(found) <= count + 1
    assert time_ticks(seconds, count, beyond=True)[-1] >= seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (0.4, "0"), (40, "40 s"), (90, "1:30 min"), (120, "2 min"), (7200, "2 h"), (3900, "1:05 h"),
     (3599.9, "1 h"), (300_000, "3 d 11 h"), (259_200, "3 d")],
)  # fmt: skip
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (2.5, "2.5"), (0.25, "0.25"), (950, "950"), (9500, "9,500"), (12_000, "12k"), (12_500, "12.5k"),
     (3_400_000, "3.4M"), (2e9, "2G")],
)  # fmt: skip
def test_amounts(value: float, text: str) -> None:
    assert amount(value) == text


def test_amounts_of_one_axis_have_one_unit() -> None:
    assert [amount(value, 10_000) for value in (0, 2500, 5000, 10_000)] == ["0", "2.5k", "5k", "10k"]


def test_short_numbers() -> None:
    assert [short(value) for value in (1.0, 1.25, -0.01, 0.04, -1.5, 0.05)] == ["1", "1.2", "0", "0", "-1.5", "0.1"]


def test_a_scale_stays_on_the_picture() -> None:
    scale = Scale(0, 10, 100, 0)
    assert [scale(value) for value in (0, 5, 10, 20, -5)] == [100, 50, 0, 0, 100]
    assert Scale(0, 0, 3, 9)(1) == 3


@given(st.lists(st.floats(min_value=-50, max_value=250), min_size=1, max_size=6))
def test_labels_keep_apart(places: list[float]) -> None:
    found = apart(places, 16, 0, 200)
    ordered = sorted(found)
    assert all(b - a >= 16 - 1e-6 for a, b in pairwise(ordered))
    assert ordered[0] >= -1e-6
    assert ordered[-1] <= 200 + 1e-6
    assert sorted(range(len(places)), key=lambda i: (places[i], i)) == sorted(
        range(len(places)), key=lambda i: (found[i], i)
    )


def test_names_are_cut_where_they_are_the_same() -> None:
    assert clipped("short", 100) == "short"
    assert len(clipped("a" * 90, 60)) <= 8
    names = ["node-eu-1.example.com", "node-eu-12.example.com"]
    assert clipped_names(names, 1000) == names
    assert clipped_names(names, 90) == ["node-eu-1", "node-eu-12"]
    assert clipped_names(names, 40) == ["…1", "…12"]
    assert clipped_names(["same.example.com"] * 2, 60)[0] == clipped("same.example.com", 60)


def test_paths() -> None:
    assert line([(0, 0), (0.01, 0), (5, 2.5)]) == "M0 0L5 2.5"
    assert line([]) == ""
    assert box(1, 2, 3, 4) == "M1 2h3v4h-3z"


def test_a_picture_is_well_formed() -> None:
    picture = Picture(name="p", width=100, height=50, title="<t>", desc="d & e")
    picture.ground(Scale(0, 10, 40, 5), ticks(10), 10, 90)
    picture.times(Scale(0, 60, 10, 90), 40)
    tree = ET.fromstring(picture.markup())  # noqa: S314 - our own
    assert tree.get("role") == "img"
    assert [child.text for child in list(tree)[:2]] == ["<t>", "d & e"]
