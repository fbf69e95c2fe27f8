"""Finds the address of a project's store."""

import os
from collections.abc import Mapping
from pathlib import Path

from scrapyd_dist.config import STATE_FOLDER
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.settings import SETTINGS
from scrapyd_dist.store.ports.address_text import file_of

#: the file in the state folder, where nothing else was said
STORE_FILE = "store.db"
#: the environment variable with the store's address, which may hold a password; an argument list
#: must not
VARIABLE = SETTINGS["DISTRIBUTED_STORE"].variable


def store_address(
    root: Path, *addresses: str | None, environment: Mapping[str, str] = os.environ
) -> str:
    """Return the address of the project's store: the URL of a server, or an absolute path.

    It is what the environment says, else the first of `addresses` that is not empty, else the
    project's own file. A relative path lies below `root`.

    Raises:
        ConfigError: the address stands in a variable that is not set.
    """
    named = ""
    for text in (environment.get(VARIABLE), *addresses):
        named = (text or "").strip()
        if named:
            break
    if not named:
        return str(root / STATE_FOLDER / STORE_FILE)
    if named.startswith("$"):
        # scrapy.cfg's variables are filled in when it is read, those of a setting are not
        named = environment.get(named[1:].strip("{}"), "").strip() or named
    if named.startswith("$"):
        raise ConfigError(
            f"the address of the store is in the variable {named}, which is not in the environment."
            f" Set it, or set {VARIABLE} to the address."
        )
    file = file_of(named)
    if file is None:
        return named
    return str(root / file.expanduser())
