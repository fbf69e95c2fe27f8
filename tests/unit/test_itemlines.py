"""Files of JSON lines as items: what is torn or no item is left out and told, and a key leaves each item once."""

import tracemalloc
from pathlib import Path

import pytest

from scrapyd_dist.items.json_lines import Items, item_in


def made(folder: Path, *texts: bytes) -> list[Path]:
    paths = [folder / f"{number}.jl" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    return paths


@pytest.mark.parametrize("check", [False, True])
def test_a_torn_last_line_is_dropped_and_told(tmp_path: Path, check: bool) -> None:
    items = Items(made(tmp_path, b'{"a": 1}\n{"a": 22', b'{"a": 3}\r\n\n{"a": 4}'), check=check)
    assert list(items.lines()) == [b'{"a": 1}', b'{"a": 3}', b'{"a": 4}']
    assert [(found.items, found.torn, found.bad) for found in items.found] == [(1, 8, 0), (2, 0, 0)]


def test_lines_that_are_no_items_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    items = Items(made(tmp_path, b'{"a": 1}\n[1]\n{"a": 2}\n\xff\xfe\n' + b"[" * 100_000 + b"\n"), check=True)
    assert [value["a"] for value in items.values()] == [1, 2]
    assert (items.found[0].bad, items.found[0].first_bad, items.found[0].torn) == (3, 2, 0)


def test_of_several_items_with_a_key_the_first_counts(tmp_path: Path) -> None:
    texts = (
        b'{"id": 1, "n": "a"}\n{"id": 2, "n": "b"}\n',
        b'{"n": "c", "id": 1}\n{"n": "d"}\n{"n": "d"}\n{"id": null}\n',
    )
    items = Items(made(tmp_path, *texts), key=["id"])
    assert [value.get("n") for value in items.values()] == ["a", "b", "d", "d", None]
    assert [(found.items, found.duplicates, found.whole) for found in items.found] == [(2, 0, 2), (3, 1, 4)]
    again = [value.get("n") for value in items.values()]
    assert again == ["a", "b", "d", "d", None]


def test_several_fields_make_one_key_and_types_differ(tmp_path: Path) -> None:
    rows = b'{"a": 1, "b": [1]}\n{"a": "1", "b": [1]}\n{"b": [1], "a": 1}\n{"a": 1, "b": {"x": 1, "y": 2}}\n'
    items = Items(made(tmp_path, rows, b'{"a": 1, "b": {"y": 2, "x": 1}}\n'), key=["a", "b"])
    assert len(list(items.lines())) == 3
    assert sum(found.duplicates for found in items.found) == 2


def test_memory_does_not_grow_with_the_number_of_items(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.jl"
        with path.open("w") as file:
            file.writelines(f'{{"id": {number % (count // 2)}}}\n' for number in range(count))
        items = Items([path], key=["id"])
        tracemalloc.start()
        assert sum(1 for _ in items.lines()) == count // 2
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(100)
    assert peak(20_000) < peak(2_000) + 100_000


@pytest.mark.parametrize("line", [b"", b"1", b"null", b'"a"', b"{", b'{"a": 1', b'{"a": 1}}', b"\xff"])
def test_what_is_no_object_is_no_item(line: bytes) -> None:
    assert item_in(line) is None
