"""Says which errors of SQLite are troubles of its file, and which of these pass by themselves."""

import sqlite3

#: how SQLite's words of an error begin -> what is the matter
SQLITE = {
    "database or disk is full": "the disk is full, or the file as large as it may be",
    "disk I/O error": "the disk has failed, or does for the moment",
    "database is locked": "another process holds it for long",
    "unable to open database file": "a file beside it cannot be opened",
}
#: how the errors begin that say nothing of what is stored: others of the class do, such as text
#: that is not UTF-8
_FILE_TROUBLES = ("database ", "disk I/O error", "interrupted", "unable to open")


def fault_passes(error: sqlite3.Error) -> bool:
    """Return whether a trouble may pass by itself.

    It is waited for then. The step in question was not made: it is asked for again as a whole.
    """
    return str(error).startswith(tuple(SQLITE))


def is_file_trouble(error: Exception) -> bool:
    """Return whether an error is about the file as a whole, not about what is stored in it."""
    is_operational = isinstance(error, sqlite3.OperationalError)
    return is_operational and str(error).startswith(_FILE_TROUBLES)
