"""What a command works on: the project, its store, its nodes and the sender. Each is opened at its first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.store import Store
    from scrapyd_dist.transports import Sender


class Context:
    """The project of the current folder, or of the given one; a command gets it by a parameter of this type."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._store: Store | None = None

    def close(self) -> None:
        """Close what was opened."""
        if self._store is not None:
            self._store.close()
            self._store = None

    @cached_property
    def project(self) -> ProjectConfig:
        """The project's configuration.

        Raises:
            ConfigError: there is no project here, or its scrapy.cfg is wrong.
        """
        from scrapyd_dist.config import load

        return load(self._folder)

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self.project.root

    @property
    def store_if_any(self) -> Store | None:
        """The project's store; None where nothing was ever kept. Looking makes no store."""
        from .project_store import maybe_store

        if self._store is None:
            self._store = maybe_store(self.root)
        return self._store

    @property
    def store(self) -> Store:
        """The project's store, for a command that reads.

        Raises:
            NothingMatched: no crawl was ever started here.
        """
        from scrapyd_dist.errors import NothingMatched

        store = self.store_if_any
        if store is None:
            raise NothingMatched(f"There are no crawls in {self.root} yet. `sdist crawl SPIDER` starts one.")
        return store

    @property
    def new_store(self) -> Store:
        """The project's store, for a command that writes: made, with the state folder, where there is none."""
        from .project_store import project_store

        if self._store is None:
            self._store = project_store(self.root)
        return self._store

    @cached_property
    def sender(self) -> Sender:
        """The sender for calls to nodes."""
        from scrapyd_dist.transports.requests import RequestsTransport

        return RequestsTransport()

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes, each once; empty where none is named and no local one runs."""
        from .target_nodes import nodes_of

        return nodes_of(self.project)

    def nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """The nodes that these names and globs mean, each once; without patterns all of them.

        Raises:
            ConfigError: there is no node at all.
            NothingMatched: a pattern means no node.
        """
        from .selectors import chosen

        return chosen(self.project, patterns)
