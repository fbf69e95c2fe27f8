"""Parts and feeds become one item file; feeds are read from its own place only."""

import csv
import json
import os
import tracemalloc
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rig.ftp import FtpServer
from scrapy import Field, Item
from scrapy.exporters import CsvItemExporter
from scrapyd_dist.middlewares.worker.files import PartFile

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.delivery import own_parts, read_back
from scrapyd_dist.items.json_lines import Items
from scrapyd_dist.items.merging import (
    ItemOutput,
    OutputNotWritten,
    UnwrittenItems,
    is_elsewhere,
    merge,
)

ITEMS: list[list[dict[str, Any]]] = [
    [
        {"title": "ü\u2028\n", "price": 1.5, "tags": ["a", "b"]},
        {"title": None, "nested": {"a": [1]}},
    ],
    [],
    [{"title": 'quote " and, comma', "price": 0}],
]


def parts_of(folder: Path, items: list[list[dict[str, Any]]]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for number, rows in enumerate(items):
        path = folder / f"{number}.jl"
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8"
        )
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
    {"title": "", "price": "", "tags": "", "nested": "{'a': [1]}"},
    {"title": 'quote " and, comma', "price": "0", "tags": "", "nested": ""},
]


@pytest.mark.parametrize(
    ("name", "expected"), [("a.jl", FLAT), ("a.jsonl", FLAT), ("a.json", FLAT), ("a.csv", CELLS)]
)
def test_every_item_is_there_once_and_in_order_whatever_was_there(
    tmp_path: Path, name: str, expected: list[Any]
) -> None:
    output = ItemOutput.named(tmp_path / "new" / "folder" / name)
    for items, rows in ((ITEMS, expected), ([], []), (ITEMS, expected)):
        assert merge(Items(parts_of(tmp_path / "parts", items)), [output]) == len(rows)
        assert read(output.path) == rows
        assert [path.name for path in output.path.parent.iterdir()] == [name]
        output.path.write_text("old")


@pytest.mark.parametrize("name", ["a.jl", "a.json", "a.csv"])
def test_memory_does_not_grow_with_the_number_of_items(tmp_path: Path, name: str) -> None:
    output = ItemOutput.named(tmp_path / name)

    def peak(count: int) -> int:
        items = Items(parts_of(tmp_path / "parts", [[{"id": number} for number in range(count)]]))
        tracemalloc.start()
        assert merge(items, [output]) == count
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(100)
    assert peak(4_000) < peak(400) + 100_000


@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_are_added_to_a_file_that_is_there(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.jl"
    path.write_text('{"a": 0}' + end)
    assert (
        merge(
            Items(parts_of(tmp_path / "parts", [[{"a": 1}]])),
            [ItemOutput.named(path, overwrite=False)],
        )
        == 1
    )
    assert read(path) == [{"a": 0}, {"a": 1}]


def test_rows_are_added_below_the_columns_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("b,a\r\n2,1\r\n")
    merge(
        Items(parts_of(tmp_path / "parts", [[{"a": 3, "b": 4}]])),
        [ItemOutput.named(path, overwrite=False)],
    )
    assert read(path) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def test_nothing_is_added_to_a_json_list_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="nothing can be added"):
        ItemOutput.named(path, overwrite=False)
    assert path.read_text() == "[1]"


def test_a_merge_that_fails_leaves_the_old_file_and_no_half_one(tmp_path: Path) -> None:
    (tmp_path / "a.jl").write_text("old")
    output = ItemOutput.named(tmp_path / "a.jl")
    with pytest.raises(FileNotFoundError):
        merge(Items([*parts_of(tmp_path / "parts", ITEMS), tmp_path / "lost.jl"]), [output])
    assert (tmp_path / "a.jl").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jl", "parts"]


@pytest.mark.parametrize("name", ["out/items.jl", "out/deep/items.csv"])
def test_a_folder_that_has_become_a_file_is_told_with_what_to_do(tmp_path: Path, name: str) -> None:
    output = ItemOutput.named(tmp_path / name)
    (tmp_path / "out").write_text("a file")
    with pytest.raises(
        OutputNotWritten, match=r"cannot be written to .*out.*They are all home.*items merge"
    ):
        merge(Items(parts_of(tmp_path / "parts", ITEMS)), [output])
    assert (tmp_path / "out").read_text() == "a file"


