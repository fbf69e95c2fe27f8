"""Deletes old versions from nodes. Invariant: a version that a job may need, and the default, are kept."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ApiRefused, NodeError
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import by_time, current
from scrapyd_dist.transports.requests import RequestsTransport

from .side_by_side import threads
from .survey import TIMEOUT, Seen, Use, in_use, look

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapyd_dist.nodes import Node


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """The versions to delete from a node."""

    node: Node
    project: str
    #: versions to delete; after `delete`, those that were deleted
    versions: tuple[str, ...] = ()
    #: jobs because of which versions are kept
    use: Use = field(default_factory=Use)
    error: NodeError | None = None


def plan(
    seen: Seen, keep: int, version_of: Callable[[str], str | None], known: Mapping[str, float] | None = None
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
        return replace(entry, use=Use(unknown=use.unknown))
    held = {name: jobs for name, jobs in use.jobs.items() if name in old}
    return replace(entry, versions=tuple(name for name in old if name not in held), use=Use(jobs=held))


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
            return replace(entry, versions=(), use=Use(jobs=entry.use.jobs, unknown=now.unknown))
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
