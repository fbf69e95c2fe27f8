"""The nodes of a crawl: where they are listed, how each gets the code, and the scheduler that uses them."""

from __future__ import annotations

import asyncio
import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings
from scrapyd_dist.deploy import local_nodes

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.nodes import Node, NodeRecord, distinct
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
#: how entries begin that name a list, and a command that prints one
FILE, COMMAND = "file:", "cmd:"
#: characters of what a command says on standard error that are told
TOLD = 300
#: what makes that workers need the store, where no setting does
RULES = "rules of `sdist throttle`"
#: the name under which the process of a crawl fills the crawl's own frontier; the one that goes on with it has the same
PRODUCER = "producer"


class NodeSources:
    """The lists of nodes of one crawl.

    Entries of DISTRIBUTED_NODES, else DISTRIBUTED_TARGET_HOSTS, else scrapy.cfg, else the local nodes. The nodes that
    were added to the store join, unless DISTRIBUTED_NODES has only names and addresses.
    """

    def __init__(self, request: CrawlRequest) -> None:
        self._options, self._project, self._store = request.options, request.project, request.store
        self._said: dict[
            str, tuple[object, tuple[Node, ...]]
        ] = {}  #: list -> its stamp then, and what it said
        self._wrong: dict[str, str] = {}  #: list -> what was told of it
        self._added: list[Node] = []  #: what `sdist nodes add` put into the store

    def read(self, records: Sequence[NodeRecord] = ()) -> tuple[Node, ...]:
        """The nodes that are listed now, each once, with the `records` of the store.

        ConfigError if a list cannot be read, and could not be before.
        """
        believed = up_to_date(records, self._store, self._project.state)
        self._added = [
            config.with_netrc(Node.parse(one.url, name=one.name)) for one in believed if one.url
        ]
        named, entries = self._named(), self._options.nodes
        alone = entries and not any(entry.startswith((FILE, COMMAND)) for entry in entries)
        extra = () if alone else self._added
        nodes = distinct(one for node in (*named, *extra) for one in self._addresses(node))
        return nodes if nodes or entries else local_nodes.running(self._project.state)

    def _named(self) -> tuple[Node, ...]:
        options = self._options
        if options.nodes:
            return tuple(node for entry in options.nodes for node in self._of_entry(entry))
        return (
            tuple(config.with_netrc(Node.parse(text)) for text in options.target_hosts)
            or self._targets()
        )

    def _targets(self) -> tuple[Node, ...]:
        """The targets of the project itself; ConfigError if all are for projects with other settings modules."""
        if self._project.config is None:
            return ()
        root = self._project.root
        return self._list("scrapy.cfg", _stamp(root / "scrapy.cfg"), lambda: _own_targets(root))

    def _of_entry(self, entry: str) -> tuple[Node, ...]:
        if entry.startswith(FILE):
            path = self._project.root / Path(entry.removeprefix(FILE)).expanduser()
            read = partial(config.read_text, path, f"The list of nodes {path} (DISTRIBUTED_NODES)")
            stamp, where = _stamp(path), str(path)
        elif entry.startswith(COMMAND):
            command = entry.removeprefix(COMMAND)
            read = partial(
                _output_of, command, self._project.root, self._options.limits.request_timeout
            )
            stamp, where = self._turn(), f"the output of {_program(command)}"
        else:
            known = self._known()
            if entry not in {node.name for node in known} and self._project.config is not None:
                self._project.config.check_own(
                    node for node in self._project.config.targets if node.name == entry
                )
            return (config.node_named(entry, known),)
        return self._list(
            entry, stamp, lambda: nodes_of(read(), where, self._known(), self._project.root)
        )

    def _known(self) -> tuple[Node, ...]:
        """The nodes that have a name; a target that shares its node with one before it has its own, too."""
        targets = self._project.config.targets if self._project.config is not None else ()
        own = [
            node
            for node in targets
            if self._project.config is not None and self._project.config.is_own(node)
        ]
        known = (*self._targets(), *own, *self._added, *local_nodes.running(self._project.state))
        first: dict[str, Node] = {}
        for node in known:
            first.setdefault(node.name, node)
        return tuple(first.values())

    def _addresses(self, node: Node) -> tuple[Node, ...]:
        """The node itself, or one for each address of its name."""
        if not node.lookup:
            return (node,)
        return self._list(
            f"the addresses of {node.host}",
            (node.url, self._turn()),
            lambda: config.addresses_of(node),
        )

    def _turn(self) -> int:
        """A value that changes when commands and names are to be asked again."""
        return int(time.monotonic() // self._options.nodes_every)

    def _list(
        self, name: str, stamp: object, read: Callable[[], tuple[Node, ...]]
    ) -> tuple[Node, ...]:
        """What this list says, read again only when its stamp is another one."""
        known = self._said.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            nodes = read()
        except ConfigError as error:
            if known is None:
                raise
            if self._wrong.get(name) != str(error):
                logger.warning("%s The crawl goes on with the nodes that it named before.", error)
            self._wrong[name], nodes = str(error), known[1]
        else:
            self._wrong.pop(name, None)
        self._said[name] = (stamp, nodes)
        return nodes


def _own_targets(root: Path) -> tuple[Node, ...]:
    found = config.load(root)
    own = found.own_targets
    if not own:
        found.check_own(found.targets)
    return own


def nodes_of(text: str, where: str, targets: Sequence[Node], root: Path) -> tuple[Node, ...]:
    """The nodes of a list: sections as in scrapy.cfg, or one node per line.

    A line is the name of a target of scrapy.cfg, or an address; behind it there may be `name=…` and `slots=…`, and
    behind a # anything. Relative paths in sections start from `root`. ConfigError if a line makes no sense: the text
    names the list as `where`, and quotes nothing but a name.
    """
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if any(line.startswith("[") and line.endswith("]") for line in lines):
        return config.targets_in(text, where, root)
    found = []
    for number, line in enumerate(lines, 1):
        if line:
            try:
                found.append(_of_line(line, targets))
            except (ConfigError, NothingMatched) as error:
                raise ConfigError(f"{where}, line {number}: {error}") from None
    return tuple(found)


def _of_line(line: str, targets: Sequence[Node]) -> Node:
    address, *words = line.split()
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    if len(pairs) < len(words) or pairs.keys() - {"name", "slots"}:
        raise ConfigError(
            "behind the address there can be name=NAME and slots=N, and nothing else."
        )
    node = config.node_named(address, targets)
    slots = config.read_slots(pairs.get("slots", "")) or node.slots
    return replace(node, name=pairs.get("name") or node.name, slots=slots)


def _stamp(path: Path) -> object:
    """A value that changes with the file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _output_of(command: str, folder: Path, timeout: float) -> str:
    """What a command prints; ConfigError if it cannot be run, takes too long, or ends with another code than 0."""
    what = f"The command that lists nodes, {_program(command)} (DISTRIBUTED_NODES),"
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
        said = " ".join(done.stderr.split())[:TOLD] or "nothing on standard error"
        raise ConfigError(f"{what} ended with code {done.returncode} and said: {said}.")
    return done.stdout


def _program(command: str) -> str:
    """What a command may be called in public: its arguments may hold a secret."""
    return (command.split() or [""])[0]


@dataclass(kw_only=True)
class CrawlNodes:
    """The nodes of one crawl, which have its code."""

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
        """Find the nodes, and bring them the code, of which `code` is settled; DistError if nothing can be started."""
        sources = NodeSources(request)
        nodes = await asyncio.to_thread(
            sources.read, await repository.thread(repository.thread.store.nodes)
        )
        prepared = await asyncio.to_thread(prepare, request, nodes, code=code)
        learned = learned_slots(await repository.thread(repository.thread.store.crawls))
        for member in prepared.members:
            member.recall(learned.get(member.node.url, 0))
        ways, members, rules = (
            ways_to(request.store, prepared.key),
            prepared.members,
            await repository.rules(),
        )
        prepared.warnings.extend(
            await asyncio.to_thread(check_reach, request.options, members, ways, rules=rules)
        )
        able = [member for member in members if member.able]
        if able and all(member.unreached for member in able):
            request = replace(request, options=replace(request.options, leases=False))
        return cls(
            request=request, repository=repository, sources=sources, prepared=prepared, ways=ways
        )

    async def job_request(self, settings: BaseSettings, **own: Any) -> JobRequest:
        """What all jobs of the crawl, with these settings, have in common; `own` are further fields."""
        request, options = self.request, self.request.options
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
        """The scheduler of the batches of a crawl or frontier.

        `spec` says what a frontier's rows are, `staffing` how many workers `sdist frontier consume` was asked for;
        None: for a crawl, which fills its own frontier, and has items and pages of its own (`counts`).
        """
        options = self.request.options
        limits, scaling, own = options.limits, options.scaling, dict[str, Any]()
        if staffing is None:
            own = {"placement": Placement(options.placement), "producer": PRODUCER}
        elif spec.rows:
            limits, scaling = (
                replace(limits, max_jobs=staffing.most),
                ScalingPolicy(max_time=staffing.max_time),
            )
        else:
            scaling = replace(
                staffing,
                terms=scaling.terms,
                per_slot=0 if scaling.terms.fair else staffing.per_slot,
            )
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
        """A node that was not there at the start answers now: bring it the crawl's code, or say why not."""
        node, options = member.node, self.request.options
        wrong = await asyncio.to_thread(bring, self.request, node, self.prepared)
        if not wrong and (
            options.throttled or options.heeds
        ):  # the autoscaler asks for its workers itself
            member.deaf = (await asyncio.to_thread(self.ways, node)).reason
            if options.throttled or (member.deaf and await self.repository.rules()):
                wrong = member.deaf
        return wrong

    async def _listed(self, records: Sequence[NodeRecord]) -> tuple[Node, ...] | None:
        """The nodes that are listed now; None when that cannot be told at the moment."""
        try:
            return await asyncio.to_thread(self.sources.read, records)
        except (
            ConfigError,
            NothingMatched,
        ) as error:  # a name or a list is gone, or a record is wrong
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
    """Where workers need the store, mark the nodes whose workers do not reach it as unfit, with a warning for each.

    They need it where a setting says so, and where the store has rules that the crawl is to heed. Elsewhere such nodes
    are `unreached` if the others lease, and `deaf`: their workers would not hear of a later rule. ConfigError if
    workers need the store, and those of no node reach it. Blocking.
    """
    usable = [member for member in members if member.able]
    needs = options.why_reach or (RULES if options.heeds and rules else "")
    if not needs:
        for member in usable:
            member.unreached = ways(member.node).reason if options.leases and options.sends else ""
            member.deaf = ways(member.node).reason if options.heeds else ""
        return []
    for member in usable:
        member.unfit = ways(member.node).reason
    if usable and not any(member.able for member in usable):
        why = "; ".join(dict.fromkeys(member.unfit.rstrip(".") for member in usable))
        if needs == RULES:
            raise ConfigError(
                f"The store has rules of `sdist throttle`, and the workers of no node could heed them: {why}. Nothing"
                " was started. Use a store that all nodes reach, such as a Redis server (SDIST_STORE=redis://…); remove"
                " the rules, which `sdist throttle show` lists; or crawl without them: DISTRIBUTED_THROTTLE = False."
            )
        raise ConfigError(
            f"Workers need a store that they reach ({needs}), and from no node they do: {why}. Nothing was started."
            f" Without {needs.partition(',')[0]} the nodes need not reach the store."
        )
    return [
        f"{member.node.name} gets no workers: {member.unfit}" for member in usable if member.unfit
    ]
