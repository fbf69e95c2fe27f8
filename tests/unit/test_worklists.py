"""Worklists: each row is a request, or is told with its line."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from scrapyd_dist.middlewares.codec import plain_request

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.worklists import WorklistRow, format_of, rows


def read(
    text: str | bytes, kind: str, column: str | None = None, *, arguments: bool = False
) -> list[Any]:
    data = text.encode() if isinstance(text, str) else text
    return list(rows(data.splitlines(keepends=True), kind=kind, column=column, arguments=arguments))


def urls(found: Iterable[Any]) -> list[tuple[int, str]]:
    """Line and address of the good rows; of bad ones the line and nothing."""
    return [(row.line, row.value.get("url", "")) for row in found]


def test_a_list_of_urls_has_comments_and_blank_lines() -> None:
    text = b"\xef\xbb\xbfhttp://a/1\r\n\n# no\n  http://a/2  \nnot a url\nhttp://a/\xff\nhttp://a/\xc3\xbc"
    assert urls(read(text, "urls")) == [
        (1, "http://a/1"),
        (4, "http://a/2"),
        (5, ""),
        (6, ""),
        (7, "http://a/ü"),
    ]


def test_json_lines_are_urls_or_objects_with_one() -> None:
    text = '"http://a/1"\n{"url": "http://a/2", "priority": 3}\n\n{"url": "http://a/3", "callback": null}\n'
    found = read(text, "jsonl")
    assert urls(found) == [(1, "http://a/1"), (2, "http://a/2"), (4, "http://a/3")]
    assert found[1].value["priority"] == 3


def test_all_fields_of_a_json_line_reach_the_request() -> None:
    text = (
        '{"url": "http://a/", "method": "PUT", "headers": {"A": "b", "C": ["d", "e"]}, "body": "grüße",'
        ' "encoding": "latin-1", "cookies": {"x": "y"}, "meta": {"$tuple": [1]}, "cb_kwargs": {"k": {"$bytes": "AA=="}}'
        ', "priority": -1, "dont_filter": true, "flags": ["f"]}'
    )
    (row,) = read(text, "jsonl")
    request = plain_request({**row.value, "meta": {"m": row.value["meta"]}})
    assert (request.method, request.body, request.encoding) == (
        "PUT",
        "grüße".encode("latin-1"),
        "latin-1",
    )
    assert request.headers.to_unicode_dict() == {"A": "b", "C": "d,e"}
    assert (request.cookies, request.meta, request.cb_kwargs) == (
        {"x": "y"},
        {"m": (1,)},
        {"k": b"\0"},
    )
    assert (request.priority, request.dont_filter, request.flags) == (-1, True, ["f"])


BAD_LINES = [
    "[1]", "3", "null", "{", "{}", '{"url": 3}', '{"url": "nope"}', '{"url": "http://a/", "x": 1}',
    '{"url": "http://a/", "priority": true}', '{"url": "http://a/", "priority": "1"}',
    '{"url": "http://a/", "meta": []}', '{"url": "http://a/", "headers": {"A": 1}}',
    '{"url": "http://a/", "callback": "a b"}', '{"url": "http://a/", "dont_filter": 1}',
    '{"url": "http://a/", "body": "ü", "encoding": "ascii"}', '{"url": "http://a/", "body": "x", "encoding": "none"}',
    '{"url": "http://a/", "encoding": "none"}', '{"url": "http://a/", "encoding": "base64"}',
    '{"url": "http://a/", "priority": 9223372036854775808}',
    '{"url": "http://a/", "body": {"x": 1}}', '{"url": "http://a/", "cookies": 1}', "[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:40])
def test_a_line_that_is_no_request_is_told_and_stops_nothing(line: str) -> None:
    first, bad, last = read(f'"http://a/1"\n{line}\n"http://a/2"', "jsonl")
    assert (bad.line, bool(bad.reason), len(bad.reason) < 300) == (2, True, True)
    assert urls([first, last]) == [(1, "http://a/1"), (3, "http://a/2")]


def test_a_field_that_no_request_has_is_told_with_those_that_there_are() -> None:
    (bad,) = read('{"url": "http://a/", "colour": 1}', "jsonl")
    assert bad.reason.startswith("it has colour, which no request has; there are url, callback")


CSV = 'id;Page\n1;http://a/1\n\n2; http://a/2 \n3\n4;nope\n5;"http://a/\n5"\n'


@pytest.mark.parametrize("column", ["Page", "2"])
def test_a_column_of_a_csv_by_its_name_or_number(column: str) -> None:
    found = read(CSV, "csv", column)
    assert urls(found)[:4] == [(2, "http://a/1"), (4, "http://a/2"), (5, ""), (6, "")]
    assert [row.line for row in found if row.reason] == [5, 6]


URL_COLUMNS = [
    "url,n\nhttp://a/,1\n",
    "n\turl\n1\thttp://a/\n",
    "pages\nhttp://a/\n",
    "n|url\n|http://a/",
]


@pytest.mark.parametrize("text", URL_COLUMNS)
def test_the_column_url_or_the_only_one_is_taken(text: str) -> None:
    assert urls(read(text, "csv")) == [(2, "http://a/")]


@pytest.mark.parametrize(
    ("text", "column"), [("a,b\n1,2\n", None), ("a,b\n1,2\n", "c"), ("a,b\n", "3"), ("", "a")]
)
def test_a_column_that_is_not_there_is_refused_with_those_that_are(
    text: str, column: str | None
) -> None:
    with pytest.raises(ConfigError, match="has no column"):
        read(text, "csv", column)


def test_only_a_csv_has_columns_and_other_formats_are_none() -> None:
    assert [read("", kind) for kind in ("urls", "jsonl")] == [[], []]
    with pytest.raises(ConfigError, match="Only a CSV"):
        read("", "urls", "url")
    with pytest.raises(ConfigError, match="'xml'"):
        read("", "xml")
    with pytest.raises(ConfigError, match="CSV"):
        read("http://a/", "urls", arguments=True)


def test_the_format_is_known_by_the_files_name() -> None:
    kinds = {
        "a.txt": "urls",
        "a": "urls",
        "a.JL": "jsonl",
        "x/a.csv": "csv",
        "a.tsv": "csv",
        "-": "urls",
    }
    assert {name: format_of(name) for name in kinds} == kinds


def test_no_row_is_read_before_it_is_asked_for() -> None:
    taken = []

    def lines() -> Iterator[bytes]:
        for number in range(1000):
            taken.append(number)
            yield b"http://a/%d\n" % number

    found: Any = rows(lines(), kind="urls")
    for _ in range(3):
        next(found)
    assert taken == [0, 1, 2]


def test_the_columns_of_a_csv_are_the_names_of_arguments_and_each_has_one_of_its_own() -> None:
    first, second, long_ = read("word; number\n a ;1\n;2\nx;3;4\n", "csv", arguments=True)
    value = {"url": '{"number": "1", "word": "a"}', "arguments": {"word": "a", "number": "1"}}
    assert first == WorklistRow(2, value)
    assert second.value["arguments"] == {"number": "2"}  # an empty cell is no argument
    assert long_.reason
    for head in ("a,a\n1,2\n", "a,\n1,2\n"):
        with pytest.raises(ConfigError, match="name of its own"):
            read(head, "csv", arguments=True)


def test_json_lines_are_arguments_where_all_values_are_texts_or_numbers() -> None:
    bad_rows = '{"n": [1]}\n{"n": true}\n[1]\n{\n{"a=b": 1}\n{"project": "x"}\n{"x": "\\u0000"}\n'
    good, *bad = read('{"n": 1, "t": "x", "f": 0.5}\n' + bad_rows, "jsonl", arguments=True)
    assert good.value["arguments"] == {"n": "1", "t": "x", "f": "0.5"}
    assert [(one.line, bool(one.reason)) for one in bad] == [(line, True) for line in range(2, 9)]
    for sizes, what in (
        ({"x": 70_000, "z": 70_000}, "its arguments together are"),
        ({"x": 140_000}, "its x is"),
    ):
        (long_,) = read(
            json.dumps({name: "y" * size for name, size in sizes.items()}), "jsonl", arguments=True
        )
        assert long_ == WorklistRow(1, reason=f"{what} longer than a job can be given")
