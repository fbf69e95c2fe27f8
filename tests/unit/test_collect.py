"""Parts become one item file; the fetching of parts is in the scheduler's contract and on real nodes."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.delivery import own_parts
from scrapyd_dist.items.json_lines import Items
from scrapyd_dist.items.merging import ItemOutput, merge

ITEMS: list[list[dict[str, Any]]] = [
    [{"title": "ü\u2028\n", "price": 1.5, "tags": ["a", "b"]}, {"title": None, "nested": {"a": [1]}}],
    [],
    [{"title": 'quote " and, comma', "price": 0}],
]


def parts_of(folder: Path, items: list[list[dict[str, Any]]]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for number, rows in enumerate(items):
        path = folder / f"{number}.jl"
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
        paths.append(path)
    return paths


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".json":
        return list(json.loads(path.read_text("utf-8")))
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


FLAT = [item for rows in ITEMS for item in rows]
CELLS = [
    {"title": "ü\u2028\n", "price": "1.5", "tags": "a,b", "nested": ""},
    {"title": "", "price": "", "tags": "", "nested": '{"a": [1]}'},
    {"title": 'quote " and, comma', "price": "0", "tags": "", "nested": ""},
]


@pytest.mark.parametrize(("name", "expected"), [("a.jl", FLAT), ("a.jsonl", FLAT), ("a.json", FLAT), ("a.csv", CELLS)])
def test_every_item_is_there_once_and_in_order(tmp_path: Path, name: str, expected: list[Any]) -> None:
    output = ItemOutput.named(tmp_path / "new" / "folder" / name)
    assert merge(Items(parts_of(tmp_path / "parts", ITEMS)), [output]) == 3
    assert read(output.path) == expected
    assert [path.name for path in output.path.parent.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.jl", "a.json", "a.csv"])
def test_no_items_make_an_empty_file_of_the_kind(tmp_path: Path, name: str) -> None:
    output = ItemOutput.named(tmp_path / name)
    assert merge(Items([]), [output]) == 0
    assert read(output.path) == []


@pytest.mark.parametrize("name", ["a.jl", "a.json", "a.csv"])
def test_an_old_file_is_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("old")
    merge(Items(parts_of(tmp_path / "parts", [[{"a": "1"}]])), [ItemOutput.named(tmp_path / name)])
    assert read(tmp_path / name) == [{"a": "1"}]


@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_are_added_to_a_file_that_is_there(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.jl"
    path.write_text('{"a": 0}' + end)
    assert merge(Items(parts_of(tmp_path / "parts", [[{"a": 1}]])), [ItemOutput.named(path, overwrite=False)]) == 1
    assert read(path) == [{"a": 0}, {"a": 1}]


def test_rows_are_added_below_the_columns_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("b,a\r\n2,1\r\n")
    merge(Items(parts_of(tmp_path / "parts", [[{"a": 3, "b": 4}]])), [ItemOutput.named(path, overwrite=False)])
    assert read(path) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_nothing_is_added_to_a_json_list_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="nothing can be added"):
        ItemOutput.named(path, overwrite=False)
    assert path.read_text() == "[1]"


def test_a_merge_that_fails_leaves_the_old_file_and_no_half_one(tmp_path: Path) -> None:
    (tmp_path / "a.jl").write_text("old")
    with pytest.raises(FileNotFoundError):
        merge(
            Items([*parts_of(tmp_path / "parts", ITEMS), tmp_path / "lost.jl"]), [ItemOutput.named(tmp_path / "a.jl")]
        )
    assert (tmp_path / "a.jl").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jl", "parts"]


@pytest.mark.parametrize("name", ["a.xml", "a", "a.jl.gz", "a.pickle"])
def test_an_unknown_format_is_told_before_anything_starts(name: str) -> None:
    with pytest.raises(ConfigError, match="Items can be merged into"):
        ItemOutput.named(name)


def test_a_stated_format_goes_before_the_name() -> None:
    assert ItemOutput.named("a.txt", format="csv").format == "csv"
    assert ItemOutput.named("A.JSON").format == "json"
    with pytest.raises(ConfigError):
        ItemOutput.named("a.jl", format="marshal")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.dictionaries(TEXT, TEXT | st.integers() | st.none(), min_size=1, max_size=3), max_size=3),
        max_size=3,
    )
)
def test_any_items_come_out_as_they_went_in(tmp_path: Path, items: list[list[dict[str, Any]]]) -> None:
    outputs = [ItemOutput.named(tmp_path / "x.jl"), ItemOutput.named(tmp_path / "x.json")]
    merge(Items(parts_of(tmp_path / "parts", items)), outputs)
    flat = [item for rows in items for item in rows]
    assert read(outputs[0].path) == read(outputs[1].path) == flat


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jl")
    with pytest.raises(ConfigError, match="not a regular file"):
        ItemOutput.named(tmp_path / "pipe.jl")
    with pytest.raises(ConfigError, match="is a folder"):
        ItemOutput.named(tmp_path, format="csv")


def test_nested_values_are_json_text_in_a_cell(tmp_path: Path) -> None:
    items: list[list[dict[str, Any]]] = [
        [{"a": {"b": "ü"}, "c": [1, "x"], "d": ["x", "y"], "e": []}],
        [{"f": 1, "a": True}],
    ]
    output = ItemOutput.named(tmp_path / "a.csv")
    merge(Items(parts_of(tmp_path / "parts", items)), [output])
    first, second = read(output.path)
    assert list(first) == ["a", "c", "d", "e", "f"]
    assert (first["a"], first["c"], first["d"], first["e"]) == ('{"b": "ü"}', '[1, "x"]', "x,y", "")
    assert (second["f"], second["a"]) == ("1", "True")


def test_a_crawl_whose_name_begins_like_the_producers_own_files(tmp_path: Path) -> None:
    own = ["own-0.jl", "own-2.jl", "own-10.jl"]
    others = ["own-20260102T030405Z.b1.a1.jl", "own-2.b1.a1.jl", "own-.jl", "own-2.jl.part"]
    for name in (*own, *others):
        (tmp_path / name).touch()
    assert [path.name for path in own_parts(tmp_path)] == own
