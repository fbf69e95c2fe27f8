"""Works off the plain jobs that wait in the store: starts what may start, and waits for its own.

The rules it keeps: a job is taken by one process, in one step of the store; what a process leaves
behind when it ends is taken up by the next one; no node that is silent or drained is waited for
without an end.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

from scrapyd_dist.errors import ConfigError, NoNodeReachable, NothingMatched
from scrapyd_dist.job_queue import (
    Predecessor,
    chains,
    decide_starts,
    key_of_limit,
    predecessors_in,
    read_condition,
    read_limit,
)
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.keys import SealError, public_half, seal, unseal
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress import labels_of
from scrapyd_dist.project_names import project_name
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.settings import LABELS
from scrapyd_dist.store import Store
from scrapyd_dist.store.project_store import key_of
from scrapyd_dist.transports import sweep

from ..context import Context
from ..crawls.watcher import interruptible_pause
from ..options import option
from ..output import say, waiting
from .job_fleet import JobFleet, fleet_of, is_draining, post
from .job_memory import TRIES, JobMemory
from .jobs_table import look_back

#: seconds between two looks at the store and the nodes
LOOK = 2.0
#: the spider argument with the number of the attempt, of a job that is tried again if it fails
ATTEMPT = "attempt"
_option = partial(option, panel="Jobs that wait")


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Options of jobs that wait in the store, as options of a command."""

    retries: Annotated[
        int,
        _option(
            "Start a job that fails again, up to N times, on another node if there is one.",
            metavar="N",
            min=0,
            max=1000,
        ),
    ] = 0
    limit: Annotated[
        list[str] | None,
        _option(
            "At most N jobs at once of the same spider (spider=N), or of the same value of a label."
            " Repeatable.",
            metavar="NAME=N",
        ),
    ] = None
    after: Annotated[
        list[str] | None,
        _option(
            "Start when this job or crawl, or all with this label (NAME=VALUE; NAME with any"
            " value), finished; or failed, or are over. Repeatable.",
            metavar="NAME[:failed|:over]",
        ),
    ] = None
    resume: Annotated[bool, _option("Start nothing new; work off what waits in the store.")] = False

    @property
    def asked(self) -> bool:
        """Whether jobs are to wait; raises ConfigError for a limit that is none."""
        for text in self.limit or ():
            read_limit(text)
        return bool(self.retries or self.limit or self.after)


def sealed(settings: Mapping[str, str], key: bytes) -> str:
    """Return settings as a record keeps them: encrypted for this key, empty for none."""
    if not settings:
        return ""
    return seal(json.dumps(dict(settings)).encode(), public_half(key))


def call_of(record: JobRecord, settings: Mapping[str, str]) -> Call[str]:
    """Return what posts the job; ConfigError if a node would lose it."""
    args = dict(record.args)
    if record.retries:
        args[ATTEMPT] = str(record.attempt)
    settings = dict(settings)
    if record.labels:
        settings[LABELS] = ",".join(record.labels)
    return api.schedule(
        record.project,
        record.spider,
        jobid=record.id,
        version=record.version,
        settings=settings,
        args=args,
        priority=record.priority,
    )


def check_conditions(store: Store, records: Sequence[JobRecord]) -> None:
    """Check that jobs which are to wait can start some day.

    Raises:
        ConfigError: a limit counts nothing, or a spider argument is in the way of --retries.
        NothingMatched: a job is to follow something that does not exist.
    """
    others: list[Predecessor] = []
    if any(record.after for record in records):
        others = others_in(store, store.jobs())
    for record in records:
        for text in record.limits:
            _check_limit(record, text)
        for text in record.after:
            _check_condition(text, others)
        if record.retries and ATTEMPT in record.args:
            raise ConfigError(
                f"With --retries the spider gets the number of its attempt as the argument"
                f" {ATTEMPT!r}: give yours another name."
            )


def _check_limit(record: JobRecord, text: str) -> None:
    name, _ = read_limit(text)
    if key_of_limit(record, name) is None:
        raise ConfigError(
            f"--limit {text} counts jobs with the same label {name}=…, and {record.spider} has"
            f" none: give it one with --label {name}=VALUE, or in a column l:{name} of the file."
            " --limit spider=N counts jobs of one spider."
        )


def _check_condition(text: str, others: Sequence[Predecessor]) -> None:
    name, _ = read_condition(text)
    if not any(other.is_called(name) for other in others):
        raise NothingMatched(
            f"--after {name}: no job, crawl or label is called so. `sdist jobs` and `sdist crawls`"
            " list them; only :failed or :over may follow the name."
        )


