"""Which nodes a project has: those that are listed, those that names mean, what is remembered."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from scrapyd_dist.config import STATE_FOLDER, addresses_of, node_named, state_folder, with_netrc
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.open_project import NODES, OpenProject
from scrapyd_dist.fleet.project_store import find_store_address
from scrapyd_dist.nodes import Node, NodeRecord, distinct_nodes, is_address, names_of, nodes_by_url
from scrapyd_dist.project_names import project_name
from scrapyd_dist.scrapyd import api
from scrapyd_dist.store.node_memory import up_to_date
from scrapyd_dist.transports import sweep

#: characters of a pattern
GLOB = frozenset("*?[")


class Workspace(OpenProject):
    """A project with its nodes."""

    @property
    def added(self) -> tuple[Node, ...]:
        """The nodes that `sdist nodes add` put into the store."""
        return self._read_added()

    def _read_added(self) -> tuple[Node, ...]:
        store = self.store_if_any
        if store is None:
            return ()
        known = store.nodes()
        if not known:
            return ()
        nodes = []
        for record in up_to_date(known, find_store_address(self.root), state_folder(self.root)):
            if record.url:
                node = Node.parse(record.url, name=record.name)
                nodes.append(with_netrc(node))
        return tuple(nodes)

    @property
    def local_nodes(self) -> tuple[Node, ...]:
        """The nodes of `sdist nodes up` that run."""
        from scrapyd_dist.deploy.local_nodes import running  # noqa: PLC0415 - slow to load

        return running(state_folder(self.root))

    @property
    def dead_local_nodes(self) -> tuple[Node, ...]:
        """The nodes of `sdist nodes up` whose process has ended without `sdist nodes down`."""
        from scrapyd_dist.deploy.local_nodes import dead  # noqa: PLC0415 - slow to load

        return dead(self.root / STATE_FOLDER)

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes, each once; empty where none is named and no local one runs.

        A name that is to be looked up and has no address is a ConfigError.
        """
        nodes = distinct_nodes(self._all)
        if os.environ.get(NODES):
            return nodes
        return tuple(self._own.get(node.url, node) for node in nodes)

    @cached_property
    def _all(self) -> tuple[Node, ...]:
        """The node of each target, which may be several for different projects."""
        chosen = os.environ.get(NODES, "").split()
        return self._matching(chosen) if chosen else self._listed

    @cached_property
    def _listed(self) -> tuple[Node, ...]:
        return self._looked_up((*self.project.targets, *self.added)) or self.local_nodes

    @cached_property
    def _own(self) -> dict[str, Node]:
        """The targets of the project itself, by url."""
        return nodes_by_url(self._looked_up(self.project.own_targets))

    @cached_property
    def _dead_listed(self) -> tuple[Node, ...]:
        return self.find_dead_nodes()

    def find_dead_nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return the dead local nodes; none where others are named: then local ones rest.

        patterns: names and globs of those that are meant; None: SDIST_NODES, or else all.
        """
        if self.project.targets or self.added:
            return ()
        chosen = patterns or os.environ.get(NODES, "").split()
        if not chosen:
            return self.dead_local_nodes
        return tuple(match_nodes(self.dead_local_nodes, chosen))

    @staticmethod
    def _looked_up(nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return the nodes, with all its addresses in the place of one that is to be looked up."""
        found: list[Node] = []
        for node in nodes:
            if node.lookup:
                found += addresses_of(node)
            else:
                found.append(node)
        return tuple(found)

    def nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return the nodes that these names, globs and addresses mean, each once; or all nodes.

        Raises:
            ConfigError: there is no node at all.
            NothingMatched: a pattern means none.
        """
        found = self.targets(patterns)
        return distinct_nodes(found) if patterns else self.all_nodes

    def known_nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return `nodes` and, as those of scrapy.cfg that are down, local ones that have died.

        For what shows how the fleet or its jobs are. Errors are those of `nodes`.
        """
        chosen = patterns or os.environ.get(NODES, "").split()
        # Addresses are asked for outside a project as well, where no local node is known.
        are_addresses = bool(chosen) and all(map(is_address, chosen))
        dead = () if are_addresses else self._dead_listed
        if not dead:
            return self.nodes(patterns)
        known = sorted({*self._named_nodes(), *dead}, key=_place_of_local)
        return distinct_nodes(self._matching(chosen, known) if chosen else known)

    @property
    def knows_nodes(self) -> bool:
        """Whether there are nodes, so that `known_nodes` without patterns does not raise."""
        return bool(self.all_nodes or self._dead_listed)

    def own_nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return `nodes`, for a command that starts the project's code.

        Without patterns these are the nodes of the project's own targets; ConfigError where
        scrapy.cfg has targets, and all of them are for projects with other settings modules.
        """
        nodes = self.nodes(patterns)
        targets = self.project.targets
        if patterns or os.environ.get(NODES) or not targets:
            return nodes
        if not self._own:
            self.project.check_own(targets)
        others = nodes_by_url(self._looked_up(targets)).keys() - self._own.keys()
        return tuple(node for node in nodes if node.url not in others)

    def targets(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return what these names, globs and addresses mean, without patterns all that is listed.

        A node comes once for each of its targets: they may be for different projects. Errors are
        those of `nodes`.
        """
        are_addresses = bool(patterns) and all(map(is_address, patterns or ()))
        self._nodes_are_named |= are_addresses
        if not are_addresses and not self.all_nodes and not (patterns and self._dead_listed):
            raise ConfigError(
                f"{self.root / 'scrapy.cfg'} names no node, and no local one runs."
                f"{_describe_dead(self._dead_listed)} Add a section such as [deploy:node1] with"
                " url = http://web1:6800/, or start nodes on this machine: sdist nodes up 3."
            )
        return self._matching(patterns) if patterns else self._all

    def configured_nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return `targets` as they are written: nothing is looked up, and there may be none.

        Raises:
            NothingMatched: a pattern means none.
        """
        chosen = patterns or os.environ.get(NODES, "").split()
        written = (*self.project.targets, *self.added)
        written = written or (*self.local_nodes, *self._dead_listed)
        return self._matching(chosen, written) if chosen else written

    def _matching(
        self, patterns: Sequence[str], named: Sequence[Node] | None = None
    ) -> tuple[Node, ...]:
        """Return the nodes with names that fit, and those that stand for the other patterns.

        named: where these names are looked for; None: among all nodes.
        """
        if named is None:
            named = self._named_nodes()
        found = []
        known = set[str]()  # patterns that fit the name of a node
        for node in named:
            fitting = [text for text in patterns if fnmatchcase(node.name, text)]
            known.update(fitting)
            if fitting:
                found.append(node)
        for text in patterns:
            if text in known:
                continue
            found.append(node_named(text, named))
        return tuple(found)

    def _named_nodes(self) -> list[Node]:
        # Two targets may have one url: each of their names will do.
        targets = self.project.targets
        named = [node for node in targets if not node.lookup]
        named += [node for node in self._listed if node not in targets]
        return [*named, *self._dead_listed]

    def read_anew(self) -> "Workspace":
        """Return the project, for a command that stays: all that lists nodes is read again."""
        fresh = Workspace(self._folder)
        fresh._store = self.store_if_any
        return fresh

    def project_nodes(
        self, patterns: Sequence[str] | None, name: str | None
    ) -> tuple[str, tuple[Node, ...], dict[str, float]]:
        """Return the project's name on the nodes, the nodes, and `known_times`.

        name: the name that was asked for, or a pattern; it goes before all others.
        """
        nodes = self.nodes(patterns) if name else self.own_nodes(patterns)
        name = self.one_project(name, nodes)
        found = project_name(self.project, nodes, name)
        if name is not None:
            nodes = tuple(replace(node, project=name) for node in nodes)
        return found, nodes, self.known_times(nodes, found)

    def one_project(self, pattern: str | None, nodes: Sequence[Node]) -> str | None:
        """Return the one project of the nodes that a pattern as in 'shop*' means.

        A plain name is returned as it is.

        Raises:
            NothingMatched: no node that answers has such a project.
            ConfigError: there are several.
        """
        if pattern is None or not GLOB & {*pattern}:
            return pattern
        names = set[str]()
        for answer in sweep(nodes, self._list_projects):
            for name in answer.value or ():
                if fnmatchcase(name, pattern):
                    names.add(name)
        if not names:
            raise NothingMatched(
                f"No node that answers has a project {pattern}. `sdist code versions"
                " --projects` lists them."
            )
        if len(names) > 1:
            raise ConfigError(
                f"-p {pattern} means several projects: {', '.join(sorted(names))}. A command is for"
                " one project: type it once for each."
            )
        return names.pop()

    def _list_projects(self, node: Node) -> Sequence[str]:
        return self.sender.send(node, api.listprojects(), timeout=api.TIMEOUT)

    def node_records(self, nodes: Iterable[Node]) -> dict[str, NodeRecord]:
        """Return what the store remembers of these nodes, by the node's name.

        Of a node that it does not have, the record has nothing but the name.
        """
        store = self.store_if_any
        known: dict[str, NodeRecord] = {}
        for record in store.nodes() if store is not None else ():
            known[record.name] = record
        records = {}
        for node in nodes:
            first = self._first_names.get(node.name, node.name)
            records[node.name] = known.get(first) or NodeRecord(name=node.name)
        return records

    def drained(self, nodes: Sequence[Node]) -> list[Node]:
        """Return those of the nodes that get no new work."""
        records = self.node_records(nodes)
        return [node for node in nodes if records[node.name].draining is not None]

    @cached_property
    def _first_names(self) -> dict[str, str]:
        """The name of each target -> that of the first one at the same url.

        A node is remembered by that name.
        """
        by_url: dict[str, str] = {}
        names = {}
        for node in self.project.targets:
            names[node.name] = by_url.setdefault(node.url, node.name)
        return names

    def remember(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep these fields of these nodes, by name, in the store; without any, none is made."""
        if not changes:
            return
        store = self.new_store
        before = {}
        for record in store.nodes():
            before[record.name] = record.changed
        for name, fields in changes.items():
            first = self._first_names.get(name, name)
            values: dict[str, Any] = {}
            if "url" in fields:
                # Also where a clock was put back, what was said last is the newest.
                values["changed"] = max(time.time(), before.get(first, 0.0) + 0.001)
            store.update_node(first, **values, **fields)
        self._read_added()  # which keeps a copy in the state folder


def match_nodes(nodes: Iterable[Node], patterns: Sequence[str]) -> list[Node]:
    """Return the nodes whose names fit one of the patterns."""
    return [node for node in nodes if any(fnmatchcase(node.name, text) for text in patterns)]


def _place_of_local(node: Node) -> tuple[int, str]:
    """Return the key that puts local nodes in the order of their numbers."""
    return len(node.name), node.name


def _describe_dead(dead: Sequence[Node]) -> str:
    """Return which local nodes have died, and what starts them again; empty where none has."""
    if not dead:
        return ""
    again = f"`sdist nodes up {len(dead)}` starts as many again."
    return f" The processes of local nodes have ended ({names_of(dead)}): {again}"
