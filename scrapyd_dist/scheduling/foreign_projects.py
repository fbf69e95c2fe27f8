"""Other projects on the nodes whose spiders work at this frontier: which node has one, and the key of its workers.

Invariant: the first job of such a spider on a node is a handshake, in which code that is no worker makes no request.
Its report decides whether that spider gets batches there, and in which version of its project.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from scrapyd_dist.errors import ApiRefused, NodeError
from scrapyd_dist.frontier.backlog import WorkerRequest
from scrapyd_dist.keys import SealError, seal
from scrapyd_dist.scheduling.base import SchedulerState, listed
from scrapyd_dist.scheduling.job_request import call_for_introduction, call_for_worker
from scrapyd_dist.scheduling.node_state import NodeState, WorkerRun
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import current, hash_in
from scrapyd_dist.store.reach import Way
from scrapyd_dist.version import __version__

#: failed handshakes in a row after which no other is tried
TRIES = 2
DEPLOY = "deploy it there (sdist deploy --all, in its folder)"


def newest(versions: Sequence[str]) -> str:
    """The version that sdist deployed last; without one, the newest deployment."""
    ours = [name for name in versions if hash_in(name) is not None]
    return current(ours or versions) or ""


@dataclass(frozen=True, kw_only=True)
class Handshake:
    """A spider's code on one node by its handshake; another spider of its project may differ."""

    version: str
    sealed: str  #: the crawl's key, sealed for this code alone; empty where nothing is encrypted


@dataclass(kw_only=True)
class ForeignProjects:
    """Keeps the handshakes of this process."""

    state: SchedulerState
    terms: WorkerRequest
    key: bytes | None  #: of the crawl
    # by the node's URL and the pool:
    _met: dict[tuple[str, str], Handshake] = field(default_factory=dict)
    _tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lacks: dict[tuple[str, str], str] = field(default_factory=dict)  #: why it gets no work

    # nodes

    def fits(self, member: NodeState, pool: str, project: str) -> bool:
        """True when a worker for this pool may be started there, given room."""
        if not project:
            return True
        asking = any(
            out.introduces and out.member is member
            for out in self.state.workers()
            if out.pool == pool
        )
        return not asking and (member.node.url, pool) not in self._lacks

    def may_have(self, member: NodeState, pool: str) -> bool:
        """True when batches of this pool could be done there, now or soon."""
        gone = (
            member.left
            or member.unfit
            or member.unreached
            or member.down_for > self.state.limits.fleet_timeout
        )
        return not gone and (member.node.url, pool) not in self._lacks

    def nowhere(self, pool: str, members: Sequence[NodeState]) -> str:
        """Why no node can do this pool's batches; empty as long as one may."""
        if any(self.may_have(member, pool) for member in members):
            return ""
        if not any(
            member.unreached or (member.node.url, pool) in self._lacks for member in members
        ):
            return ""
        names: dict[str, list[str]] = {}
        patience = self.state.limits.fleet_timeout
        for member in members:
            dark = f"has not answered for {patience:.0f} s" if member.down_for > patience else ""
            if why := self._lacks.get((member.node.url, pool)) or member.unreached or dark:
                names.setdefault(why, []).append(member.node.name)
        return "; ".join(f"{listed(nodes)}: {why}" for why, nodes in names.items())

    def is_new(self, member: NodeState, pool: str, project: str) -> bool:
        """True when the code for this pool needs a handshake there first."""
        return bool(project) and (member.node.url, pool) not in self._met

    # posts

    async def call(self, worker: WorkerRun, way: Way) -> api.Call[str]:
        """The call that posts a worker of another project, or its handshake; `NodeError` if the node cannot take it."""
        node, spec = worker.member.node, self.state.spec
        met = None if worker.introduces else self._met.get(_place(worker))
        if met is not None:
            worker.version = met.version
            told = {
                **way.told,
                "foreign": True,
                **({"key_sealed": met.sealed} if met.sealed else {}),
            }
            return call_for_worker(spec, worker, self.terms, told, version=met.version)
        worker.introduces, timeout = True, self.state.limits.request_timeout
        versions = await self.state.sender.send(
            node, api.listversions(worker.project), timeout=timeout
        )
        if not versions:
            raise ApiRefused(f"there is no project {worker.project}; {DEPLOY}")
        worker.version = newest(versions)  # and this one from now on
        return call_for_introduction(spec, worker, self.terms, way)

    # results

    def refused(self, worker: WorkerRun, error: NodeError) -> None:
        """The node does not have the project, that version of it, or the spider."""
        if self._met.pop(_place(worker), None) is None:
            said = error.said if isinstance(error, ApiRefused) else ""
            self._lack(
                worker, f"the project {worker.project}: {said}; {DEPLOY}" if said else str(error)
            )

    def heard(self, worker: WorkerRun, reason: str) -> None:
        """A handshake has ended; `reason`: why it failed, empty when it did not."""
        place, report = _place(worker), worker.report
        if report is not None and report.public is not None:
            self._introduced(
                worker, report.public, str(report.code.get("version", "")), report.problem
            )
        elif worker.member.up and not worker.dismissed:
            self._tried[place] += 1
            if self._tried[place] >= TRIES:
                why = f"does not work for this crawl, as if sdist had not deployed it ({reason})"
                self._lack(worker, f"{_code(worker)} {why}; {DEPLOY}")

    def cannot(self, worker: WorkerRun, why: str) -> None:
        """Its code there cannot reach the store; that says nothing of this project's own."""
        self._lack(
            worker, f"{_code(worker)} cannot work for this crawl: {why.rstrip('.')}; {DEPLOY}"
        )

    def _introduced(self, worker: WorkerRun, public: str, made_by: str, problem: str) -> None:
        if problem:
            self._lack(worker, f"{_code(worker)} cannot work for this crawl: {problem}")
            return
        if made_by != __version__:
            self._lack(
                worker,
                f"{_code(worker)} was deployed by sdist {made_by}, and this is {__version__}; {DEPLOY}",
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
