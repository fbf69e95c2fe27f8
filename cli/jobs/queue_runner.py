"""Works off the plain jobs that wait in the store: starts what may start, and waits for its own.

The rules it keeps: a job is taken by one process, in one step of the store; what a process leaves behind when it ends
is taken up by the next one; no node that is silent or drained is waited for without an end.
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
    decide,
    key_of_limit,
    predecessors_in,
    read_condition,
    read_limit,
)
from scrapyd_dist.job_record import OPEN_ONLY, JobRecord, Outcome
from scrapyd_dist.keys import SealError, public_half, seal, unseal
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress import labels_of
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.settings import LABELS
from scrapyd_dist.store import Store
from scrapyd_dist.transports import sweep

from ..context import Context, key_of, project_name
from ..crawls.watcher import looked_out_for
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
            "At most N jobs at once of the same spider (spider=N), or of the same value of a label. Repeatable.",
            metavar="NAME=N",
        ),
    ] = None
    after: Annotated[
        list[str] | None,
        _option(
            "Start when this job or crawl, or all with this label (NAME=VALUE; NAME with any value), finished; or"
            " failed, or are over. Repeatable.",
            metavar="NAME[:failed|:over]",
        ),
    ] = None
    resume: Annotated[bool, _option("Start nothing new; work off what waits in the store.")] = False

    @property
    def asked(self) -> bool:
        """Whether jobs are to wait; ConfigError for a limit that is none."""
        for text in self.limit or ():
            read_limit(text)
        return bool(self.retries or self.limit or self.after)


def sealed(settings: Mapping[str, str], key: bytes) -> str:
    """Settings as a record keeps them."""
    return seal(json.dumps(dict(settings)).encode(), public_half(key)) if settings else ""


def call_of(record: JobRecord, settings: Mapping[str, str]) -> Call[str]:
    """What posts the job; ConfigError if a node would lose it."""
    args = {**record.args, ATTEMPT: str(record.attempt)} if record.retries else record.args
    labels = {LABELS: ",".join(record.labels)} if record.labels else {}
    return api.schedule(
        record.project,
        record.spider,
        jobid=record.id,
        version=record.version,
        settings={**settings, **labels},
        args=args,
        priority=record.priority,
    )


def check_conditions(store: Store, records: Sequence[JobRecord]) -> None:
    """ConfigError or NothingMatched for a limit, or something to follow, that these jobs can do nothing with."""
    others = others_in(store, store.jobs()) if any(record.after for record in records) else []
    for record in records:
        for text in record.limits:
            name = read_limit(text)[0]
            if key_of_limit(record, name) is None:
                raise ConfigError(
                    f"--limit {text} counts jobs with the same label {name}=…, and {record.spider} has none: give it"
                    f" one with --label {name}=VALUE, or in a column l:{name} of the file. --limit spider=N counts jobs"
                    " of one spider."
                )
        for name in (read_condition(text)[0] for text in record.after):
            if not any(one.is_called(name) for one in others):
                raise NothingMatched(
                    f"--after {name}: no job, crawl or label is called so. `sdist jobs` and `sdist crawls` list them;"
                    " only :failed or :over may follow the name."
                )
        if record.retries and ATTEMPT in record.args:
            raise ConfigError(
                f"With --retries the spider gets the number of its attempt as the argument {ATTEMPT!r}: give yours"
                " another name."
            )


def others_in(store: Store, records: Sequence[JobRecord]) -> list[Predecessor]:
    """What a job may wait for: the remembered jobs, and the crawls and frontiers in the store."""
    crawls = [
        Predecessor(
            names=frozenset({crawl.id}),
            labels=labels_of(crawl),
            created=crawl.created,
            over=crawl.state.ended,
            finished=crawl.exit_code == 0,
        )
        for crawl in store.crawls()
    ]
    return [*predecessors_in(records), *crawls]


def left_behind(records: Sequence[JobRecord]) -> set[str]:
    """The jobs, by their first ids, that wait or may have to be tried again."""
    return {
        first
        for first, last in chains(records).items()
        if not last.state.over and (last.state is Outcome.WAITING or last.attempt <= last.retries)
    }


@dataclass(kw_only=True)
class QueueRunner:
    context: Context
    project: str | None  #: the name of the project, if it is known already
    timeout: float  #: seconds that a node gets for each answer
    own: Collection[str]  #: the jobs that are waited for, by the ids of their first attempts
    quiet: bool = False
    _nodes: tuple[Node, ...] = ()  #: as they are listed now
    _met: dict[str, Node] = field(
        default_factory=dict
    )  #: by base address, with those that are not listed any more
    _silent: dict[str, float] = field(
        default_factory=dict
    )  #: base address of a node -> since when it does not answer
    _stuck: float | None = None  #: since when no job is out, and none that may start has a node

    def run(self) -> list[JobRecord]:
        """Start what may start until its own jobs are over; gives the last attempt of each."""
        silence = nullcontext(lambda _: None)
        with looked_out_for() as pause, silence if self.quiet else waiting() as show:
            try:
                while left := self._left():
                    self._follow()
                    self._settle()
                    self._start()
                    show(_standing(left))
                    if self._left():
                        pause(LOOK)
            except (KeyboardInterrupt, NoNodeReachable):
                say(
                    "Jobs that were sent go on; the others wait in the store. Go on with: sdist jobs schedule --resume"
                )
                raise
        last = chains(self._store.jobs())
        return [last[name] for name in self.own if name in last]

    def _follow(self) -> None:
        """Read the lists of nodes again: all, whatever the command was told, since it also starts what others left."""
        try:
            nodes = self.context.nodes_now()
        except ConfigError:  # as while scrapy.cfg is being written
            if not self._nodes:
                raise
            return
        self.project = self.project or project_name(self.context.project, nodes, None)
        self._nodes = tuple(replace(one, project=one.project or self.project) for one in nodes)
        self._met |= {node.url: node for node in self._nodes}

    @property
    def _store(self) -> Store:
        return self.context.new_store

    def _left(self) -> list[JobRecord]:
        """Those of its own that are not over."""
        return [one for one in self._store.jobs(OPEN_ONLY) if (one.first or one.id) in self.own]

    def _settle(self) -> None:
        """Write down which jobs have ended, and give up those on nodes that are gone."""
        memory = look_back(
            self.context, [*self._met.values()], timeout=self.timeout, since=OPEN_ONLY
        )
        now = time.monotonic()
        self._silent = {url: self._silent.get(url, now) for url in memory.silent}
        ends = {}
        for record in memory.records.values():
            if not record.state.over and record.state is not Outcome.WAITING:
                why = "" if record.url in self._met else "its node is no target any more"
                since, name = (
                    self._silent.get(record.url, now),
                    "NODE" if record.attempt <= record.retries else "FLEET",
                )
                if now - since > self.context.written_number(f"DISTRIBUTED_{name}_TIMEOUT"):
                    why = f"its node has not answered for {now - since:.0f} s"
                if why:
                    ends[record.id] = partial(_ended, state=Outcome.UNKNOWN, reason=why, lost=True)
        memory.change(ends)

    def _start(self) -> None:
        """Take the jobs that may start, and post them."""
        fleet = None
        for _ in range(TRIES):
            revision, records = self._store.job_revision(), self._store.jobs(OPEN_ONLY)
            waits = [one for one in records if one.state is Outcome.WAITING]
            if not waits:
                return
            follows = any(one.after for one in waits)
            records = self._store.jobs() if follows else records
            decision = decide(
                records, others_in(self._store, records) if follows else (), time.time()
            )
            if decision.ready and fleet is None:
                fleet = fleet_of(self.context, self._nodes, self.timeout, quiet=True)
                fleet.look()
            places = [(one, fleet.place_of(one)) for one in decision.ready] if fleet else []
            begun = [(_begun(one, node), node) for one, node in places if node is not None]
            # A node that is silent or drained may have what is missing.
            is_sure = fleet is not None and not fleet.errors and not fleet.draining
            is_idle = not begun and not any(one.posted and not one.state.over for one in records)
            if fleet and is_idle and not is_sure:
                self._give_up(fleet)
            else:
                self._stuck = None
            lost = [one for one, node in places if node is None and is_sure]
            changed = [
                *(one for one, _ in begun),
                *decision.dropped,
                *(_impossible(one) for one in lost),
            ]
            if not changed:
                return
            if self._store.keep_jobs(changed, revision):
                self._post(begun)
                return

    def _give_up(self, fleet: JobFleet) -> None:
        """NoNodeReachable when this has been so for DISTRIBUTED_FLEET_TIMEOUT: what waits stays in the store."""
        now = time.monotonic()
        self._stuck = now if self._stuck is None else self._stuck
        if now - self._stuck > self.context.written_number("DISTRIBUTED_FLEET_TIMEOUT"):
            why = [is_draining(fleet.draining)] if fleet.draining else []
            texts = " ".join(map(str, [*why, *fleet.errors.values()]))
            raise NoNodeReachable(f"No node that answers may take the jobs that wait. {texts}")

    def _post(self, begun: Sequence[tuple[JobRecord, Node]]) -> None:
        key, ends = key_of(self.context.root), dict[str, Callable[[JobRecord], JobRecord]]()

        def send(one: tuple[JobRecord, Node]) -> None:
            record, node = one
            try:
                settings = json.loads(unseal(record.sealed, key)) if record.sealed else {}
                call = call_of(record, settings)
            except (SealError, ConfigError) as error:
                ends[record.id] = partial(
                    _ended, state=Outcome.CANCELLED, reason=f"not started: {error}"
                )
                return
            failed, lost = post(
                self.context.sender,
                replace(node, project=record.project),
                call,
                record.id,
                self.timeout,
            )
            if failed is not None and not lost:
                ends[record.id] = partial(
                    _ended, state=Outcome.FAILED, reason=f"not started: {failed.short}"
                )

        for _ in sweep(begun, send, threads=4 * len(self._nodes)):  # so that no node is run over
            pass
        if ends:
            JobMemory(self._store, OPEN_ONLY).change(ends)


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
    waits = [one for one in left if one.state is Outcome.WAITING]
    text = f"jobs: {len(left) - len(waits):,} sent · {len(waits):,} waiting"
    return f"{text} ({waits[0].waits_for})" if waits else text
