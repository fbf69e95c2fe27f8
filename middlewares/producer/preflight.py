"""Check and prepare nodes, code and key before a producer's first request.

All of it is blocking, and runs in a thread.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from scrapyd_dist.deploy import egg as eggs
from scrapyd_dist.deploy import local_nodes, rollout
from scrapyd_dist.deploy.egg import Egg
from scrapyd_dist.deploy.kept_eggs import SavedEgg, all_eggs
from scrapyd_dist.deploy.project_files import is_dirty
from scrapyd_dist.deploy.requirements import store_client
from scrapyd_dist.deploy.rollout import RollOutRequest

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
from scrapyd_dist.nodes import Node
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.dispatcher import SAID_NO
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import content_or_name, current, is_crawls, newest
from scrapyd_dist.transports import NodeAnswer, sweep
from scrapyd_dist.transports.requests import RequestsTransport

from .crawl_code import TODAYS, CrawlCode
from .crawl_request import CrawlRequest, PreparedProject

#: local nodes that are started when nothing names a node
LOCAL_NODES = 2
#: what a node answered: whether it serves its log folder
NodeProbe: TypeAlias = NodeAnswer[Node, bool]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Describes the fleet at the start of a crawl."""

    probes: tuple[NodeProbe, ...]  #: what each node has answered
    #: the same nodes as the scheduler knows them; those that join later are added
    members: list[NodeState]
    version: str | None  #: of the code, by its name on the nodes; None if that is not known
    key: bytes | None  #: with which workers read; None if not all nodes have this code
    egg: Egg | None  #: None: there is no code here
    uploaded: tuple[str, ...] = ()  #: names of the nodes that have got the code now
    warnings: list[str] = field(default_factory=list)
    code: tuple[str, ...] = ()  #: remarks on the code that is taken


def _serves_logs(node: Node, *, timeout: float) -> bool:
    """Return whether a node serves its logs; NodeError if it is not there."""
    sender = RequestsTransport()
    sender.send(node, api.daemonstatus(), timeout=timeout)
    return sender.send(node, api.serves("logs"), timeout=timeout)


def _check(probes: Sequence[NodeProbe], *, feed: bool) -> list[str]:
    """Return the warnings that these answers call for.

    ConfigError if items have no way home from a node that answered. NoNodeReachable if not one
    answered; AuthRefused or TlsRefused where each of them refused, since that is to be mended, and
    waiting for a node does not help.
    """
    errors = []
    reasons = []
    without_logs = []
    for probe in probes:
        if probe.error is not None:
            errors.append(probe.error)
            reasons.append(str(probe.error).rstrip("."))
        elif not probe.value:
            without_logs.append(probe.asked.name)
    if len(errors) == len(probes):
        raise _unreachable(errors, "; ".join(reasons))
    if without_logs and not feed:
        raise ConfigError(
            f"There is no log folder (/logs/) on {', '.join(without_logs)}, so items have no way"
            " home from there. Set logs_dir in scrapyd.conf there, or give a feed URL (--feed,"
            " DISTRIBUTED_TARGET_FEED_URL)."
        )
    return [_warn_of_absence(reason) for reason in reasons]


def _warn_of_absence(reason: str) -> str:
    """Return the warning that a node does not answer, for this reason."""
    return f"{reason.rstrip('.')}; the crawl goes on without it, and uses it when it answers"


def _unreachable(errors: Sequence[NodeError], why: str) -> DistError:
    """Return the error of a crawl of whose nodes none answers."""
    are_refusals = all(isinstance(error, (AuthRefused, TlsRefused)) for error in errors)
    kind: type[DistError] = type(errors[0]) if are_refusals else NoNodeReachable
    return kind(
        f"No node can be reached: {why}. Nothing was started. Start a node, or name others in"
        " scrapy.cfg, DISTRIBUTED_TARGET_HOSTS or --node; `sdist nodes` shows them, and"
        " `sdist nodes remove NAME` takes one away that was added."
    )


def prepare(
    request: CrawlRequest, nodes: Sequence[Node], *, code: CrawlCode = TODAYS, dry_run: bool = False
) -> Prepared:
    """See to it that nodes are there and have the crawl's code, with its spider.

    Without any nodes, local ones are started. What `code` does not settle is the working tree's;
    `dry_run`: change nothing. DistError if no node can be used, items have no way home, or the code
    cannot run on any node.
    """
    options = request.options
    if not nodes and options.nodes:
        raise ConfigError(
            "The lists of nodes that were given (--node, DISTRIBUTED_NODES) name no node, so"
            " nothing was started. Put one on a line of its own, such as web1:6800; or leave the"
            " lists out: then scrapy.cfg says the nodes."
        )
    egg: Egg | None
    key: bytes | None
    if code.files is not None:
        egg = code.egg
        key = code.files.key
    else:
        egg, key = _build(request)
    if nodes or dry_run:
        return _prepare(request, nodes, egg, key, code=code, dry_run=dry_run)
    if options.deploy == "never":
        raise ConfigError(
            "No node is named, and new ones on this machine would not have the project's code,"
            ' which DISTRIBUTED_DEPLOY = "never" keeps here. Nothing was started. Name the nodes'
            " that have it: DISTRIBUTED_TARGET_HOSTS, --node, or sections [deploy:NAME] in"
            " scrapy.cfg."
        )
    nodes = local_nodes.start_nodes(request.project.state, LOCAL_NODES)
    try:
        prepared = _prepare(request, nodes, egg, key, code=code)
    except DistError as error:
        raise type(error)(
            f"{error} What was started on this machine ({counted(len(nodes), 'node')}) still runs:"
            " sdist nodes down"
        ) from error
    started = (
        f"started {counted(len(nodes), 'node')} on this machine; `sdist nodes down` stops them"
    )
    return replace(prepared, warnings=[*prepared.warnings, started])


