"""Files that a crawl adds its items to: they stand there once, and what others wrote stays."""

from pathlib import Path

import pytest

from scrapyd_dist.items.added_items import AddedFile, AddedRanges, adding_to
from scrapyd_dist.items.json_lines import Items
from scrapyd_dist.items.merging import ItemOutput, merge


@pytest.fixture
def ranges(tmp_path: Path) -> AddedRanges:
    return AddedRanges(tmp_path / "crawl")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "items.jl"


def add(file: Path, ranges: AddedRanges | None, content: bytes) -> None:
    with adding_to(file, ranges) as added:
        added.file.write(content)


@pytest.mark.parametrize("before", [b"", b"older\n"])
def test_what_is_written_again_stands_there_once_and_what_others_wrote_stays(
    file: Path, ranges: AddedRanges, before: bytes
) -> None:
    if before:
        file.write_bytes(before)
    add(file, ranges, b"one\n")
    add(file, None, b"another crawl\n")
    add(file, ranges, b"one\ntwo\n")
    assert file.read_bytes() == before + b"one\ntwo\nanother crawl\n"
    add(file, ranges, b"")
    assert file.read_bytes() == before + b"another crawl\n"


def kill_before_it_has_its_name(
    file: Path, ranges: AddedRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = AddedFile(file, ranges)
    added.file.write(b"one\ntwo\n")
    with monkeypatch.context() as patch:
        patch.setattr(added._fresh, "finish", lambda: None)
        added.finish()
    added.drop()


def test_a_process_that_was_killed_on_the_way_leaves_nothing_twice(
    file: Path, ranges: AddedRanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_bytes(b"older\n")
    kill_before_it_has_its_name(file, ranges, monkeypatch)
    add(file, ranges, b"one\n")
    for _ in range(2):
        kill_before_it_has_its_name(file, ranges, monkeypatch)
    assert file.read_bytes() == b"older\none\n"
    add(file, ranges, b"one\ntwo\n")
    assert file.read_bytes() == b"older\none\ntwo\n"


@pytest.mark.parametrize("line", [b"b\n", b"a\n"])
def test_what_others_have_moved_is_found(tmp_path: Path, line: bytes) -> None:
    """One of them has the same lines as the other."""
    file = tmp_path / "items.jl"
    first, second = AddedRanges(tmp_path / "1"), AddedRanges(tmp_path / "2")
    add(file, first, b"a\n")
    add(file, second, line * 3)
    add(file, first, b"a\nmore\n")
    add(file, second, line * 4)
    add(file, first, b"a\n")
    assert sorted(file.read_bytes().splitlines()) == sorted([b"a", *[line.strip()] * 4])


def test_nothing_that_was_added_takes_no_place_in_a_line_of_others(
    file: Path, ranges: AddedRanges
) -> None:
    file.write_bytes(b"older\n")
    add(file, ranges, b"")
    file.write_bytes(b"a longer line\n")
    add(file, ranges, b"one\n")
    assert file.read_bytes() == b"a longer line\none\n"


def test_a_line_without_an_end_gets_one(tmp_path: Path, file: Path, ranges: AddedRanges) -> None:
    file.write_bytes(b'{"older": 1}')
    part = tmp_path / "part.jl"
    for number in (1, 2):
        part.write_text(f'{{"a": {number}}}\n')
        merge(Items([part]), [ItemOutput.named(file, overwrite=False)], ranges=ranges)
    assert file.read_text() == '{"older": 1}\n{"a": 2}\n'


def test_a_file_that_has_other_bytes_there_is_added_to(file: Path, ranges: AddedRanges) -> None:
    add(file, ranges, b"one\n")
    file.write_bytes(b"new\nfile\n")
    add(file, ranges, b"one\n")
    assert file.read_bytes() == b"new\nfile\none\n"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": {"/a": [[1]]}}', '{"files": 3}'])
def test_a_broken_note_is_none(tmp_path: Path, file: Path, content: str) -> None:
    (tmp_path / "added.json").write_text(content)
    for line in (b"one\n", b"two\n"):
        add(file, AddedRanges(tmp_path), line)
    assert file.read_bytes() == b"two\n"


def test_crawls_that_add_at_the_same_moment_keep_what_the_others_have(
    tmp_path: Path, file: Path
) -> None:
    file.write_bytes(b"older\n")
    ranges = [AddedRanges(tmp_path / name) for name in ("a", "b", "c")]

    def add_at_once(word: str) -> None:
        opened = [AddedFile(file, known) for known in ranges]
        for name, added in zip("abc", opened, strict=True):
            added.file.write(f"{name} {word}\n".encode())
        for added in opened:
            added.finish()

    add_at_once("once")
    assert file.read_text().splitlines() == ["older", "a once", "b once", "c once"]
    add_at_once("at last")
    assert file.read_text().splitlines() == ["older", "a at last", "b at last", "c at last"]
    assert [path.name for path in file.parent.glob(".*")] == []


def test_a_file_that_is_gone_meanwhile_has_the_items_alone(file: Path, ranges: AddedRanges) -> None:
    file.write_bytes(b"older\n")
    added = AddedFile(file, ranges)
    added.file.write(b"one\n")
    file.unlink()
    added.finish()
    assert file.read_bytes() == b"one\n"


def test_a_table_that_is_written_again_has_its_columns_once(tmp_path: Path) -> None:
    part = tmp_path / "part.jl"
    output = ItemOutput.named(tmp_path / "items.csv", overwrite=False)
    for lines in ('{"a": 1}\n', '{"a": 1}\n{"a": 2}\n'):
        part.write_text(lines)
        merge(Items([part]), [output], ranges=AddedRanges(tmp_path))
    assert output.path.read_text().split() == ["a", "1", "2"]
    merge(Items([part]), [output])
    assert output.path.read_text().split() == ["a", "1", "2", "1", "2"]