def others_in(store: Store, records: Sequence[JobRecord]) -> list[Predecessor]:
    """Return what a job may wait for: these remembered jobs, and the crawls in the store."""
    others = [*predecessors_in(records)]
    for crawl in store.crawls():
        predecessor = Predecessor(
            names=frozenset({crawl.id}),
            labels=labels_of(crawl),
            created=crawl.created,
            over=crawl.state.ended,
            finished=crawl.exit_code == 0,
        )
        others.append(predecessor)
    return others


def left_behind(records: Sequence[JobRecord]) -> set[str]:
    """Return the jobs, by their first ids, that wait or may have to be tried again."""
    left = set[str]()
    for first, last in chains(records).items():
        may_start = last.state is Outcome.WAITING or last.attempt <= last.retries
        if may_start and not last.state.over:
            left.add(first)
    return left


@dataclass(kw_only=True)
class QueueRunner:
    """Starts the jobs that wait in the store, of all commands, until those of its own are over."""

    context: Context
    project: str | None  #: the name of the project, if it is known already
    timeout: float  #: seconds that a node gets for each answer
    own: Collection[str]  #: the jobs that are waited for, by the ids of their first attempts
    quiet: bool = False  #: whether it says nothing about how far it is
    _nodes: tuple[Node, ...] = ()  #: as they are listed now
    #: by base address, with those that are not listed any more
    _met: dict[str, Node] = field(default_factory=dict)
    #: base address of a node -> since when it does not answer, by `time.monotonic`
    _silent: dict[str, float] = field(default_factory=dict)
    #: since when no job is out, and none that may start has a node; None while that is not so
    _stuck: float | None = None

    def run(self) -> list[JobRecord]:
        """Start what may start until its own jobs are over; returns the last attempt of each.

        Raises:
            NoNodeReachable: for DISTRIBUTED_FLEET_TIMEOUT no node has been there that may take
                what waits, and no job has been out.
        """
        progress = nullcontext(lambda _: None) if self.quiet else waiting()
        with interruptible_pause() as pause, progress as show:
            try:
                while left := self._find_left():
                    self._read_nodes()
                    self._settle()
                    self._start()
                    show(_standing(left))
                    if self._find_left():
                        pause(LOOK)
            except (KeyboardInterrupt, NoNodeReachable):
                say(
                    "Jobs that were sent go on; the others wait in the store. Go on with: sdist"
                    " jobs schedule --resume"
                )
                raise
        last = chains(self._store.jobs())
        return [last[name] for name in self.own if name in last]

    @property
    def _store(self) -> Store:
        return self.context.new_store

    def _find_left(self) -> list[JobRecord]:
        """Return those of its own that are not over."""
        left = []
        for record in self._store.jobs(OPEN_ONLY):
            first = record.first or record.id
            if first in self.own:
                left.append(record)
        return left

    def _read_nodes(self) -> None:
        """Read the lists of nodes again.

        All nodes are read, whatever the command was told, since it also starts what others left.
        """
        try:
            nodes = self.context.nodes_now()
        except ConfigError:  # as while scrapy.cfg is being written
            if not self._nodes:
                raise
            return
        self.project = self.project or project_name(self.context.project, nodes, None)
        self._nodes = tuple(replace(node, project=node.project or self.project) for node in nodes)
        for node in self._nodes:
            self._met[node.url] = node

    def _settle(self) -> None:
        """Write down which jobs have ended, and give up those on nodes that are gone."""
        nodes = list(self._met.values())
        memory = look_back(self.context, nodes, timeout=self.timeout, since=OPEN_ONLY)
        now = time.monotonic()
        silent = {}
        for url in memory.silent:
            silent[url] = self._silent.get(url, now)
        self._silent = silent
        ends = {}
        for record in memory.records.values():
            if record.state.over or record.state is Outcome.WAITING:
                continue
            reason = self._why_lost(record, now)
            if reason:
                ends[record.id] = partial(_ended, state=Outcome.UNKNOWN, reason=reason, lost=True)
        memory.change(ends)

    def _why_lost(self, record: JobRecord, now: float) -> str:
        """Return why a job is given up that was sent; empty for one that is not."""
        # A job that may be tried again is given up sooner.
        may_retry = record.attempt <= record.retries
        setting = "DISTRIBUTED_NODE_TIMEOUT" if may_retry else "DISTRIBUTED_FLEET_TIMEOUT"
        waited = now - self._silent.get(record.url, now)
        if waited > self.context.written_number(setting):
            return f"its node has not answered for {waited:.0f} s"
        if record.url not in self._met:
            return "its node is no target any more"
        return ""

    def _start(self) -> None:
        """Take the jobs that may start, and post them."""
        fleet: JobFleet | None = None
        for _ in range(TRIES):
            revision = self._store.job_revision()
            records, others = self._read_records()
            if not _any_waits(records):
                return
            decision = decide_starts(records, others, time.time())
            if decision.ready and fleet is None:
                fleet = fleet_of(self.context, self._nodes, self.timeout, quiet=True)
                fleet.poll_nodes()
            begun, placeless = _place_each(decision.ready, fleet)
            self._check_stuck(fleet, is_idle=not begun and not _any_is_out(records))
            changed = [record for record, _ in begun]
            changed += decision.dropped
            if _is_complete(fleet):
                changed += map(_impossible, placeless)
            if not changed:
                return
            if self._store.keep_jobs(changed, revision):
                self._post(begun)
                return

    def _read_records(self) -> tuple[list[JobRecord], list[Predecessor]]:
        """Return the open jobs; if one of them follows others, all jobs, and what it may follow."""
        records = self._store.jobs(OPEN_ONLY)
        for record in records:
            if record.after and record.state is Outcome.WAITING:
                every = self._store.jobs()
                return every, others_in(self._store, every)
        return records, []

    def _check_stuck(self, fleet: JobFleet | None, *, is_idle: bool) -> None:
        """Raise NoNodeReachable when nothing has moved for DISTRIBUTED_FLEET_TIMEOUT.

        fleet: the nodes that were asked for room, if any job may start; is_idle: whether no job is
        out, and none has got a node. What waits stays in the store.
        """
        if fleet is None or not is_idle or _is_complete(fleet):
            self._stuck = None
            return
        now = time.monotonic()
        if self._stuck is None:
            self._stuck = now
        if now - self._stuck > self.context.written_number("DISTRIBUTED_FLEET_TIMEOUT"):
            reasons: list[Exception] = [*fleet.errors.values()]
            if fleet.draining:
                reasons.insert(0, is_draining(fleet.draining))
            raise NoNodeReachable(
                f"No node that answers may take the jobs that wait. {' '.join(map(str, reasons))}"
            )

    def _post(self, begun: Sequence[tuple[JobRecord, Node]]) -> None:
        """Post jobs that have been written down as sent; one that was not taken is ended."""
        key = key_of(self.context.root)
        ends: dict[str, Callable[[JobRecord], JobRecord]] = {}

        def send(placed: tuple[JobRecord, Node]) -> None:
            record, node = placed
            try:
                settings = {}
                if record.sealed:
                    settings = json.loads(unseal(record.sealed, key))
                call = call_of(record, settings)
            except (SealError, ConfigError) as error:
                reason = f"not started: {error}"
                ends[record.id] = partial(_ended, state=Outcome.CANCELLED, reason=reason)
                return
            node = replace(node, project=record.project)
            failed, lost = post(self.context.sender, node, call, record.id, self.timeout)
            if failed is not None and not lost:
                reason = f"not started: {failed.short}"
                ends[record.id] = partial(_ended, state=Outcome.FAILED, reason=reason)

        for _ in sweep(begun, send, threads=4 * len(self._nodes)):  # so that no node is run over
            pass
        if ends:
            JobMemory(self._store, OPEN_ONLY).change(ends)


