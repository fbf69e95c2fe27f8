"""Chooses the kept egg for a rollback; Scrapyd does not return eggs, so only a kept one can be deployed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.scrapyd.versions import hash_in, made_at, sanitised

from .egg import Egg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .versions import SavedEgg


def choose(kept: Sequence[SavedEgg], wanted: str | None, current: str | None, *, folder: Path) -> SavedEgg:
    """Return the egg to deploy again.

    Args:
        kept: the kept eggs, newest first.
        wanted: a version's name, or a prefix of it or of its content hash; None for the version before the current.
        current: the version that counts as the project's code on most nodes.
        folder: the folder of kept eggs, for error messages.

    Raises:
        NothingMatched: no kept egg matches, or several do.
    """
    if wanted is not None:
        return _named(kept, sanitised(wanted), folder)
    now = _content(kept, current)
    others = [egg for egg in kept if egg.content_hash is not None and egg.content_hash != now]
    before = made_at(current) if current is not None else None
    older = [egg for egg in others if before is None or egg.at < before]
    found = (older or others)[:1]
    if not found:
        raise NothingMatched(
            f"No earlier version can be brought back: {folder} keeps {_list(kept)}, and the nodes run "
            f"{current or 'no version'}. Check the earlier code out and deploy it: sdist deploy-all."
        )
    return found[0]


def _named(kept: Sequence[SavedEgg], wanted: str, folder: Path) -> SavedEgg:
    exact = [egg for egg in kept if egg.version == wanted]
    near = [egg for egg in kept if egg.version.startswith(wanted) or (hash_in(egg.version) or "").startswith(wanted)]
    found = exact or near
    if not found:
        raise NothingMatched(
            f"The egg of the version {wanted} is not kept in {folder}, and Scrapyd gives no egg back. Kept are "
            f"{_list(kept)}. Name one of these, or check that version's code out and deploy it: sdist deploy-all."
        )
    if len({egg.content_hash for egg in found}) > 1:
        raise NothingMatched(f"{wanted} may be each of {_list(found)}. Give more of the name.")
    return found[0]


def egg_of(saved: SavedEgg) -> Egg:
    """Read a kept egg.

    Raises:
        NothingMatched: the file was not built by this program.
    """
    content_hash = saved.content_hash
    if content_hash is None:
        raise NothingMatched(f"{saved.path} is no egg that this program has built, so it is not sent. Deploy anew.")
    data = saved.path.read_bytes()
    return Egg(make=lambda: data, content_hash=content_hash, modules=(), left_out=())


def _content(kept: Sequence[SavedEgg], version: str | None) -> str | None:
    if version is None:
        return None
    return hash_in(version) or next((egg.content_hash for egg in kept if egg.version == version), None)


def _list(kept: Sequence[SavedEgg]) -> str:
    return ", ".join(egg.version for egg in kept) or "none"