def _prepare(
    request: CrawlRequest,
    nodes: Sequence[Node],
    egg: Egg | None,
    key: bytes | None,
    *,
    code: CrawlCode,
    dry_run: bool = False,
) -> Prepared:
    """See to it that these nodes have the egg; see `prepare`."""
    probes = _probe(request, nodes)
    warnings = []
    if nodes:
        warnings = _check(probes, feed=request.options.target_feed_url is not None)
    if dry_run:
        return Prepared(
            probes=probes,
            members=_members(probes, {}),
            version=None,
            key=key,
            egg=egg,
            warnings=warnings,
        )
    up = [probe.asked for probe in probes if probe.error is None]
    result = _roll_out(request, up, egg, version=code.version, dirty=code.egg is None)
    if not result.ready:
        raise _why_nowhere(result)
    return _judge_result(request, probes, result, warnings, egg, key, code=code)


def _judge_result(
    request: CrawlRequest,
    probes: Sequence[NodeProbe],
    result: rollout.RollOut,
    warnings: Sequence[str],
    egg: Egg | None,
    key: bytes | None,
    *,
    code: CrawlCode,
) -> Prepared:
    """Describe the fleet by what its nodes have answered (`probes`), and made of the code."""
    absences = _absences_in(result)
    missed = [_warn_of_absence(str(absence)) for absence in absences.values()]
    probes = _note_absences(probes, absences)
    before = {}
    uploaded = []
    version = result.version or _most_common_version(result)
    for node in result.ready:
        before[node.node.name] = node.before
        if node.uploaded:
            uploaded.append(node.node.name)
        if not node.same_code:
            key = None
    return Prepared(
        probes=probes,
        members=_members(probes, _problems_in(result)),
        version=version,
        key=key,
        egg=egg,
        code=tuple(notes_on(code, version, before, eggs_kept(request.project))),
        uploaded=tuple(uploaded),
        warnings=[*warnings, *missed],
    )


def _probe(request: CrawlRequest, nodes: Sequence[Node]) -> tuple[NodeProbe, ...]:
    """Ask all nodes at the same time whether they serve logs; return the answers in their order."""
    probe = partial(_serves_logs, timeout=request.options.limits.request_timeout)
    answers = {answer.asked: answer for answer in sweep(nodes, probe)}
    return tuple(answers[node] for node in nodes)


def _note_absences(
    probes: Sequence[NodeProbe], absences: Mapping[str, NodeError]
) -> tuple[NodeProbe, ...]:
    """Return what the nodes have answered; by `absences`, some have stopped to answer since."""
    found = []
    for probe in probes:
        error = absences.get(probe.asked.name, probe.error)
        found.append(replace(probe, error=error))
    return tuple(found)


def _most_common_version(result: rollout.RollOut) -> str | None:
    """Return the version that most nodes have; None if no node names one."""
    versions = [node.version for node in result.ready if node.version]
    return max(versions, key=versions.count) if versions else None


def eggs_kept(project: PreparedProject) -> list[SavedEgg]:
    """Return the eggs of the project in the state folder, under each of its names on nodes."""
    names = project.config.project_names if project.config is not None else ()
    return all_eggs(project.state, project.name, *names)


def _build(request: CrawlRequest) -> tuple[Egg | None, bytes | None]:
    """Build the egg of the working tree; return it and its key.

    Both are None without a project whose code is to stay here; ConfigError without one otherwise.
    """
    project = request.project
    if project.config is None or not project.config.settings_module:
        if request.options.deploy == "never":
            return None, None
        raise ConfigError(
            "There is no scrapy.cfg here, so the project cannot be deployed. Run this inside the"
            ' project, or set DISTRIBUTED_DEPLOY = "never" when the nodes have it already.'
        )
    key = state_key(project.state)
    client = store_client(request.store)
    egg = eggs.build(project.root, project.config.settings_module, key=key, requirements=client)
    return egg, key


