"""The table of engines, and the way to open a store: an address names its engine by its scheme."""

from pathlib import Path

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.store.guarded_store import Store
from scrapyd_dist.store.ports.address_text import scheme_of
from scrapyd_dist.store.ports.engine import Engine, StoreRequest
from scrapyd_dist.store.redis.redis_engine import REDIS_ENGINE
from scrapyd_dist.store.sqlite.sqlite_engine import SQLITE_ENGINE

#: the only place that names them all; a new one is a row here
ENGINES: tuple[Engine, ...] = (
    SQLITE_ENGINE,
    REDIS_ENGINE,
)
#: the client that a job needs which is told of a client and not of its name: the first there was
FIRST_CLIENT = "redis"


def find_engine(where: str | Path) -> Engine | None:
    """Return the engine for this kind of address, if there is one."""
    scheme = scheme_of(where)
    for engine in ENGINES:
        if scheme in engine.schemes:
            return engine
    return None


def find_engine_by_client(client: str) -> Engine | None:
    """Return the engine that needs this package, if there is one."""
    for engine in ENGINES:
        if engine.client is not None and engine.client.name == client:
            return engine
    return None


def client_folders() -> list[str]:
    """Return the top-level folders that the clients of all engines have in an egg."""
    folders: list[str] = []
    for engine in ENGINES:
        if engine.client is not None:
            folders += engine.client.folders
    return folders


def open_store(
    where: str | Path, *, durable: bool = True, owned: bool = True, key: bytes | None = None
) -> Store:
    """Open the store at `where`: the path of an SQLite file, or the URL of a server.

    It belongs to one thread at a time.

    Args:
        where: the file is made when it is not there.
        durable: a step on a file is on the disk before it returns. A worker does without: a power
            cut that takes its last steps takes the worker as well; and it has the file to itself
            for a shorter time.
        owned: the file is refused if others than this user and root can write to it. A job need not
            ask: its producer names the file, and may be another user.
        key: the project's, with which rows are signed; without one nothing is signed, and nothing
            can be checked.

    Raises:
        ConfigError: nothing here knows this kind of address, or what it needs is not installed.
        StoreError: it cannot be opened, or is not a store that this version can use.
    """
    engine = find_engine(where)
    if engine is None:
        # What stands before it may be a password.
        kind = scheme_of(where).rpartition("@")[2]
        examples = ", or ".join(engine.example for engine in ENGINES)
        raise ConfigError(f"a store of the kind {kind}:// is not known; give {examples}.")
    request = StoreRequest(where=str(where), durable=durable, owned=owned, key=key)
    return Store(engine.open_ports(request))
