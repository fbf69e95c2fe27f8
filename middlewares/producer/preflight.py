"""What a producer checks and prepares before its first request: nodes, code, key. Blocking; runs in a thread."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.deploy import egg as eggs
from scrapyd_dist.deploy import local_nodes, rollout
from scrapyd_dist.deploy.project_files import is_dirty
from scrapyd_dist.deploy.requirements import redis_client
from scrapyd_dist.deploy.rollout import RollOutRequest

from scrapyd_dist import config
from scrapyd_dist.errors import (
    AuthRefused,
    ConfigError,
    DistError,
    NodeError,
    NoNodeReachable,
    NothingMatched,
    TlsRefused,
)
from scrapyd_dist.keys import state_key
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import current, is_crawls, newest, told_content
from scrapyd_dist.store.address import chosen
from scrapyd_dist.transports.requests import RequestsTransport

from .crawl_code import TODAYS, CrawlCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapyd_dist.deploy.egg import Egg

    from scrapyd_dist.nodes import Node

    from .producer_options import ProducerOptions

#: local nodes that are started when nothing names a node
LOCAL_NODES = 2
MAX_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class PreparedProject:
    """Where the project is, and what it is called on the nodes."""

    root: Path
    state: Path
    settings_module: str
    name: str
    config: config.ProjectConfig | None


@dataclass(frozen=True, kw_only=True)
class NodeProbe:
    """What one node answered."""

    node: Node
    error: NodeError | None = None
    logs: bool = False  #: whether it serves its log folder


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The fleet at the start."""

    probes: tuple[NodeProbe, ...]
    version: str | None
    key: bytes | None
    egg: Egg | None
    unready: dict[str, str] = field(default_factory=dict)  #: node name -> why it cannot get work
    uploaded: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    code: tuple[str, ...] = ()  #: what is to be said of the code that is taken
    local: bool = False  #: the nodes were started for this crawl


def find_project(settings_module: str | None, bot_name: str) -> PreparedProject:
    """The project of the current folder.

    Raises:
        ConfigError: scrapy.cfg cannot be read.
    """
    root = config.find_root()
    if root is None:
        root = Path.cwd()
        return PreparedProject(
            root=root, state=config.state_dir(root), settings_module=settings_module or "", name=bot_name, config=None
        )
    loaded = config.load(root)
    return PreparedProject(
        root=root,
        state=config.state_dir(root),
        settings_module=loaded.settings_module,
        name=loaded.project or bot_name,
        config=loaded,
    )


def store_address(options: ProducerOptions, project: PreparedProject) -> str:
    """Where the crawl's store is: a URL, or an absolute path.

    Raises:
        ConfigError: it stands in a variable that is not set.
    """
    return chosen(project.root, options.store, project.config.options.get("store") if project.config else None)


def probe(nodes: Sequence[Node], *, timeout: float) -> tuple[NodeProbe, ...]:
    """Ask all nodes at once whether they are there, and whether they serve their logs."""
    sender = RequestsTransport()

    def ask(node: Node) -> NodeProbe:
        try:
            sender.send(node, api.daemonstatus(), timeout=timeout)
            return NodeProbe(node=node, logs=sender.send(node, api.serves_logs(), timeout=timeout))
        except NodeError as error:
            return NodeProbe(node=node, error=error)

    try:
        with ThreadPoolExecutor(max_workers=min(MAX_THREADS, max(1, len(nodes)))) as pool:
            return tuple(pool.map(ask, nodes))
    finally:
        sender.close()


