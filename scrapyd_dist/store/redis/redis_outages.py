"""Says which answers of a Redis server are troubles that pass by themselves."""

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


def answer_passes(error: Exception) -> bool:
    """Return whether a trouble may pass by itself.

    It is waited for then, as a server is that cannot be reached. The step in question was not made:
    it is asked for again as a whole.
    """
    first_word = str(error).partition(" ")[0]
    if first_word in REDIS:
        return True
    return any(kind.__name__ in REDIS for kind in type(error).__mro__)
