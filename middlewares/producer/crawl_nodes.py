"""Find the nodes of a crawl, bring each the code, and make the scheduler that uses them."""

from __future__ import annotations

import asyncio
import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings
from scrapyd_dist.deploy import local_nodes

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.nodes import Node, NodeRecord, distinct_nodes
from scrapyd_dist.progress import learned_slots
from scrapyd_dist.scheduling.base import SchedulerState
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.scheduling.scheduler import Scheduler
from scrapyd_dist.store.node_memory import up_to_date
from scrapyd_dist.store.reach import Way, ways_to
from scrapyd_dist.transports import AsyncSender

from .crawl_code import TODAYS, CrawlCode
from .crawl_repository import CrawlRepository
from .crawl_request import CrawlRequest, job_settings, shared_settings, worker_settings
from .preflight import Prepared, bring, prepare
from .producer_options import ProducerOptions

logger = logging.getLogger(__name__)
#: how an entry begins that names a file with a list of nodes
FILE = "file:"
#: how an entry begins that names a command which prints such a list
COMMAND = "cmd:"
#: maximum number of characters that messages quote from a command's standard error
QUOTED = 300
#: what makes that workers need the store, where no setting does
RULES = "rules of `sdist throttle`"
#: the name under which the process of a crawl fills the crawl's own frontier; the one that goes on
#: with it has the same
PRODUCER = "producer"


