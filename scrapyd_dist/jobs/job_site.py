"""Holds what the jobs of one project are found and judged with: its store, and a sender."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.messenger import NO_MESSENGER, Messenger
from scrapyd_dist.nodes import Node
from scrapyd_dist.store import Store
from scrapyd_dist.transports import Sender


@dataclass(frozen=True, kw_only=True)
class JobSite:
    """One project, as far as its jobs are concerned."""

    root: Path  #: the project's folder; the state folder in it has notes of sent signals
    sender: Sender
    #: gives the project's store; None where nothing was ever kept
    find_store: Callable[[], Store | None]
    #: gives those of the nodes that get no new work; raises StoreError
    find_drained: Callable[[Sequence[Node]], Collection[Node]] = lambda _: ()
    #: gives the local nodes whose processes have ended, where local nodes are in use
    #: gives the dead local nodes that such names and globs mean; None = all
    find_dead: Callable[[Sequence[str] | None], Sequence[Node]] = lambda _patterns: ()
    messenger: Messenger = NO_MESSENGER

    @property
    def store(self) -> Store | None:
        """The project's store, opened at its first use; None where nothing was ever kept."""
        return self.find_store()


def open_site(workspace: Workspace, messenger: Messenger = NO_MESSENGER) -> JobSite:
    """Return what the jobs of a project are found and judged with.

    It is to be asked for after the nodes: where these are addresses, no project is needed.
    """
    return JobSite(
        root=workspace.root,
        sender=workspace.sender,
        find_store=lambda: workspace.store_if_any,
        find_drained=workspace.drained,
        find_dead=workspace.find_dead_nodes,
        messenger=messenger,
    )
