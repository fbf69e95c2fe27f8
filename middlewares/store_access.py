"""Opens the store of a worker's crawl by the address in its job, and only if it is this crawl's.

A worker never makes a store. One that is not there, or that is another one, is out of reach, and
why is one sentence. Part of the worker half: imports Scrapy and the standard library only.
"""

import os
from pathlib import Path

from scrapyd_dist.batches import home_of
from scrapyd_dist.errors import DistError, NothingMatched
from scrapyd_dist.keys import SealError
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE
from scrapyd_dist.store.ports.address_text import file_of, shown

from .assignment import Assignment


class OutOfReach(Exception):
    """The store cannot be used from here; the text says why."""

    def __init__(self, why: str, *, lasting: bool = True) -> None:
        super().__init__(why)
        #: trying again later cannot help, as it may with a server that is just being started
        self.lasting = lasting


class OtherStore(OutOfReach):
    """The store that answers does not have the crawl: it is another one, or has lost its data."""


def reach(job: Assignment) -> Store:
    """Open the store of a job's crawl.

    Each call gives a connection of its own, which the caller closes.
    What the node's environment says of it comes before what the job says.

    Raises:
        OutOfReach: the store cannot be opened here, or is another one.
    """
    where = _find_address(job)
    file = file_of(where)
    if file is not None:
        _check_file(file)
    try:
        store = open_store(where, durable=False, owned=False, key=job.crawl_key())
    except SealError as error:
        raise OutOfReach(f"the key of this crawl cannot be opened: {error}") from None
    except (DistError, ImportError, OSError) as error:
        raise OutOfReach(str(error), lasting=False) from None
    try:
        _check_same(store, job, shown(where))
    except BaseException:
        store.close()
        raise
    return store


def reach_several(job: Assignment, number: int) -> list[Store]:
    """Open the store of a job's crawl as often as this, or not at all; else as `reach`."""
    stores: list[Store] = []
    try:
        while len(stores) < number:
            stores.append(reach(job))
    except BaseException:
        for store in stores:
            store.close()
        raise
    return stores


def _find_address(job: Assignment) -> str:
    plain = os.environ.get(VARIABLE, "").strip() or job.store
    if plain:
        return plain
    if not job.store_sealed:
        raise OutOfReach(f"its job was told of no store, and {VARIABLE} is not set on its node")
    # Only an address with a password pays for this import.
    from cryptography.fernet import Fernet, InvalidToken

    try:
        key = job.crawl_key()
    except ValueError as error:
        raise OutOfReach(f"the store's address is encrypted, and {error}") from None
    if key is None:
        raise OutOfReach(
            "the store's address is encrypted, and this code carries no key; deploy it with sdist"
        )
    try:
        return Fernet(key).decrypt(job.store_sealed).decode()
    except InvalidToken:
        raise OutOfReach(
            "the store's address is encrypted with another key than this code carries; deploy again"
        ) from None


def _check_file(path: Path) -> None:
    if not path.is_absolute():
        raise OutOfReach(
            f"the store {path} has no absolute path, and only its own machine knows what it is"
            " below"
        )
    try:
        is_there = path.is_file()
    except OSError as error:
        raise OutOfReach(f"the store {path} cannot be looked at: {error.strerror}") from None
    if not is_there:
        raise OutOfReach(
            f"there is no file {path} where this worker runs: that is another machine, or a"
            " container that does not see it"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise OutOfReach(f"the user that runs Scrapyd there may not write the store {path}")


def _check_same(store: Store, job: Assignment, place: str) -> None:
    """Check that the store has this crawl, and not another one of that name.

    The crawl's folder in the nodes' logs shows which one it is.
    """
    try:
        row = store.crawl(job.crawl)
    except NothingMatched:
        raise OtherStore(
            f"{place}, as this worker sees it, is another store: it has no crawl {job.crawl}"
        ) from None
    except DistError as error:
        raise OutOfReach(str(error), lasting=False) from None
    if home_of(row.id, row.created) != job.home:
        raise OtherStore(
            f"{place}, as this worker sees it, is another store: its crawl {job.crawl} is another"
            " one"
        )
