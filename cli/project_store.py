"""The project's store, as commands open it: where it is, and whether there is one yet.

The rule it keeps: looking makes no store, and no address is ever shown with its password.
"""

from __future__ import annotations

import ast
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError, ForeignRow, NothingMatched
from scrapyd_dist.store import open_store
from scrapyd_dist.store.address import VARIABLE, chosen, is_url

if TYPE_CHECKING:
    from scrapyd_dist.batches import Batch
    from scrapyd_dist.payload import RequestValue
    from scrapyd_dist.store import Store

SETTING = "DISTRIBUTED_STORE"
#: of the [sdist] section in scrapy.cfg
OPTION = "store"


def where(root: Path) -> str:
    """The address of the project's store: a server's URL, or a file's absolute path.

    The environment goes before scrapy.cfg's `[sdist] store`, and that before DISTRIBUTED_STORE in the settings.

    Raises:
        ConfigError: it is computed, or in a variable that is not set.
    """
    return chosen(root) if os.environ.get(VARIABLE) else chosen(root, _said(root))


def _said(root: Path) -> str | None:
    if not (root / "scrapy.cfg").is_file():
        return None
    try:
        project = config.load(root)
    except ConfigError:
        return None  # a command that needs more of the project reports it
    return project.options.get(OPTION) or _setting(root, project.settings_module)


def _setting(root: Path, module: str) -> str | None:
    """DISTRIBUTED_STORE as the settings module says it; read, not imported: that could take seconds, or fail."""
    path = root / module.replace(".", "/")
    source = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
    text = source.read_text("utf-8", "replace") if source else ""
    if source is None or SETTING not in text:
        return None
    try:
        return _literal(ast.parse(text), source)
    except SyntaxError:
        return None  # the producer tells about it


def _literal(tree: ast.Module, source: Path) -> str | None:
    said: str | None = None
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not any(isinstance(target, ast.Name) and target.id == SETTING for target in targets):
            continue
        value = node.value
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str | None):
            raise ConfigError(
                f"{SETTING} in {source} is computed, and a command does not run your settings to look for a crawl."
                f" Put the store's address into the environment ({VARIABLE}), or into scrapy.cfg:"
                f" [{config.OWN_SECTION}] with {OPTION} = $NAME_OF_A_VARIABLE."
            )
        said = value.value
    return said


def maybe_store(root: Path) -> Store | None:
    """The project's store, or None when nothing was ever kept there; a server is always there."""
    address = where(root)
    if not is_url(address) and not Path(address).exists():
        return None
    return open_store(address, key=_key(root))


def existing_store(root: Path) -> Store:
    """The project's store, for a command that only looks.

    Raises:
        NothingMatched: no crawl was ever started here.
    """
    store = maybe_store(root)
    if store is None:
        raise NothingMatched(f"There are no crawls in {root} yet. `sdist crawl SPIDER` starts one.")
    return store


def project_store(root: Path) -> Store:
    """The project's store; made, with the state folder, when there is none."""
    from scrapyd_dist.deploy.key import state_key

    return open_store(where(root), key=state_key(config.state_dir(root)))


def _key(root: Path) -> bytes:
    """The project's key; where it has none, nothing on a server can be its own, and any other key says so as well."""
    from scrapyd_dist.deploy.key import known_key, state_key

    state = root / config.STATE_FOLDER
    if is_url(where(root)):
        return known_key(state) or secrets.token_bytes(32)
    return state_key(config.state_dir(root))


def requests_in(store: Store, root: Path, frontier: str, batch: Batch) -> list[RequestValue]:
    """The requests of a batch.

    Raises:
        ConfigError: they are encrypted with a key that is not this folder's.
    """
    from scrapyd_dist.payload import PayloadError, decode

    try:
        return decode(store.payload(frontier, batch.number).get, key=key_of(root))
    except ForeignRow as error:
        raise ConfigError(str(error)) from None
    except PayloadError as error:
        raise ConfigError(
            f"Batch {batch.number} of {frontier} cannot be read here: {error}. What is more than an address is"
            f" encrypted with the key in {root / config.STATE_FOLDER}; run this in the folder of the project that"
            " filled the frontier."
        ) from error


def key_of(root: Path) -> bytes:
    """The key that what must be hidden is encrypted with."""
    from scrapyd_dist.deploy.key import state_key

    from scrapyd_dist.config import state_dir

    return state_key(state_dir(root))