def _roll_out(
    request: CrawlRequest,
    nodes: Sequence[Node],
    egg: Egg | None,
    *,
    version: str | None,
    dirty: bool = True,
) -> rollout.RollOut:
    """Bring the code, which must have the spider, to these nodes; return what came of it at each.

    Without a version it is named by its content; `dirty`: it is the working tree's, and may not be
    committed.
    """
    given = dict.fromkeys((node.name for node in nodes), version) if version else {}
    order = RollOutRequest(
        spider=request.spider,
        upload=request.options.deploy != "never",
        is_dirty=lambda: dirty and is_dirty(request.project.root),
        for_crawl=True,
        given=given,
        only_missing=True,
    )
    return rollout.ensure(nodes, request.project.name, egg, order)


def _absences_in(result: rollout.RollOut) -> dict[str, NodeError]:
    """Map the nodes that have not answered, and may yet, to their errors; none has said no."""
    absences = {}
    for node in result.failed:
        if isinstance(node.error, NodeError) and not isinstance(node.error, SAID_NO):
            absences[node.node.name] = node.error
    return absences


def _problems_in(result: rollout.RollOut) -> dict[str, str]:
    """Map the nodes that cannot run the code to why."""
    absences = _absences_in(result)
    problems = {}
    for node in result.failed:
        if node.node.name not in absences:
            problems[node.node.name] = node.reason
    return problems


def _why_nowhere(result: rollout.RollOut) -> DistError:
    """Return the error of code that no node can run."""
    reasons = []
    for reason, names in result.failures.items():
        reasons.append(f"{', '.join(names)}: {reason}")
    why = f"No node can run this project's code, so nothing was started. {'; '.join(reasons)}"
    if {type(node.error) for node in result.failed} == {NothingMatched}:
        return NothingMatched(why)
    return ConfigError(why)


def _members(probes: Sequence[NodeProbe], unready: Mapping[str, str]) -> list[NodeState]:
    """Return the nodes as the scheduler knows them; `unready`: node name -> why it gets no work."""
    members = []
    for found in probes:
        problem = unready.get(found.asked.name, "")
        is_prepared = found.error is None and not problem
        member = NodeState(
            node=found.asked, readiness=Readiness(prepared=is_prepared, unfit=problem)
        )
        if found.error is not None:
            member.liveness.missed(str(found.error), time.time())
        members.append(member)
    return members


def bring(request: CrawlRequest, node: Node, prepared: Prepared) -> str:
    """Bring the crawl's code to a node that was not there at the start.

    Returns why it cannot be used, empty if it can. NodeError if it does not answer after all.
    """
    logs = _serves_logs(node, timeout=request.options.limits.request_timeout)
    if not logs and request.options.target_feed_url is None:
        return f"{node.name} has no log folder, so items have no way home from there"
    try:
        version = None if request.options.deploy == "never" else prepared.version
        result = _roll_out(request, [node], prepared.egg, version=version)
    except DistError as error:
        return str(error)
    return _judge_late(node, result, prepared)


def _judge_late(node: Node, result: rollout.RollOut, prepared: Prepared) -> str:
    """Return why a node to which the code was brought later cannot be used; see `bring`."""
    for absence in _absences_in(result).values():
        raise absence
    if not result.ready:
        return str(_why_nowhere(result))
    if prepared.version and result.version != prepared.version:
        return (
            f"{node.name} has the version {result.version}, and this crawl runs {prepared.version}"
        )
    return ""


def notes_on(
    code: CrawlCode,
    version: str | None,
    earlier: Mapping[str, tuple[str, ...]],
    kept: Sequence[SavedEgg] = (),
) -> list[str]:
    """Remark on the code that a crawl runs under the name `version`.

    Such as that something else was deployed last. `earlier`: node name -> the versions that it had
    before, in Scrapyd's order. `kept` are the eggs in the state folder.
    """
    notes = [code.note] if code.note else []
    if version is None:
        return notes
    if code.before is not None and code.before != version:
        why = "the same code with today's part of scrapyd-dist,"
        if code.new:
            why = "today's code, as --new-code says,"
        notes.append(f"This crawl goes on with {why} {version}; it began with {code.before}.")
    if code.before is None and code.egg is None:
        notes += _notes_on_deployed(version, earlier.values(), kept)
    return notes


def _notes_on_deployed(
    version: str, deployed: Iterable[Sequence[str]], kept: Sequence[SavedEgg]
) -> list[str]:
    """Remark that the working tree's code, `version`, is not what was deployed last, if it is not.

    `deployed` are the versions of each node.
    """
    times = {egg.version: egg.at for egg in kept}
    contents = {egg.version: egg.content_hash for egg in kept}
    found = set()
    for versions in deployed:
        name = current(versions, times)
        if name is not None and not is_crawls(name):
            found.add(name)
    latest = newest(found, times) or max(found, default=version)
    # A name that a user chose does not tell the code; its egg does.
    if (contents.get(latest) or content_or_name(latest)) == content_or_name(version):
        return []
    how = f"a crawl runs that with --version {latest}."
    if latest not in contents:
        how = "its egg is not kept here: for a crawl of that code, check it out."
    note = (
        f"This crawl takes the working tree's code, {version}. What was deployed last is {latest},"
        f" and {how}"
    )
    return [note]
