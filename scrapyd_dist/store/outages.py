"""Tells which troubles of a store pass by themselves, and are waited for; others end a crawl.

A server that cannot be reached is waited for as well, by the client. The step in question was not
made: it is asked for again as a whole.
"""

import sqlite3

#: seconds for which a store is waited for
PATIENCE = 30.0
#: the client's name of an answer of a Redis server, or its first word -> what is the matter
REDIS = {
    "BusyLoadingError": "it reads its file, after a start",
    "BUSY": "a script of somebody else runs",
    "ReadOnlyError": "it is a replica now: another server takes over",
    "MasterDownError": "the server that it copies is away",
    "NOREPLICAS": "too few replicas have what was written",
    "ClusterDownError": "a part of the cluster is away",
    "TryAgainError": "the slot of the store moves to another server",
    "MovedError": "the slot of the store has moved",
    "AskError": "the slot of the store moves to another server",
    "MISCONF": "it cannot write its file to disk",
    "OutOfMemoryError": "its memory is full",
}
#: how SQLite's words of an error begin -> what is the matter
SQLITE = {
    "database or disk is full": "the disk is full, or the file as large as it may be",
    "disk I/O error": "the disk has failed, or does for the moment",
    "database is locked": "another process holds it for long",
    "unable to open database file": "a file beside it cannot be opened",
}


def passes(error: Exception) -> bool:
    """Return whether a trouble may pass by itself."""
    if isinstance(error, sqlite3.Error):
        return str(error).startswith(tuple(SQLITE))
    first_word = str(error).partition(" ")[0]
    if first_word in REDIS:
        return True
    return any(kind.__name__ in REDIS for kind in type(error).__mro__)