class NodeSources:
    """Reads the lists of nodes of one crawl.

    Entries of DISTRIBUTED_NODES, else DISTRIBUTED_TARGET_HOSTS, else scrapy.cfg, else the local
    nodes. The nodes that were added to the store join, unless DISTRIBUTED_NODES has only names and
    addresses.
    """

    def __init__(self, request: CrawlRequest) -> None:
        self._options = request.options
        self._project = request.project
        self._store = request.store
        #: name of a list -> its stamp when it was read last, and its nodes then
        self._lists: dict[str, tuple[object, tuple[Node, ...]]] = {}
        #: name of a list that cannot be read now -> the error that was logged last
        self._errors: dict[str, str] = {}
        self._added: list[Node] = []  #: what `sdist nodes add` put into the store

    def read(self, records: Sequence[NodeRecord] = ()) -> tuple[Node, ...]:
        """Return the nodes that are listed now, each once, with the `records` of the store.

        ConfigError if a list cannot be read, and could not be before.
        """
        added = []
        for record in up_to_date(records, self._store, self._project.state):
            if not record.url:
                continue
            node = Node.parse(record.url, name=record.name)
            added.append(config.with_netrc(node))
        self._added = added
        listed = self._read_named()
        if not self._names_only():
            listed += self._added
        resolved: list[Node] = []
        for node in listed:
            resolved += self._resolve(node)
        nodes = distinct_nodes(resolved)
        if nodes or self._options.nodes:
            return nodes
        return local_nodes.running(self._project.state)

    def _names_only(self) -> bool:
        """Return whether DISTRIBUTED_NODES is given, and has only names and addresses."""
        entries = self._options.nodes
        return bool(entries) and not any(entry.startswith((FILE, COMMAND)) for entry in entries)

    def _read_named(self) -> list[Node]:
        """Return the nodes of the first setting or file that names any."""
        options = self._options
        nodes: list[Node] = []
        if options.nodes:
            for entry in options.nodes:
                nodes += self._read_entry(entry)
            return nodes
        for address in options.target_hosts:
            nodes.append(config.with_netrc(Node.parse(address)))
        return nodes or list(self._read_targets())

    def _read_targets(self) -> tuple[Node, ...]:
        """Return the targets of the project itself.

        ConfigError if all are for projects with other settings modules.
        """
        if self._project.config is None:
            return ()
        root = self._project.root
        stamp = _stamp_of(root / "scrapy.cfg")
        return self._read_list("scrapy.cfg", stamp, lambda: _own_targets(root))

    def _read_entry(self, entry: str) -> tuple[Node, ...]:
        """Return the nodes of an entry of DISTRIBUTED_NODES: of a file or command, or a name's."""
        root = self._project.root
        if entry.startswith(FILE):
            path = root / Path(entry.removeprefix(FILE)).expanduser()
            read = partial(config.read_text, path, f"The list of nodes {path} (DISTRIBUTED_NODES)")
            stamp = _stamp_of(path)
            where = str(path)
        elif entry.startswith(COMMAND):
            command = entry.removeprefix(COMMAND)
            read = partial(_output_of, command, root, self._options.limits.request_timeout)
            stamp = self._period()
            where = f"the output of {_program_of(command)}"
        else:
            return (self._find_named(entry),)
        return self._read_list(
            entry, stamp, lambda: nodes_of(read(), where, self._known_nodes(), root)
        )

    def _find_named(self, entry: str) -> Node:
        """Return the node with this name or address; ConfigError for one of another project."""
        known = self._known_nodes()
        project_config = self._project.config
        is_known = any(node.name == entry for node in known)
        if not is_known and project_config is not None:
            project_config.check_own(node for node in project_config.targets if node.name == entry)
        return config.node_named(entry, known)

    def _known_nodes(self) -> tuple[Node, ...]:
        """Return the nodes that have a name, the first of each name.

        A target that shares its node with one before it has a name of its own, too.
        """
        known = list(self._read_targets())
        if self._project.config is not None:
            known += filter(self._project.config.is_own, self._project.config.targets)
        known += self._added
        known += local_nodes.running(self._project.state)
        first: dict[str, Node] = {}
        for node in known:
            first.setdefault(node.name, node)
        return tuple(first.values())

    def _resolve(self, node: Node) -> tuple[Node, ...]:
        """Return the node itself, or one for each address of its name."""
        if not node.lookup:
            return (node,)
        return self._read_list(
            f"the addresses of {node.host}",
            (node.url, self._period()),
            lambda: config.addresses_of(node),
        )

    def _period(self) -> int:
        """Return a value that changes when commands and names are to be asked again."""
        return int(time.monotonic() // self._options.nodes_every)

    def _read_list(
        self, name: str, stamp: object, read: Callable[[], tuple[Node, ...]]
    ) -> tuple[Node, ...]:
        """Return the nodes of a list, which is read again only when its stamp is another one."""
        earlier = self._lists.get(name)
        if earlier is not None and earlier[0] == stamp:
            return earlier[1]
        try:
            nodes = read()
        except ConfigError as error:
            if earlier is None:
                raise
            if self._errors.get(name) != str(error):
                logger.warning("%s The crawl goes on with the nodes that it named before.", error)
            self._errors[name] = str(error)
            nodes = earlier[1]
        else:
            self._errors.pop(name, None)
        self._lists[name] = (stamp, nodes)
        return nodes


def _own_targets(root: Path) -> tuple[Node, ...]:
    """Return the targets of scrapy.cfg for this project; ConfigError if all are for others."""
    found = config.load(root)
    own = found.own_targets
    if not own:
        found.check_own(found.targets)
    return own


def nodes_of(text: str, where: str, targets: Sequence[Node], root: Path) -> tuple[Node, ...]:
    """Return the nodes of a list: sections as in scrapy.cfg, or one node per line.

    A line is the name of a target of scrapy.cfg, or an address; behind it there may be `name=…` and
    `slots=…`, and behind a # anything. Relative paths in sections start from `root`. ConfigError if
    a line makes no sense: the text names the list as `where`, and quotes nothing but a name.
    """
    lines = []
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("[") and line.endswith("]"):
            return config.targets_in(text, where, root)
        lines.append(line)
    found = []
    for number, line in enumerate(lines, 1):
        if line:
            try:
                found.append(_read_line(line, targets))
            except (ConfigError, NothingMatched) as error:
                raise ConfigError(f"{where}, line {number}: {error}") from None
    return tuple(found)


def _read_line(line: str, targets: Sequence[Node]) -> Node:
    """Return the node of a line; ConfigError if the line makes no sense."""
    address, *words = line.split()
    pairs = {}
    for word in words:
        name, _, value = word.partition("=")
        pairs[name] = value
    has_bare_words = not all("=" in word for word in words)
    is_repeated = len(pairs) < len(words)
    if has_bare_words or is_repeated or pairs.keys() - {"name", "slots"}:
        raise ConfigError(
            "behind the address there can be name=NAME and slots=N, and nothing else."
        )
    node = config.node_named(address, targets)
    slots = config.read_slots(pairs.get("slots", "")) or node.slots
    return replace(node, name=pairs.get("name") or node.name, slots=slots)


def _stamp_of(path: Path) -> object:
    """Return a value that changes with the file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _output_of(command: str, folder: Path, timeout: float) -> str:
    """Return what a command prints.

    ConfigError if it cannot be run, takes too long, or ends with another code than 0.
    """
    what = f"The command that lists nodes, {_program_of(command)} (DISTRIBUTED_NODES),"
    if not command.strip():
        raise ConfigError(f"There is no command behind {COMMAND} (--node, DISTRIBUTED_NODES).")
    try:
        done = subprocess.run(
            shlex.split(command),
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what} did not end within {timeout:g} s.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what} cannot be run: {error}.") from error
    if done.returncode:
        message = " ".join(done.stderr.split())[:QUOTED] or "nothing on standard error"
        raise ConfigError(f"{what} ended with code {done.returncode} and said: {message}.")
    return done.stdout


def _program_of(command: str) -> str:
    """Return how a command may be called in public: its arguments may hold a secret."""
    return (command.split() or [""])[0]


@dataclass(kw_only=True)
class CrawlNodes:
    """Holds the nodes of one crawl, which have its code."""

    request: CrawlRequest  #: its options as the nodes allow
    repository: CrawlRepository
    sources: NodeSources
    prepared: Prepared
    ways: Callable[[Node], Way]  #: to the store, for workers
    _unreadable: str = ""  #: why the list of nodes could not be read last

    @classmethod
    async def prepare(
        cls, request: CrawlRequest, repository: CrawlRepository, code: CrawlCode = TODAYS
    ) -> CrawlNodes:
        """Find the nodes, and bring them the code, of which `code` is settled.

        DistError if nothing can be started.
        """
        sources = NodeSources(request)
        nodes = await asyncio.to_thread(
            sources.read, await repository.thread(repository.thread.store.nodes)
        )
        prepared = await asyncio.to_thread(prepare, request, nodes, code=code)
        learned = learned_slots(await repository.thread(repository.thread.store.crawls))
        for member in prepared.members:
            member.capacity.recall(learned.get(member.node.url, 0))
        ways = ways_to(request.store, prepared.key)
        rules = await repository.rules()
        prepared.warnings.extend(
            await asyncio.to_thread(
                check_reach, request.options, prepared.members, ways, rules=rules
            )
        )
        able = [member for member in prepared.members if member.able]
        if able and all(member.readiness.unreached for member in able):
            request = replace(request, options=replace(request.options, leases=False))
        return cls(
            request=request, repository=repository, sources=sources, prepared=prepared, ways=ways
        )

    async def job_request(self, settings: BaseSettings, **own: Any) -> JobRequest:
        """Return what all jobs of the crawl, with these settings, have in common.

        `own` are further fields.
        """
        request = self.request
        options = request.options
        return JobRequest(
            crawl=self.repository.id,
            home=self.repository.home,
            project=request.project.name,
            spider=request.spider,
            version=self.prepared.version,
            settings={
                **request.project.limits,
                **worker_settings(options, settings),
                **job_settings(request.given, options),
            },
            args=request.args,
            shared=shared_settings(settings),
            goals=options.goals.limits,
            collected=await self.repository.collected(),
            **own,
        )

    def scheduler(
        self,
        spec: JobRequest,
        *,
        sender: AsyncSender,
        staffing: ScalingPolicy | None = None,
        counts: Callable[[], Mapping[str, int]] = dict,
    ) -> Scheduler:
        """Make the scheduler of the batches of a crawl or frontier.

        `spec` says what a frontier's rows are, `staffing` how many workers `sdist frontier consume`
        was asked for; None: for a crawl, which fills its own frontier, and has items and pages of
        its own (`counts`).
        """
        options = self.request.options
        limits = options.limits
        scaling = options.scaling
        own: dict[str, Any] = {}
        if staffing is None:
            own = {"placement": Placement(options.placement), "producer": PRODUCER}
        elif spec.rows:
            limits = replace(limits, max_jobs=staffing.most)
            scaling = ScalingPolicy(max_time=staffing.max_time)
        else:
            per_slot = 0 if scaling.terms.fair else staffing.per_slot
            scaling = replace(staffing, terms=scaling.terms, per_slot=per_slot)
        state = SchedulerState(
            spec=spec,
            members=self.prepared.members,
            store=self.repository.thread,
            sender=sender,
            limits=limits,
            reach=self.ways if options.leases else None,
            sends=options.sends,
        )
        return Scheduler(
            state=state,
            folder=self.repository.parts,
            prepare=self._bring,
            listed=self._listed,
            scaling=scaling,
            key=self.prepared.key,
            own=counts,
            **own,
        )

    async def _bring(self, member: NodeState) -> str:
        """Bring the crawl's code to a node that was not there at the start and answers now.

        Returns why the node cannot be used, empty if it can.
        """
        options = self.request.options
        wrong = await asyncio.to_thread(bring, self.request, member.node, self.prepared)
        if wrong or not (options.throttled or options.heeds):
            return wrong  # the autoscaler asks itself whether its workers reach the store
        way = await asyncio.to_thread(self.ways, member.node)
        member.readiness.note_throttle(way.reason)
        if options.throttled or (way.reason and await self.repository.rules()):
            return way.reason
        return ""

    async def _listed(self, records: Sequence[NodeRecord]) -> tuple[Node, ...] | None:
        """Return the nodes that are listed now; None when that cannot be told at the moment."""
        try:
            return await asyncio.to_thread(self.sources.read, records)
        except (ConfigError, NothingMatched) as error:
            # A name or a list is gone, or a record is wrong.
            if str(error) != self._unreadable:  # it is read once a second
                self._unreadable = str(error)
                logger.warning("The list of nodes cannot be read: %s", error)
            return None


def check_reach(
    options: ProducerOptions,
    members: Sequence[NodeState],
    ways: Callable[[Node], Way],
    *,
    rules: int,
) -> list[str]:
    """Mark the nodes whose workers need the store and do not reach it as unfit, with warnings.

    They need it where a setting says so, and where the store has rules that the crawl is to heed.
    Elsewhere such nodes are `unreached` if the others lease, and `deaf`: their workers would not
    hear of a later rule. ConfigError if workers need the store, and those of no node reach it.
    Blocking.
    """
    usable = [member for member in members if member.able]
    needs = options.why_reach
    if not needs and options.heeds and rules:
        needs = RULES
    if not needs:
        _note_reach(usable, ways, options)
        return []
    warnings = _mark_unfit(usable, ways)
    if usable and all(member.readiness.unfit for member in usable):
        raise _no_way(needs, usable)
    return warnings


def _note_reach(
    members: Iterable[NodeState], ways: Callable[[Node], Way], options: ProducerOptions
) -> None:
    """Note why workers of these nodes do not reach the store, where they can do without it."""
    for member in members:
        unreached = ""
        throttle_problem = ""
        if options.leases and options.sends:
            unreached = ways(member.node).reason
        if options.heeds:
            throttle_problem = ways(member.node).reason
        member.readiness.out_of_reach(unreached)
        member.readiness.note_throttle(throttle_problem)


def _mark_unfit(members: Iterable[NodeState], ways: Callable[[Node], Way]) -> list[str]:
    """Mark the nodes whose workers do not reach the store, which they need; warn of each."""
    warnings = []
    for member in members:
        reason = ways(member.node).reason
        if reason:
            member.readiness.refuse(reason)
            warnings.append(f"{member.node.name} gets no workers: {reason}")
    return warnings


def _no_way(needs: str, members: Sequence[NodeState]) -> ConfigError:
    """Return the error of a crawl whose workers need the store, and reach it from no node."""
    reasons = [member.readiness.unfit.rstrip(".") for member in members]
    why = "; ".join(dict.fromkeys(reasons))
    if needs == RULES:
        return ConfigError(
            "The store has rules of `sdist throttle`, and the workers of no node could heed them:"
            f" {why}. Nothing was started. Use a store that all nodes reach, such as a Redis server"
            " (SDIST_STORE=redis://…); remove the rules, which `sdist throttle show` lists; or"
            " crawl without them: DISTRIBUTED_THROTTLE = False."
        )
    return ConfigError(
        f"Workers need a store that they reach ({needs}), and from no node they do: {why}. Nothing"
        f" was started. Without {needs.partition(',')[0]} the nodes need not reach the store."
    )
