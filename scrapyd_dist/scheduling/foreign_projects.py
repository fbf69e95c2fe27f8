"""Finds out which nodes have the other projects whose spiders work at this frontier.

Invariant: the first job of such a spider on a node is a handshake, in which code that is no worker
makes no request. Its report decides whether that spider gets batches there, in which version of its
project, and with which key.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from scrapyd_dist.errors import ApiRefused, NodeError
from scrapyd_dist.frontier.backlog import WorkerRequest
from scrapyd_dist.keys import SealError, seal
from scrapyd_dist.plurals import some_of
from scrapyd_dist.scheduling.job_request import call_for_introduction, call_for_worker
from scrapyd_dist.scheduling.node_state import NodeState, WorkerRun
from scrapyd_dist.scheduling.scheduler_state import NAMED, SchedulerState
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import current, hash_in
from scrapyd_dist.store.reach import Way
from scrapyd_dist.version import __version__

#: failed handshakes in a row after which no other is tried
TRIES = 2
DEPLOY = "deploy it there (sdist deploy --all, in its folder)"


def newest(versions: Sequence[str]) -> str:
    """Return the version that sdist deployed last; without one, the newest deployment."""
    ours = [name for name in versions if hash_in(name) is not None]
    return current(ours or versions) or ""


@dataclass(frozen=True, kw_only=True)
class Handshake:
    """Keeps what the handshake of a spider's code has given on one node.

    Another spider of its project may differ.
    """

    version: str
    sealed: str  #: the crawl's key, sealed for this code alone; empty where nothing is encrypted


@dataclass(kw_only=True)
class ForeignProjects:
    """Keeps the handshakes of this process, by the node's URL and the pool."""

    state: SchedulerState
    terms: WorkerRequest
    key: bytes | None  #: of the crawl
    _met: dict[tuple[str, str], Handshake] = field(default_factory=dict)
    _tried: Counter[tuple[str, str]] = field(default_factory=Counter)  #: failed handshakes in a row
    _lacks: dict[tuple[str, str], str] = field(default_factory=dict)  #: why it gets no work

    # nodes

    def fits(self, member: NodeState, pool: str, project: str) -> bool:
        """Return whether a worker for this pool may be started there, given room."""
        if not project:
            return True
        for out in member.out.values():
            if isinstance(out, WorkerRun) and out.pool == pool and out.introduces:
                return False  # its handshake has not ended
        return (member.node.url, pool) not in self._lacks

    def may_have(self, member: NodeState, pool: str) -> bool:
        """Return whether batches of this pool could be done there, now or soon."""
        gone = (
            member.left
            or member.readiness.unfit
            or member.readiness.unreached
            or member.liveness.down_for > self.state.limits.fleet_timeout
        )
        return not gone and (member.node.url, pool) not in self._lacks

    def why_nowhere(self, pool: str, members: Sequence[NodeState]) -> str:
        """Return why no node can do this pool's batches; empty as long as one may.

        It is empty, too, while all nodes are only away.
        """
        if any(self.may_have(member, pool) for member in members):
            return ""
        if not any(self._why_unable(member, pool) for member in members):
            return ""
        names: dict[str, list[str]] = {}
        for member in members:
            why = self._why_unable(member, pool) or self._why_dark(member)
            if why:
                names.setdefault(why, []).append(member.node.name)
        return "; ".join(f"{some_of(nodes, NAMED)}: {why}" for why, nodes in names.items())

    def _why_unable(self, member: NodeState, pool: str) -> str:
        """Return why a node cannot do this pool's batches, even if it answers."""
        return self._lacks.get((member.node.url, pool)) or member.readiness.unreached

    def _why_dark(self, member: NodeState) -> str:
        patience = self.state.limits.fleet_timeout
        if member.liveness.down_for > patience:
            return f"has not answered for {patience:.0f} s"
        return ""

    def is_new(self, member: NodeState, pool: str, project: str) -> bool:
        """Return whether the code for this pool needs a handshake there first."""
        return bool(project) and (member.node.url, pool) not in self._met

    # posts

    async def call(self, worker: WorkerRun, way: Way) -> api.Call[str]:
        """Return the call that posts a worker of another project, or its handshake.

        Raises `NodeError` if the node cannot start it.
        """
        spec = self.state.spec
        met = None if worker.introduces else self._met.get(_place(worker))
        if met is not None:
            worker.pin_version(met.version)
            store = {**self.state.rules.joined_to(way.job_settings), "foreign": True}
            if met.sealed:
                store["key_sealed"] = met.sealed
            return call_for_worker(spec, worker, self.terms, store, version=met.version)
        worker.begin_handshake()
        versions = await self.state.sender.send(
            worker.member.node,
            api.listversions(worker.project),
            timeout=self.state.limits.request_timeout,
        )
        if not versions:
            raise ApiRefused(f"there is no project {worker.project}; {DEPLOY}")
        worker.pin_version(newest(versions))  # and this one from now on
        return call_for_introduction(spec, worker, self.terms, way)

    # results

    def refused(self, worker: WorkerRun, error: NodeError) -> None:
        """Note that the node lacks the project, that version of it, or the spider."""
        if self._met.pop(_place(worker), None) is not None:
            return  # it had them: the next job there is a handshake again
        if isinstance(error, ApiRefused) and error.scrapyd_message:
            self._lack(worker, f"the project {worker.project}: {error.scrapyd_message}; {DEPLOY}")
        else:
            self._lack(worker, str(error))

    def judge_handshake(self, worker: WorkerRun, reason: str) -> None:
        """Judge a handshake that has ended.

        `reason`: why it failed, empty when it did not.
        """
        place = _place(worker)
        report = worker.report
        if report is not None and report.public is not None:
            version = str(report.code.get("version", ""))
            self._introduced(worker, report.public, version, report.problem)
        elif worker.member.up and not worker.dismissed:
            self._tried[place] += 1
            if self._tried[place] >= TRIES:
                why = f"does not work for this crawl, as if sdist had not deployed it ({reason})"
                self._lack(worker, f"{_code(worker)} {why}; {DEPLOY}")

    def note_unreached(self, worker: WorkerRun, why: str) -> None:
        """Note that its code there cannot reach the store.

        That says nothing about this project's own code.
        """
        self._lack(
            worker, f"{_code(worker)} cannot work for this crawl: {why.rstrip('.')}; {DEPLOY}"
        )

    def _introduced(self, worker: WorkerRun, public: str, made_by: str, problem: str) -> None:
        """Keep a handshake if its code fits; `public` is its key, `made_by` its sdist's version."""
        if problem:
            self._lack(worker, f"{_code(worker)} cannot work for this crawl: {problem}")
            return
        if made_by != __version__:
            self._lack(
                worker,
                f"{_code(worker)} was deployed by sdist {made_by}, "
                f"and this is {__version__}; {DEPLOY}",
            )
            return
        try:
            sealed = "" if self.key is None else seal(self.key, public)
        except SealError as error:
            self._lack(worker, f"{_code(worker)} gave no key that can be used: {error}")
            return
        self._tried.pop(_place(worker), None)
        self._met[_place(worker)] = Handshake(version=worker.version, sealed=sealed)

    def _lack(self, worker: WorkerRun, why: str) -> None:
        self._lacks[_place(worker)] = why


def _place(worker: WorkerRun) -> tuple[str, str]:
    return worker.member.node.url, worker.pool


def _code(worker: WorkerRun) -> str:
    return f"the version {worker.version} of the project {worker.project}"
