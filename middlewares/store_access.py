"""The store as a worker sees it: opened by the address that its job was told, and only if it is this crawl's.

The rule it keeps: a worker never makes a store. One that is not there, or that is another one, is out of reach, and why
is one sentence. Part of the worker half: imports Scrapy and the standard library only.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import home_of
from scrapyd_dist.errors import DistError, NothingMatched
from scrapyd_dist.keys import SealError
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE, is_url, shown

from .assignment import crawl_key


class OutOfReach(Exception):
    """The store cannot be used from here; the text says why."""

    def __init__(self, why: str, *, lasting: bool = True) -> None:
        super().__init__(why)
        self.lasting = lasting  #: trying again later cannot help, as it may with a server that is just being started


def reach(told: Mapping[str, Any], *, crawl: str, home: str) -> Store:
    """Open the store of a crawl or frontier; each call gives a connection of its own, which the caller closes.

    `told` is what the job was told of it, as `store.reach.Way` has it; what the node's environment says comes first.
    `home` is the crawl's folder in the nodes' logs, which tells it apart from another one of that name. OutOfReach if
    the store cannot be opened here, or is another one.
    """
    where = _address(told)
    if not is_url(where):
        _check_file(Path(where.removeprefix("sqlite://")))
    try:
        store = open_store(where, durable=False, key=crawl_key(told))
    except SealError as error:
        raise OutOfReach(f"the key of this crawl cannot be opened: {error}") from None
    except (DistError, ImportError, OSError) as error:
        raise OutOfReach(str(error), lasting=False) from None
    try:
        _check_same(store, crawl, home, shown(where))
    except BaseException:
        store.close()
        raise
    return store


def _address(told: Mapping[str, Any]) -> str:
    if plain := os.environ.get(VARIABLE, "").strip() or told.get("store"):
        return str(plain)
    if not told.get("store_sealed"):
        raise OutOfReach(f"its job was told of no store, and {VARIABLE} is not set on its node")
    from cryptography.fernet import Fernet, InvalidToken  # only an address with a password pays for it

    try:
        key = crawl_key(told)
    except ValueError as error:
        raise OutOfReach(f"the store's address is encrypted, and {error}") from None
    if key is None:
        raise OutOfReach("the store's address is encrypted, and this code carries no key; deploy it with sdist")
    try:
        return Fernet(key).decrypt(told["store_sealed"]).decode()
    except InvalidToken:
        raise OutOfReach(
            "the store's address is encrypted with another key than this code carries; deploy again"
        ) from None


def _check_file(path: Path) -> None:
    if not path.is_absolute():
        raise OutOfReach(f"the store {path} has no absolute path, and only its own machine knows what it is below")
    try:
        there = path.is_file()
    except OSError as error:
        raise OutOfReach(f"the store {path} cannot be looked at: {error.strerror}") from None
    if not there:
        raise OutOfReach(
            f"there is no file {path} where this worker runs: that is another machine, or a container that does not see"
            " it"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise OutOfReach(f"the user that runs Scrapyd there may not write the store {path}")


def _check_same(store: Store, crawl: str, home: str, place: str) -> None:
    try:
        row = store.crawl(crawl)
    except NothingMatched:
        raise OutOfReach(f"{place}, as this worker sees it, is another store: it has no crawl {crawl}") from None
    except DistError as error:
        raise OutOfReach(str(error), lasting=False) from None
    if home_of(row.id, row.created) != home:
        raise OutOfReach(f"{place}, as this worker sees it, is another store: its crawl {crawl} is another one")