def _place_each(
    ready: Sequence[JobRecord], fleet: JobFleet | None
) -> tuple[list[tuple[JobRecord, Node]], list[JobRecord]]:
    """Return the jobs that have a node, as they are once sent, with it; and those without one."""
    begun: list[tuple[JobRecord, Node]] = []
    placeless: list[JobRecord] = []
    if fleet is None:
        return begun, list(ready)
    for record in ready:
        node = fleet.place_of(record)
        if node is None:
            placeless.append(record)
        else:
            begun.append((_begun(record, node), node))
    return begun, placeless


def _is_complete(fleet: JobFleet | None) -> bool:
    """Tell whether no node was silent or drained: such a node may have what is missing."""
    return fleet is not None and not fleet.errors and not fleet.draining


def _any_waits(records: Sequence[JobRecord]) -> bool:
    return any(record.state is Outcome.WAITING for record in records)


def _any_is_out(records: Sequence[JobRecord]) -> bool:
    return any(record.posted and not record.state.over for record in records)


def _begun(record: JobRecord, node: Node) -> JobRecord:
    project = record.wanted_project or node.project or ""
    now = time.time()
    return replace(
        record, state=Outcome.PENDING, posted=now, node=node.name, url=node.url, project=project
    )


def _ended(record: JobRecord, *, state: Outcome, reason: str, lost: bool = False) -> JobRecord:
    return replace(record, state=state, ended=time.time(), reason=reason, lost=lost)


def _impossible(record: JobRecord) -> JobRecord:
    where = f"the node {record.on}" if record.on else "any node"
    reason = f"not started: the version {record.version} is not on {where} that may be used"
    return replace(_ended(record, state=Outcome.FAILED, reason=reason), sealed="")


def _standing(left: Sequence[JobRecord]) -> str:
    waits = [record for record in left if record.state is Outcome.WAITING]
    text = f"jobs: {len(left) - len(waits):,} sent · {len(waits):,} waiting"
    if waits:
        text += f" ({waits[0].waits_for})"
    return text
