"""Files of JSON lines as items: torn lines are told, a key leaves each once, the newest are found from the end."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.items import tail_reader
from scrapyd_dist.items.json_lines import Items, item_in
from scrapyd_dist.items.tail_reader import LocalFile, TailSource, shares


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
    items = Items(
        made(tmp_path, b'{"a": 1}\n[1]\n{"a": 2}\n\xff\xfe\n' + b"[" * 100_000 + b"\n"), check=True
    )
    assert [value["a"] for value in items.values()] == [1, 2]
    assert (items.found[0].bad, items.found[0].first_bad, items.found[0].torn) == (3, 2, 0)


def test_of_several_items_with_a_key_the_first_counts(tmp_path: Path) -> None:
    texts = (
        b'{"id": 1, "n": "a"}\n{"id": 2, "n": "b"}\n',
        b'{"n": "c", "id": 1}\n{"n": "d"}\n{"n": "d"}\n{"id": null}\n',
    )
    items = Items(made(tmp_path, *texts), key=["id"])
    assert [value.get("n") for value in items.values()] == ["a", "b", "d", "d", None]
    assert [(found.items, found.duplicates, found.whole) for found in items.found] == [
        (2, 0, 2),
        (3, 1, 4),
    ]
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


@pytest.mark.parametrize(
    "line", [b"", b"1", b"null", b'"a"', b"{", b'{"a": 1', b'{"a": 1}}', b"\xff"]
)
def test_what_is_no_object_is_no_item(line: bytes) -> None:
    assert item_in(line) is None


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are shorter than the files here."""
    monkeypatch.setattr(tail_reader, "BLOCK", 16)


def tap_of(path: Path, text: bytes) -> TailSource:
    path.write_bytes(text)
    return TailSource(LocalFile(path=path))


def rest_of(tap: TailSource) -> list[bytes]:
    found = []
    while (lines := tap.more()) is not None:
        found += lines
    return found


LINES = [b'{"number": %d}' % number for number in range(20)]
TEXT = b"\n".join(LINES) + b"\n"


@pytest.mark.parametrize("count", [0, 1, 2, 7, 19, 20, 21, 500])
@pytest.mark.parametrize("torn", [b"", b'{"number"', b"x" * 100])
def test_the_last_lines_are_found_from_the_end(tmp_path: Path, count: int, torn: bytes) -> None:
    tap = tap_of(tmp_path / "a", TEXT + torn)
    assert tap.seek_last(count) == min(count, 20)
    assert rest_of(tap) == LINES[20 - min(count, 20) :]


def test_what_comes_later_is_read_on_also_when_a_line_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a"
    tap = tap_of(path, TEXT + b'{"num')
    assert (tap.seek_last(0), rest_of(tap)) == (0, [])
    with path.open("ab") as file:
        file.write(b'ber": 20}\n\n{"number"')
    assert rest_of(tap) == [b'{"number": 20}']
    with path.open("ab") as file:
        file.write(b": 21}\n")
    assert rest_of(tap) == [b'{"number": 21}']
    assert tap.more() is None


def test_it_goes_on_at_another_place_with_the_same_bytes(tmp_path: Path) -> None:
    tap = tap_of(tmp_path / "a", TEXT[:100])
    tap.seek_last(2)
    first = rest_of(tap)
    (tmp_path / "b").write_bytes(TEXT)
    (tmp_path / "a").unlink()
    assert tap.more() is None
    tap.reader = LocalFile(path=tmp_path / "b")
    assert (first + rest_of(tap))[2:] == LINES[TEXT[:100].count(b"\n") :]


def test_a_file_that_is_not_there_yet_has_nothing(tmp_path: Path) -> None:
    tap = TailSource(LocalFile(path=tmp_path / "none"))
    assert (tap.seek_last(5), tap.more()) == (0, None)
    (tmp_path / "none").write_bytes(b"{}\n")
    assert rest_of(tap) == [b"{}"]


def test_a_line_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_reader, "LINE_MAX", 50)
    tap = tap_of(tmp_path / "a", b'{"a": 1}\n' + b"x" * 500 + b'\n{"a": 2}\n' + b"y" * 40 + b"\n")
    assert rest_of(tap) == [b'{"a": 1}', b'{"a": 2}', b"y" * 40]


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(0, 100))
def test_shares_are_even_and_give_what_there_is(available: list[int], total: int) -> None:
    given_ = shares(available, total)
    assert sum(given_) == min(total, sum(available))
    assert all(mine <= all_ for mine, all_ in zip(given_, available, strict=True))
    short = [mine for mine, all_ in zip(given_, available, strict=True) if mine < all_]
    assert not short or max(given_) - min(short) <= 1
