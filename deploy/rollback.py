"""Earlier versions: which kept egg a rollback uses, and which old versions may be deleted from the nodes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ApiRefused, NodeError, NothingMatched
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import by_time, current, hash_in, made_at, sanitised
from scrapyd_dist.transports.requests import RequestsTransport

from .egg import Egg
from .node_versions import TIMEOUT, NodeVersions, VersionUse, in_use, look
from .rollout import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.nodes import Node

    from .kept_eggs import SavedEgg


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


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """The versions to delete from a node."""

    node: Node
    project: str
    #: versions to delete; after `delete`, those that were deleted
    versions: tuple[str, ...] = ()
    #: jobs because of which versions are kept
    use: VersionUse = field(default_factory=VersionUse)
    error: NodeError | None = None


def plan(
    seen: NodeVersions, keep: int, version_of: Callable[[str], str | None], known: Mapping[str, float] | None = None
) -> Pruning:
    """Return the versions to delete: all except the newest `keep`, those in use, the newest deployment, the default.

    Args:
        seen: the node.
        keep: number of newest versions to keep, at least one.
        version_of: returns the version of a crawl's job by its id, None for other jobs.
        known: upload times of versions whose names have none, seconds since the epoch.
    """
    entry = Pruning(node=seen.node, project=seen.project, error=seen.error)
    stay = {*by_time(seen.versions, known)[-keep:], current(seen.versions, known), seen.default}
    old = [name for name in seen.versions if name not in stay]
    use = in_use(seen, version_of)
    if not old:
        return entry
    if use.unknown:
        # A running job may still import from any of them.
        return replace(entry, use=VersionUse(unknown=use.unknown))
    held = {name: jobs for name, jobs in use.jobs.items() if name in old}
    return replace(entry, versions=tuple(name for name in old if name not in held), use=VersionUse(jobs=held))


def delete(
    plans: Sequence[Pruning], version_of: Callable[[str], str | None], *, timeout: float = TIMEOUT
) -> tuple[Pruning, ...]:
    """Delete the planned versions from all nodes concurrently, except those that have come into use since."""

    def one(sender: RequestsTransport, entry: Pruning) -> Pruning:
        if entry.error is not None or not entry.versions:
            return entry
        (seen,) = look([entry.node], entry.project, timeout=timeout, transport=sender)
        if seen.error is not None:
            return replace(entry, versions=(), error=seen.error)
        now = in_use(seen, version_of)
        if now.unknown:
            return replace(entry, versions=(), use=VersionUse(jobs=entry.use.jobs, unknown=now.unknown))
        gone: list[str] = []
        for name in entry.versions:
            if name in now.jobs or name == seen.default or name not in seen.versions:
                continue
            try:
                sender.send(entry.node, api.delversion(entry.project, name), timeout=timeout)
            except ApiRefused:
                continue  # it was deleted in the meantime
            except NodeError as error:
                return replace(entry, versions=tuple(gone), error=error)
            gone.append(name)
        return replace(entry, versions=tuple(gone))

    if not plans:
        return ()
    with closing(RequestsTransport()) as own, threads(len(plans)) as pool:
        return tuple(pool.map(lambda entry: one(own, entry), plans))
