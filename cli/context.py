"""What a command works on: the project, its store, its nodes and the sender. Each is opened at its first use."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError, NothingMatched

from .node_selection import chosen, must_name, nodes_of, project_name
from .project_store import maybe_store, project_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.nodes import Node, NodeRecord
    from scrapyd_dist.store import Store
    from scrapyd_dist.transports import Sender


class Context:
    """The project of the current folder, or of the given one; a command gets it by a parameter of this type."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._store: Store | None = None

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    @cached_property
    def project(self) -> ProjectConfig:
        """The project's configuration.

        Raises:
            ConfigError: there is no project here, or its scrapy.cfg is wrong.
        """
        return load(self._folder)

    @property
    def root(self) -> Path:
        return self.project.root

    @property
    def store_if_any(self) -> Store | None:
        """The project's store; None where nothing was ever kept. Looking makes no store."""
        if self._store is None:
            self._store = maybe_store(self.root)
        return self._store

    @property
    def store(self) -> Store:
        """The project's store, for a command that reads.

        Raises:
            NothingMatched: no crawl was ever started here.
        """
        store = self.store_if_any
        if store is None:
            raise NothingMatched(f"There are no crawls in {self.root} yet. `sdist crawl SPIDER` starts one.")
        return store

    @property
    def new_store(self) -> Store:
        """The project's store, for a command that writes: made, with the state folder, where there is none."""
        if self._store is None:
            self._store = project_store(self.root)
        return self._store

    @cached_property
    def sender(self) -> Sender:
        """The sender for calls to nodes."""
        from scrapyd_dist.transports.requests import RequestsTransport

        return RequestsTransport()

    def sender_within(self, connect_timeout: float) -> Sender:
        """A sender that gives up where no connection comes about within these seconds."""
        from scrapyd_dist.transports.requests import RequestsTransport

        return RequestsTransport(connect_timeout=connect_timeout)

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes, each once; empty where none is named and no local one runs."""
        return nodes_of(self.project)

    def nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """The nodes that these names and globs mean, each once; without patterns all of them.

        Raises:
            ConfigError: there is no node at all.
            NothingMatched: a pattern means no node.
        """
        return chosen(self.project, patterns)

    def project_nodes(self, patterns: Sequence[str] | None, name: str | None) -> tuple[str, tuple[Node, ...]]:
        """The project's name on the nodes, and the nodes; a name that was asked for goes before their own."""
        nodes = self.nodes(patterns)
        found = project_name(self.project, nodes, name)
        return found, tuple(replace(node, project=name) for node in nodes) if name is not None else nodes

    def nodes_or_all(self, patterns: Sequence[str] | None, *, everyone: bool, verb: str) -> tuple[Node, ...]:
        """The nodes that these names and globs mean, or all of them where that was said in so many words.

        Raises:
            ConfigError: neither was said, or both.
            NothingMatched: a name or a glob means no node.
        """
        if everyone and patterns:
            raise ConfigError(f"--all, and names of nodes to {verb}: one of the two has to go.")
        if not everyone:
            must_name(patterns, verb, "For all of them: --all.")
        return self.nodes(patterns)

    @property
    def node_records(self) -> dict[str, NodeRecord]:
        """What the store remembers of nodes, by the node's name."""
        store = self.store_if_any
        return {record.name: record for record in store.nodes()} if store is not None else {}

    @property
    def draining(self) -> dict[str, float]:
        """The nodes that get no new work, and since when."""
        return {name: record.draining for name, record in self.node_records.items() if record.draining is not None}

    def remember(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep these fields of these nodes in the store."""
        for name, fields in changes.items():
            self.new_store.update_node(name, **fields)
