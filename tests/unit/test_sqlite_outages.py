"""Troubles of an SQLite file that pass are known."""

import sqlite3

import pytest

from scrapyd_dist.store.sqlite.sqlite_outages import fault_passes, is_file_trouble


@pytest.mark.parametrize("words", ["database or disk is full", "disk I/O error"])
def test_what_passes_is_known_by_word(words: str) -> None:
    assert fault_passes(sqlite3.OperationalError(words))


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.DatabaseError("file is not a database"),
        sqlite3.OperationalError("no such table: crawls"),
    ],
)
def test_all_else_is_no_matter_of_time(error: sqlite3.Error) -> None:
    assert not fault_passes(error)


def test_a_row_that_cannot_be_read_is_no_trouble_of_the_file() -> None:
    assert is_file_trouble(sqlite3.OperationalError("unable to open database file"))
    assert not is_file_trouble(sqlite3.OperationalError("Could not decode to UTF-8 column"))
    assert not is_file_trouble(ValueError("database "))