def check_probes(probes: Sequence[NodeProbe], *, feed: bool) -> list[str]:
    """The warnings that these answers call for.

    Raises:
        NoNodeReachable: not one answered; AuthRefused or TlsRefused where each of them refused, since that is to be
            mended, and waiting for a node does not help.
        ConfigError: items have no way home from any node that answered.
    """
    up = [p for p in probes if p.error is None]
    if not up:
        why = "; ".join(str(p.error).rstrip(".") for p in probes)
        raise _kept_away(p.error for p in probes if p.error)(
            f"No node can be reached: {why}. Nothing was started. Start a node, or"
            " name others in scrapy.cfg, DISTRIBUTED_TARGET_HOSTS or --node; `sdist nodes` shows them."
        )
    warnings = [
        f"{str(p.error).rstrip('.')}; the crawl goes on without it, and uses it when it answers"
        for p in probes
        if p.error
    ]
    silent = [p.node.name for p in up if not p.logs]
    if silent and not feed:
        raise ConfigError(
            f"There is no log folder (/logs/) on {', '.join(silent)}, so items have no way home from there. Set"
            " logs_dir in scrapyd.conf there, or give a feed URL (--feed, DISTRIBUTED_TARGET_FEED_URL)."
        )
    return warnings


def _kept_away(errors: Iterable[NodeError]) -> type[DistError]:
    """The error of a fleet of which no node can be used: that of refusals where all of them refuse."""
    kinds = [type(error) for error in errors]
    return kinds[0] if all(issubclass(kind, (AuthRefused, TlsRefused)) for kind in kinds) else NoNodeReachable


def prepare(
    options: ProducerOptions,
    project: PreparedProject,
    spider: str,
    nodes: Sequence[Node],
    *,
    code: CrawlCode = TODAYS,
    dry_run: bool = False,
) -> Prepared:
    """See to it that nodes are there and have the crawl's code. Without any, local ones are started.

    Args:
        options: what the crawl was given.
        project: the project.
        spider: one that the code must have.
        nodes: where the crawl may run.
        code: what is settled of it; the rest is the working tree's.
        dry_run: only look.

    Raises:
        DistError: as `check_probes`, and when the code cannot run on any node.
    """
    started = False
    if not nodes and not dry_run:
        nodes, started = local_nodes.up(project.state, LOCAL_NODES), True
    probes = probe(nodes, timeout=options.limits.request_timeout) if nodes else ()
    warnings = check_probes(probes, feed=options.feed_url is not None) if nodes else []
    up = [p.node for p in probes if p.error is None]
    egg, key = (code.egg, code.key) if code.egg is not None else _build(options, project)
    if dry_run:
        return Prepared(probes=probes, version=None, key=key, egg=egg, warnings=tuple(warnings))
    result = roll_out(options, project, up, egg, spider, version=code.version, dirty=code.egg is None)
    key = key if result.ready and all(node.same_code for node in result.ready) else None
    return Prepared(
        probes=probes,
        version=(version := _common_version(result)),
        key=key,
        egg=egg,
        code=tuple(notes_on(code, version, {node.node.name: node.before for node in result.ready})),
        unready={node.node.name: node.reason for node in result.failed},
        uploaded=tuple(node.node.name for node in result.ready if node.uploaded),
        warnings=tuple(warnings),
        local=started,
    )


def _build(options: ProducerOptions, project: PreparedProject) -> tuple[Egg | None, bytes | None]:
    if project.config is None or not project.settings_module:
        if options.deploy == "never":
            return None, None
        raise ConfigError(
            "There is no scrapy.cfg here, so the project cannot be deployed. Run this inside the project, or set"
            ' DISTRIBUTED_DEPLOY = "never" when the nodes have it already.'
        )
    key = state_key(project.state)
    client = redis_client(store_address(options, project))
    return eggs.build(project.root, project.settings_module, key=key, requirements=client), key


def roll_out(
    options: ProducerOptions,
    project: PreparedProject,
    nodes: Sequence[Node],
    egg: Egg | None,
    spider: str,
    *,
    version: str | None = None,
    dirty: bool = True,
) -> rollout.RollOut:
    """Bring the code to these nodes.

    Args:
        options: what the crawl was given.
        project: the project.
        nodes: where to.
        egg: the code; None with mode "never".
        spider: one that it must have.
        version: its name; None = by its content.
        dirty: whether it is the working tree's, which may have changes that are not committed.

    Raises:
        DistError: no node can run it.
    """
    result = rollout.ensure(
        nodes,
        project.name,
        egg,
        spider=spider,
        mode="never" if options.deploy == "never" else "if-missing",
        dirty=dirty and is_dirty(project.root),
        wish=RollOutRequest(
            for_crawl=True, given={node.name: version for node in nodes} if version else {}, only_missing=True
        ),
    )
    if not result.ready:
        raise _not_runnable(result)
    return result


