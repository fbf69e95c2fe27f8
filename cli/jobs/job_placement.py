"""Which node a plain job goes to, and which version it runs. Rule: all nodes are asked before anything is sent."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError, DistError, NodeError, NothingMatched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Jobs, Load
    from scrapyd_dist.transports import Sender


@dataclass(frozen=True, kw_only=True)
class _NodeLoad:
    load: Load
    versions: tuple[str, ...]  #: in the node's order, its default last


@dataclass(kw_only=True)
class JobFleet:
    """The nodes that a command may give jobs to; their `project` is set."""

    sender: Sender
    nodes: Sequence[Node]
    timeout: float
    draining: Sequence[Node] = ()  #: nodes that get no new jobs; asked only what they run
    known: Mapping[str, float] = field(default_factory=dict)  #: when versions were sent whose names do not tell it
    version: str = ""  #: what every job is pinned to
    why: str = ""  #: why that one, where it was not named
    errors: list[NodeError] = field(default_factory=list)
    _seen: dict[Node, _NodeLoad] = field(default_factory=dict)
    _given: Counter[str] = field(default_factory=Counter)
    _spiders: tuple[str, ...] | None = None

    def ask(self, version: str | None) -> None:
        """Ask all nodes for their load and versions, and settle on a version.

        Raises:
            NodeError: none of them answered; the first error.
            ConfigError: they have no version in common.
            NothingMatched: they do not all have the version that was named.
        """
        from scrapyd_dist.scrapyd.sweep import sweep

        found: dict[Node, _NodeLoad] = {}
        for answer in sweep(self.nodes, self._look):
            if answer.error is not None:
                self.errors.append(answer.error)
            elif answer.value is not None:
                found[answer.asked] = answer.value
        if not found:
            raise _whole_fleet(self.errors)
        self._seen = {node: found[node] for node in self.nodes if node in found}
        self.version = self._common(version)

    def _look(self, node: Node) -> _NodeLoad:
        from scrapyd_dist.scrapyd import api

        load = self.sender.send(node, api.daemonstatus(), timeout=self.timeout)
        versions = self.sender.send(node, api.listversions(node.project or ""), timeout=self.timeout)
        return _NodeLoad(load=load, versions=versions)

    def _common(self, wanted: str | None) -> str:
        """The newest deployment that all nodes have, or the version that was named, by Scrapyd's own name for it."""
        from scrapyd_dist.scrapyd.versions import current, is_crawls, newest, sanitised, time_of

        names = [seen.versions for seen in self._seen.values()]
        common = [name for name in names[0] if all(name in others for others in names)]
        if wanted is not None:
            kept = sanitised(wanted)
            if kept not in common:
                lack = ", ".join(node.name for node, seen in self._seen.items() if kept not in seen.versions)
                raise NothingMatched(f"The version {wanted!r} is not on {lack}. `sdist deploy-all` brings code there.")
            return kept
        chosen = current(common, self.known)
        if chosen is None:
            project = next(iter(self._seen)).project
            shown = ", ".join(node.name for node in self._seen)
            raise ConfigError(
                f"There is no version of the project {project!r} that all of these nodes have: {shown}. Bring the "
                "code to all of them with `sdist deploy-all`, or choose nodes with --node."
            )
        if is_crawls(chosen):
            self.why = "which a crawl brought, since nothing was deployed that all of these nodes have"
        elif newest(common, self.known) is None:
            self.why = "the one that Scrapyd sorts last: when it was deployed is not known"
        else:
            self.why = "the newest deployment that all of these nodes have"
            unknown = [name for name in common if time_of(name, self.known) is None]
            self.why += f" (when {', '.join(unknown)} came is not known)" if unknown else ""
        return chosen

    def spiders(self, pattern: str) -> list[str]:
        """The spiders that fit, of the version that will run.

        Raises:
            NothingMatched: none does.
        """
        from scrapyd_dist.scrapyd import api

        if self._spiders is None:
            node = next(iter(self._seen))
            call = api.listspiders(node.project or "", self.version)
            self._spiders = self.sender.send(node, call, timeout=self.timeout)
        found = [name for name in self._spiders if fnmatchcase(name, pattern)]
        if not found:
            close = difflib.get_close_matches(pattern, self._spiders, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(self._spiders) or 'none'}."
            raise NothingMatched(f"The version {self.version} has no spider {pattern!r}. {hint}")
        return found

    def busy_spiders(self) -> dict[str, Node]:
        """The spiders of the project that wait or run, and where.

        Raises:
            NodeError: a node does not tell; a second job beside the first would be worse than none.
        """
        from scrapyd_dist.scrapyd.sweep import sweep

        if self.errors:
            raise self.errors[0]
        found: dict[str, Node] = {}
        asked = [*self._seen, *self.draining]
        for answer in sweep(asked, self._jobs):
            if answer.error is not None:
                raise answer.error
            if answer.value is not None:
                found |= {job.spider: answer.asked for job in (*answer.value.pending, *answer.value.running)}
        return found

    def _jobs(self, node: Node) -> Jobs:
        from scrapyd_dist.scrapyd import api

        return self.sender.send(node, api.listjobs(node.project), timeout=self.timeout)

    def places(self, name: str | None, *, all_nodes: bool) -> list[Node]:
        """The nodes that the next job goes to: all, the named one, or the one with the least to do per process slot.

        Raises:
            ConfigError: there is none of that name, or it is draining.
            NodeError: it did not answer.
        """
        if all_nodes:
            return list(self._seen)
        nodes = list(self._seen)
        if name is not None:
            nodes = [node for node in nodes if node.name == name]
            if not nodes:
                raise self._absent(name)
        chosen = min(nodes, key=self._load)
        self._given[chosen.url] += 1
        return [chosen]

    def _load(self, node: Node) -> float:
        from scrapyd_dist.scheduling.node_state import SLOTS_UNKNOWN

        load = self._seen[node].load
        return (load.pending + load.running + self._given[node.url]) / (node.slots or SLOTS_UNKNOWN)

    def _absent(self, name: str) -> DistError:
        if any(node.name == name for node in self.draining):
            return is_draining(name)
        known = [node.name for node in self.nodes]
        if name in known:
            node = next(node for node in self.nodes if node.name == name)
            return next((error for error in self.errors if str(error).startswith(str(node))), self.errors[0])
        return ConfigError(f"There is no node {name!r}. There are: {', '.join(known)}.")


def is_draining(*names: str) -> ConfigError:
    """What to do about nodes that were asked for and get no new work."""
    shown = ", ".join(names)
    typed = " ".join(repr(name) if " " in name else name for name in names)
    many = len(names) > 1
    return ConfigError(
        f"{shown} {'are' if many else 'is'} draining: no new work goes there. Give "
        f"{'them' if many else 'it'} work again with `sdist nodes resume {typed}`, or choose another node."
    )


def _whole_fleet(errors: Sequence[NodeError]) -> DistError:
    """The error of a fleet of which nobody answers."""
    from scrapyd_dist.errors import NoNodeReachable

    refused = next((error for error in errors if error.exit_code == 6), None)
    return refused or NoNodeReachable(" ".join(dict.fromkeys(str(error) for error in errors)))
