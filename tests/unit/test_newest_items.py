"""The newest lines of growing item files: found from the end, whole ones only, each once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.items import tail_reader
from scrapyd_dist.items.tail_reader import LocalFile, TailSource, shares


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
