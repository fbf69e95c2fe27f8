"""Which kept egg a roll-back means; rule: Scrapyd gives no egg back, so only what was kept can come again."""

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
    """The egg to send again.

    Args:
        kept: the kept eggs, newest first.
        wanted: name of a version, or the beginning of one, or of its content hash; None = the one before the current.
        current: the version that counts as the project's code on most nodes.
        folder: where eggs are kept, for the error's text.

    Raises:
        NothingMatched: no such egg is kept, or more than one is meant.
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
    """The kept bytes as an egg.

    Raises:
        NothingMatched: the file is no egg of ours.
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
