"""Opens what a project has, at its first use: its configuration, its store, what sends calls.

The rule it keeps: looking makes no store.
"""

import os
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from scrapyd_dist.batches import WorkerEntry
from scrapyd_dist.config import ProjectConfig, find_root, load, state_folder
from scrapyd_dist.deploy.kept_eggs import sent_times
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.fleet.job_versions import versions_by_job
from scrapyd_dist.fleet.project_store import maybe_store, project_store
from scrapyd_dist.keys import known_key
from scrapyd_dist.nodes import Node
from scrapyd_dist.project_settings import written_number
from scrapyd_dist.store import Store
from scrapyd_dist.transports import CONNECT_TIMEOUT, Sender

S = TypeVar("S", Store, Store | None)
#: the variable of the environment with the nodes of a command, in place of those of scrapy.cfg
NODES = "SDIST_NODES"


class OpenProject:
    """The project of the current folder, or of the given one, with its store."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._nodes_are_named = bool(os.environ.get(NODES))
        self._store: Store | None = None
        #: the store was opened with the project's key, not with one that only looks
        self._knows_key = True
        self._opened: list[Store] = []

    def close(self) -> None:
        """Close the stores that were opened."""
        for store in self._opened:
            store.close()

    @cached_property
    def project(self) -> ProjectConfig:
        """The project's configuration; ConfigError if there is none here, or scrapy.cfg is wrong.

        Where all nodes are named by their addresses, there need not be a project, and what it would
        say is empty.
        """
        if self._nodes_are_named and find_root(self._folder) is None:
            return ProjectConfig(
                root=self._folder or Path.cwd(), settings_module="", targets=(), project=None
            )
        return load(self._folder)

    @property
    def root(self) -> Path:
        """The folder of the project."""
        return self.project.root

    @property
    def store_if_any(self) -> Store | None:
        """The project's store; None where nothing was ever kept. Looking makes no store."""
        if self._store is None:
            self._knows_key = known_key(state_folder(self.root)) is not None
            self._keep(maybe_store(self.root))
        return self._store

    @property
    def store(self) -> Store:
        """The project's store, for a command that reads; NothingMatched if there is none."""
        store = self.store_if_any
        if store is None:
            raise NothingMatched(
                f"There are no crawls in {self.root} yet. `sdist crawl SPIDER` starts one."
            )
        return store

    @property
    def new_store(self) -> Store:
        """The project's store, for a command that writes: made where there is none."""
        if self._store is None or not self._knows_key:
            # What is signed with a key that is thrown away would not be believed by any process.
            self._knows_key = True
            return self._keep(project_store(self.root))
        return self._store

    def _keep(self, store: S) -> S:
        self._store = store
        if store is not None:
            self._opened.append(store)
        return store

    @cached_property
    def sender(self) -> Sender:
        """What sends calls to nodes."""
        return self.sender_within(CONNECT_TIMEOUT)

    def sender_within(self, connect_timeout: float) -> Sender:
        """Return a sender that gives up if no connection comes about within these seconds."""
        # It loads an HTTP library, which few commands need.
        from scrapyd_dist.transports.requests import RequestsTransport  # noqa: PLC0415

        return RequestsTransport(connect_timeout=connect_timeout)

    def known_times(self, nodes: Iterable[Node], project: str | None) -> dict[str, float]:
        """Return when versions were sent from here, by their names, in seconds since the epoch.

        These are versions of this project and of those of the nodes.
        """
        names = {project}
        for node in nodes:
            names.add(node.project)
        return sent_times(state_folder(self.root), filter(None, names))

    @property
    def keep_days(self) -> float:
        """Days for which plain jobs are remembered."""
        return self.written_number("DISTRIBUTED_KEEP_DAYS")

    def written_number(self, name: str) -> float:
        """Return a setting, if settings.py gives it as a plain number; else its default."""
        return written_number(self.root, self.project.settings_module, name)

    def version_lookup(self) -> Callable[[str], str | None]:
        """Return what gives the version of a job that was started here by its id.

        For every other job it gives None.
        """
        store = self.store_if_any
        if store is None:
            return lambda _: None
        crawls = store.crawls()
        workers: list[WorkerEntry] = []
        for crawl in crawls:
            workers += store.workers(crawl.id)[0]
        return versions_by_job(crawls, workers, store.jobs(time.time()))
