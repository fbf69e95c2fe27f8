"""Finds and opens the store of a project.

The rule it keeps: looking makes no store, and no address is ever shown with its password.
"""

import ast
import os
import secrets
from pathlib import Path

from scrapyd_dist.batches import Batch
from scrapyd_dist.config import OWN_SECTION, STATE_FOLDER, load, state_dir, state_folder
from scrapyd_dist.errors import ConfigError, ForeignRow
from scrapyd_dist.keys import known_key, state_key
from scrapyd_dist.payload import PayloadError, RequestValue, decode
from scrapyd_dist.project_settings import written_setting
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE, store_address
from scrapyd_dist.store.ports.address_text import file_of

#: the setting with the store's address
SETTING = "DISTRIBUTED_STORE"
#: the key with the store's address, of the [sdist] section in scrapy.cfg
OPTION = "store"


def find_store_address(root: Path) -> str:
    """Return the address of the project's store: a server's URL, or a file's absolute path.

    The environment goes before scrapy.cfg's `[sdist] store`, and that before DISTRIBUTED_STORE in
    the settings; ConfigError where that is computed.
    """
    if os.environ.get(VARIABLE) or not (root / "scrapy.cfg").is_file():
        return store_address(root)
    try:
        project = load(root)
    except ConfigError:
        return store_address(root)  # a command that needs more of the project reports it
    if project.options.get(OPTION):
        return store_address(root, project.options[OPTION])
    value = written_setting(root, project.settings_module, SETTING)
    if value is None:
        return store_address(root)
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str | None):
        raise ConfigError(
            f"{SETTING} in {project.settings_module} is computed, and a command does not run your"
            " settings to look for a crawl. Put the store's address into the environment"
            f" ({VARIABLE}), or into scrapy.cfg: [{OWN_SECTION}] with {OPTION} ="
            " $NAME_OF_A_VARIABLE."
        )
    return store_address(root, value.value)


def maybe_store(root: Path) -> Store | None:
    """Return the project's store, or None if nothing was ever kept there.

    A server is always there.
    """
    address = find_store_address(root)
    file = file_of(address)
    if file is None:
        # Where the project has no key, nothing on a server can be its own, and any other key says
        # so as well.
        return open_store(address, key=known_key(state_folder(root)) or secrets.token_bytes(32))
    if not file.exists():
        return None
    return open_store(address, key=key_of(root))


def project_store(root: Path) -> Store:
    """Return the project's store; it is made, with the state folder, when there is none."""
    return open_store(find_store_address(root), key=key_of(root))


def key_of(root: Path) -> bytes:
    """Return the key that what must be hidden is encrypted with."""
    return state_key(state_dir(root))


def requests_in(store: Store, root: Path, frontier: str, batch: Batch) -> list[RequestValue]:
    """Return the requests of a batch of a frontier.

    Raises:
        ConfigError: they are encrypted with a key that is not this folder's.
    """
    try:
        return decode(store.payload(frontier, batch.number).get, key=key_of(root))
    except ForeignRow as error:
        raise ConfigError(str(error)) from None
    except PayloadError as error:
        raise ConfigError(
            f"Batch {batch.number} of {frontier} cannot be read here: {error}. What is more than an"
            f" address is encrypted with the key in {root / STATE_FOLDER}; run this in the folder"
            " of the project that filled the frontier."
        ) from error