def _not_runnable(result: rollout.RollOut) -> DistError:
    text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in result.failures.items())
    kinds = {type(node.error) for node in result.failed}
    kind = NothingMatched if kinds == {NothingMatched} else ConfigError
    return kind(f"No node can run this project's code, so nothing was started. {text}")


def _common_version(result: rollout.RollOut) -> str | None:
    names = [node.version for node in result.ready if node.version]
    return result.version or (max(names, key=names.count) if names else None)


def members_of(prepared: Prepared) -> list[NodeState]:
    """The nodes as the coordinator knows them at the start."""
    members = []
    for found in prepared.probes:
        member = NodeState(node=found.node, unfit=prepared.unready.get(found.node.name, ""))
        if found.error is not None:
            member.missed(str(found.error), time.time())
        member.prepared = member.up and not member.unfit
        members.append(member)
    return members


def bring(options: ProducerOptions, project: PreparedProject, node: Node, prepared: Prepared, spider: str) -> str:
    """Bring the crawl's code to a node that was not there at the start; empty, or why it cannot be used.

    Raises:
        NodeError: it does not answer after all.
    """
    found = probe([node], timeout=options.limits.request_timeout)[0]
    if found.error is not None:
        raise found.error
    if not found.logs and options.feed_url is None:
        return f"{node.name} has no log folder, so items have no way home from there"
    try:
        version = None if options.deploy == "never" else prepared.version
        result = roll_out(options, project, [node], prepared.egg, spider, version=version)
    except DistError as error:
        return str(error)
    if prepared.version and result.version != prepared.version:
        return f"{node.name} has the version {result.version}, and this crawl runs {prepared.version}"
    return ""


def notes_on(code: CrawlCode, version: str | None, there: Mapping[str, tuple[str, ...]]) -> list[str]:
    """What is to be said of the code that a crawl takes.

    Args:
        code: what was settled before.
        version: what it runs.
        there: node name -> the versions that it had before, in Scrapyd's order.
    """
    notes = [code.note] if code.note else []
    if code.before is not None and code.before != version and version is not None:
        why = "today's code, as --new-code says," if code.new else "the same code with today's part of scrapyd-dist,"
        notes.append(f"This crawl goes on with {why} {version}; it began with {code.before}.")
    if code.before is None and code.egg is None and version is not None:
        notes += other_than_deployed(version, there)
    return notes


def other_than_deployed(version: str, there: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Where something else was deployed last, which a crawl of the working tree's code does not take.

    Args:
        version: what it takes.
        there: node name -> the versions that it has, in Scrapyd's order.
    """
    deployed = {name: current(known) for name, known in there.items()}
    found = {name for name in deployed.values() if name is not None and not is_crawls(name)}
    if not found or {told_content(name) for name in found} == {told_content(version)}:
        return []
    latest = newest(found) or max(found)
    taken = f"This crawl takes the working tree's code, {version}."
    return [f"{taken} What was deployed last is {latest}, and a crawl runs that with --version {latest}."]


def describe(prepared: Prepared, unreached: Mapping[str, str]) -> list[dict[str, Any]]:
    """The nodes as a plan lists them; `unreached`: why a node's workers do not reach the store."""
    return [
        {
            "name": p.node.name,
            "url": p.node.url,
            "state": "down" if p.error else "up",
            "reason": str(p.error or prepared.unready.get(p.node.name, "")),
            "slots": p.node.slots,
            "logs": p.logs,
            "unreached": unreached.get(p.node.name, ""),
        }
        for p in prepared.probes
    ]