@pytest.mark.parametrize(
    ("name", "stated"),
    [("a.xml", None), ("a", None), ("a.jl.gz", None), ("a.pickle", None), ("a.jl", "marshal")],
)
def test_an_unknown_format_is_told_before_anything_starts(name: str, stated: str | None) -> None:
    with pytest.raises(ConfigError, match="Items can be merged into"):
        ItemOutput.named(name, format=stated)


def test_a_stated_format_goes_before_the_name() -> None:
    assert ItemOutput.named("a.txt", format="csv").format == "csv"
    assert ItemOutput.named("A.JSON").format == "json"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(
            st.dictionaries(TEXT, TEXT | st.integers() | st.none(), min_size=1, max_size=3),
            max_size=3,
        ),
        max_size=3,
    )
)
def test_any_items_come_out_as_they_went_in(
    tmp_path: Path, items: list[list[dict[str, Any]]]
) -> None:
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


class Wide(Item):
    """An item that declares more fields than it has, in another order."""

    d, c, b, a, f = Field(), Field(), Field(), Field(), Field()


@pytest.mark.parametrize("kind", [dict, Wide])
def test_a_csv_file_is_the_one_of_scrapys_exporter(kind: type[Any], tmp_path: Path) -> None:
    items = [
        kind({"f": 1.5, "d": ["x", "y"], "c": [1, "x"], "a": {"b": "ü"}}),
        kind({"a": True, "f": None, "d": 'a "b", c', "c": []}),
    ]
    part = PartFile(tmp_path, "part")
    for item in items:
        part.add(item)
    fields = part.close()["fields"]
    output = ItemOutput.named(tmp_path / "a.csv")
    merge(Items([part.path]), [output], fields)
    with (tmp_path / "scrapy.csv").open("wb") as file:
        exporter = CsvItemExporter(cast("BytesIO", file))
        exporter.start_exporting()
        for item in items:
            exporter.export_item(item)
        exporter.finish_exporting()
    assert output.path.read_bytes() == (tmp_path / "scrapy.csv").read_bytes()


def test_a_column_of_a_later_item_is_a_column_of_all(tmp_path: Path) -> None:
    output = ItemOutput.named(tmp_path / "a.csv")
    merge(Items(parts_of(tmp_path / "parts", [[{"a": 1}], [{"b": 2}]])), [output])
    assert read(output.path) == [{"a": "1", "b": ""}, {"a": "", "b": "2"}]


def test_a_crawl_whose_name_begins_like_the_producers_own_files(tmp_path: Path) -> None:
    own = ["own-0.jl", "own-2.jl", "own-10.jl"]
    others = ["own-20260102T030405Z.b1.a1.jl", "own-2.b1.a1.jl", "own-.jl", "own-2.jl.part"]
    for name in (*own, *others):
        (tmp_path / name).touch()
    assert [path.name for path in own_parts(tmp_path)] == own


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared" / "feeds"
    folder.mkdir(parents=True)
    (folder / "c_1_a1_items.jl").write_text('{"a": 1}\n')
    (folder / "c 2.jl").write_text('{"a": 2}\n')
    (tmp_path / "shared" / "secret").write_text("secret")
    return folder


@pytest.mark.parametrize(
    ("uris", "template", "read", "warned"),
    [
        (["file://{0}/c_1_a1_items.jl", "{0}/c_1_a1_items.jl", "file://{0}/c%202.jl"], "file://{0}/items.jl",
         [1, 1, 2], []),
        # what the template leaves open may be anything below its folder
        (["file://{0}/c%202.jl"], "file://{0}/%(batch)s.jl", [2], []),
        (["file://{0}/c%202.jl"], "{0}/%(name)s/%(batch)s.jl", [2], []),
        (["file://{0}/c%202.jl"], "{0}/x_%(batch)s", [2], []),
        # one that is not there costs no other
        (["file://{0}/lost.jl", "file://{0}/c%202.jl"], "file://{0}/%(batch)s.jl", [2], ["lost.jl is not merged"]),
        (["s3://bucket/1.jl"], "s3://bucket/%(batch)s.jl", [], ["s3://"]),
    ],
)  # fmt: skip
def test_local_feeds_are_read_where_they_are(
    shared: Path, tmp_path: Path, uris: list[str], template: str, read: list[int], warned: list[str]
) -> None:
    asked = [uri.format(shared) for uri in uris]
    copies, warnings = read_back(asked, template.format(shared), tmp_path / "copies")
    assert [(path.parent, json.loads(path.read_text())["a"]) for _, path in copies] == [
        (shared, one) for one in read
    ]
    assert all(said in warning for said, warning in zip(warned, warnings, strict=True))


@pytest.mark.parametrize(
    "uri",
    ["file:///etc/passwd", "/etc/passwd", "file://{0}/../secret", "file://{0}/%2e%2e/secret", "file://other{0}/c_1_a1_items.jl",
     "ftp://evil.invalid/x", "ftp://[", "file://{0}/a%00b", "http://127.0.0.1:99999/", ""],
)  # fmt: skip
def test_what_a_node_says_is_not_opened_elsewhere(uri: str, shared: Path, tmp_path: Path) -> None:
    copies, warnings = read_back(
        [uri.format(shared)], f"file://{shared}/%(batch)s.jl", tmp_path / "copies"
    )
    assert (copies, len(warnings)) == ([], 1)


def test_ftp_feeds_are_fetched_with_the_account_of_the_template(
    ftp_server: Callable[..., FtpServer], tmp_path: Path
) -> None:
    server = ftp_server(user="me", password="p@ss/word")
    (server.folder / "1.jl").write_text('{"a": 1}\n')
    place = server.url.rpartition("@")[2]
    template = f"ftp://me:p%40ss%2Fword@{place}/%(batch)s.jl"
    copies, (warning,) = read_back(
        [f"ftp://{place}/1.jl", f"ftp://{place}/2.jl"], template, tmp_path / "copies"
    )
    assert [path.read_text() for _, path in copies] == ['{"a": 1}\n']
    assert "2.jl is not merged" in warning
    assert "word" not in warning


def test_the_password_does_not_go_to_another_server(
    ftp_server: Callable[..., FtpServer], tmp_path: Path
) -> None:
    mine, other = ftp_server(user="me", password="secret"), ftp_server(user="me", password="secret")
    (other.folder / "1.jl").write_text("bait")
    place, elsewhere = (server.url.rpartition("@")[2] for server in (mine, other))
    template = f"ftp://me:secret@{place}/%(batch)s.jl"
    copies, (warning,) = read_back([f"ftp://{elsewhere}/1.jl"], template, tmp_path / "copies")
    assert copies == []
    assert "does not lead there" in warning


HALVES = [
    {"a": "whole", "b": "\\ud83d"},
    {"a": "\ud83d", "b": "é"},
    {"a": "\U0001f600", "b": "\udcff"},
]


@pytest.mark.parametrize(
    ("name", "only_utf8", "lost"),
    [
        ("a.jl", False, 0),
        ("a.json", False, 0),
        ("a.jl", True, 2),
        ("a.json", True, 2),
        ("a.csv", False, 2),
    ],
)
def test_an_item_that_utf8_cannot_have_is_left_out_and_told_where_scrapys_exporter_loses_it(
    tmp_path: Path, name: str, only_utf8: bool, lost: int
) -> None:
    part = tmp_path / "part.jl"
    part.write_text("".join(json.dumps(item) + "\n" for item in HALVES), "utf-8")
    output = ItemOutput.named(tmp_path / name, only_utf8=only_utf8)
    unwritten = UnwrittenItems()
    merge(Items([part]), [output], unwritten=unwritten)
    assert read(output.path) == HALVES[: len(HALVES) - lost]
    assert unwritten.total() == lost
    told = (
        f"2 items could not be written to {output.path}: '\\ud83d' is half of a surrogate pair,"
        " which UTF-8 does not have."
    )
    assert unwritten.sentences() == ([told] if lost else [])


def test_the_name_of_a_csv_column_may_have_half_of_a_surrogate_pair(tmp_path: Path) -> None:
    part = tmp_path / "part.jl"
    part.write_text('{"\\ud83d": 1}\n', "utf-8")
    output = ItemOutput.named(tmp_path / "a.csv")
    merge(Items([part]), [output])
    assert output.path.read_text("utf-8").split() == ["\\ud83d", "1"]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("items.jl", False),
        ("out/a:b.jl", False),
        ("/data/a:b.jl", False),
        ("C:items.jl", False),
        ("%(name)s:items.jl", False),
        ("file:///data/items.jl", False),
        ("File:items.jl", False),
        ("stdout:", True),
        ("dated:out/items.jl", True),
        ("s3://bucket/items.jl", True),
        ("ftp://user:p[ss@host/items.jl", True),
    ],
)
def test_a_place_is_elsewhere_by_scrapys_rule(place: str, expected: bool) -> None:
    assert is_elsewhere(place) is expected
