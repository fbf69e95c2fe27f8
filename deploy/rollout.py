"""Deploys one egg to many nodes at the same time, with retries; undoes it when a node fails."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TypeVar

from scrapyd_dist.errors import (
    ApiRefused,
    ConfigError,
    ConnectionLost,
    ConnectionRefused,
    ConnectTimeout,
    CutReply,
    DistError,
    NodeError,
    NothingMatched,
    ServerFailed,
)
from scrapyd_dist.nodes import Node, group_names
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.version_order import name_last
from scrapyd_dist.scrapyd.versions import (
    current,
    hash_in,
    is_crawls,
    later_than,
    made_at,
    newest,
    version_name,
)
from scrapyd_dist.transports import Sender, thread_pool
from scrapyd_dist.transports.requests import RequestsTransport

from .egg import Egg
from .egg_refusal import explain_refusal
from .kept_eggs import find_egg, save_egg, sent_times

T = TypeVar("T")
#: seconds to check the result of an upload after the node's timeout
CHECK_TIMEOUT = 10.0
#: seconds before the first retry of a call; doubled for each further one
BACKOFF = 0.5
#: transient failures, which are retried; every call made here may be repeated
_PASSING = (ConnectionRefused, ConnectTimeout, ConnectionLost, CutReply, ServerFailed)


class Step(str, Enum):
    """Names a step of the deployment to one node; `progress` is called with each."""

    ASKING = "asking"  #: asking for its versions
    UPLOADING = "uploading"
    CHECKING = "checking"  #: asking for the version's spiders
    RETRYING = "retrying"  #: waiting for the retry of a failed call
    PRESENT = "present"  #: done: the node had the version already
    UPLOADED = "uploaded"  #: done: the version was uploaded
    FAILED = "failed"
    UNDONE = "undone"  #: done: the version was deleted again because another node failed


#: steps after which a node may have the egg
_SENT = {Step.UPLOADING, Step.CHECKING, Step.RETRYING, Step.UPLOADED}


@dataclass(frozen=True, kw_only=True)
class RollOutRequest:
    """Says what a deployment is to do, the same for all nodes."""

    spider: str | None = None  #: the version must have it
    #: if not, the version with the egg's content is taken, else the newest deployment
    upload: bool = True
    timeout: float = 60.0  #: seconds for all calls to one node
    #: tells whether there are uncommitted changes; it is asked only for the name of a new version
    is_dirty: Callable[[], bool] = lambda: False
    label: str = ""  #: name of the commit, for the name of a new version
    #: whether it is for a crawl, so that it must not become a node's default
    for_crawl: bool = False
    #: node name -> version name there, instead of one chosen by time and content
    given: Mapping[str, str] = field(default_factory=dict)
    #: whether a node that has the given name is skipped, instead of uploading again
    only_missing: bool = False
    #: whether all uploads are undone if one node fails, except those that a job may run
    atomic: bool = False
    retries: int = 0  #: maximum retries of a call after a transient failure
    dry_run: bool = False  #: whether nothing is uploaded; results have `planned` instead


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """Says what the deployment to one node has come to."""

    node: Node
    version: str | None = None  #: the version that jobs there are pinned to; None if it failed
    uploaded: bool = False
    #: whether the version has the egg's content; others are accepted only without an upload
    same_code: bool = False
    spiders: tuple[str, ...] = ()
    default: str | None = None  #: the node's default version; None if unknown
    before: tuple[str, ...] = ()  #: the node's versions before the deployment, its default last
    planned: bool = False  #: whether the version would be uploaded (dry run)
    undone: bool = False  #: whether the upload was undone because another node failed
    stays: str = ""  #: why the upload could not be undone
    error: DistError | None = None
    #: the version that was sent and that a node which failed may have; None if it surely has not
    left: str | None = None

    @property
    def sent(self) -> str | None:
        """Return the version that the node has, or may have, from this deployment."""
        return self.version if self.uploaded else self.left

    @property
    def reason(self) -> str:
        """Return why it failed, if possible without the node's name, for grouping."""
        why = str(self.error or "")
        if isinstance(self.error, BrokenEggError):
            why = self.error.reason
        if self.left is None:
            return why
        return f"{why.rstrip('.')}. It may have the version {self.left} now, though it failed."


class RollOut:
    """Holds the results of a deployment, in the order of the nodes."""

    def __init__(self, results: Iterable[NodeResult]) -> None:
        self.results = tuple(results)
        ready = []
        failed = []
        versions = set()
        for result in self.results:
            if result.error is not None:
                failed.append(result)
            elif not result.undone:
                ready.append(result)
            if result.version is not None:
                versions.add(result.version)
        self.ready = tuple(ready)
        self.failed = tuple(failed)
        #: the version on all good nodes; None without a good node, or if they have different ones,
        #: which happens only without an upload
        self.version = versions.pop() if len(versions) == 1 else None

    @property
    def spider_lists(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """Map each list of spiders to the good nodes that have it; two lists are an error."""
        return group_names((tuple(sorted(result.spiders)), result.node) for result in self.ready)

    @property
    def failures(self) -> dict[str, tuple[str, ...]]:
        """Map each reason to the names of the nodes that failed for it."""
        return group_names((result.reason, result.node) for result in self.failed)


class BrokenEggError(DistError):
    """Says that the node cannot import the egg."""

    def __init__(self, node: Node, reason: str, *, after: str = "") -> None:
        self.reason = reason
        super().__init__(f"{node}: {reason}{after}")


class RollOutInterrupted(KeyboardInterrupt):
    """Says that Ctrl-C came during the upload; nodes finish what they have begun."""

    def __init__(self, steps: Mapping[str, Step], version: str) -> None:
        super().__init__()
        self.steps = steps  #: node name -> its last step
        self.version = version  #: its name on nodes without a given one


def ensure(
    nodes: Sequence[Node],
    project: str,
    egg: Egg | None,
    request: RollOutRequest = RollOutRequest(),
    *,
    state: Path | None = None,
    now: datetime | None = None,
    progress: Callable[[Node, Step], object] = lambda _node, _step: None,
    transport: Sender | None = None,
) -> RollOut:
    """Ensure that every node has the egg's code and can import it.

    Each node has its own thread, at most 64 run at once. A node's own project name goes before
    `project`. Without an upload, no egg is needed, and any version is taken then. Uploaded eggs are
    kept in the folder `state`. The name of a new version has the time `now`. `progress` is called
    with each step, from several threads, but never concurrently. Ctrl-C during the upload raises
    RollOutInterrupted.
    """
    _check_request(nodes, egg, request)
    steps = _StepBoard(nodes, progress)
    sender = transport or RequestsTransport()
    uploads = []
    for node in nodes:
        upload = NodeUpload(
            node=node,
            project=node.project or project,
            egg=egg,
            request=request,
            report_step=steps.report,
            transport=sender,
        )
        uploads.append(upload)
    with thread_pool(len(uploads)) as pool:
        list(pool.map(NodeUpload.list_versions, uploads))
        if egg is None or not request.upload:
            return RollOut(pool.map(NodeUpload.use_existing, uploads))
        common = _version_for_all(uploads, egg, request, project=project, state=state, now=now)
        names = {node.name: request.given.get(node.name, common) for node in nodes}
        try:
            result = _upload_to_all(pool, uploads, egg, names, request)
        except KeyboardInterrupt:
            if request.dry_run:  # nothing was under way
                raise
            last_steps = steps.snapshot()
            _keep(state, project, egg, _sent_so_far(nodes, names, last_steps))
            raise RollOutInterrupted(last_steps, common) from None
    _keep(state, project, egg, _uploaded(result))
    return result


def _check_request(nodes: Sequence[Node], egg: Egg | None, request: RollOutRequest) -> None:
    """Raise ConfigError if there is nothing to deploy, or nowhere to deploy it to."""
    if not nodes:
        raise ConfigError(
            "There is no node to deploy to. Name one in a [deploy:NAME] section of scrapy.cfg."
        )
    if egg is None and request.upload:
        raise ConfigError("Nothing to deploy: no egg was built.")


class _StepBoard:
    """The last step of each node, written by the threads of all nodes."""

    def __init__(self, nodes: Sequence[Node], progress: Callable[[Node, Step], object]) -> None:
        self._lock = threading.Lock()
        self._progress = progress
        self._steps = {node.name: Step.ASKING for node in nodes}

    def report(self, node: Node, step: Step) -> None:
        """Store the step of a node, and pass it on."""
        with self._lock:
            self._steps[node.name] = step
            self._progress(node, step)

    def snapshot(self) -> dict[str, Step]:
        """Return a copy of the last steps, by node name."""
        return dict(self._steps)


def _version_for_all(
    uploads: Sequence["NodeUpload"],
    egg: Egg,
    request: RollOutRequest,
    *,
    project: str,
    state: Path | None,
    now: datetime | None,
) -> str:
    """Return the version name for all nodes without a given one: an existing or a new name."""
    projects = {project, *(upload.project for upload in uploads)}
    known = {}
    others = {}
    saved = None
    if state is not None:
        known = sent_times(state, projects)
        others = sent_times(state, projects, but_of=egg.content_hash)
    if state is not None and not request.for_crawl:
        saved = find_egg(state, project, egg.content_hash)
    answered = [upload.versions for upload in uploads if upload.error is None]
    common = common_name(
        answered,
        egg.content_hash,
        for_crawl=request.for_crawl,
        kept=saved.version if saved else None,
        known=others,
    )
    return common or _new_name(uploads, egg, request, now or datetime.now(timezone.utc), known)


def _new_name(
    uploads: Sequence["NodeUpload"],
    egg: Egg,
    request: RollOutRequest,
    now: datetime,
    known: Mapping[str, float],
) -> str:
    """Return a new name, of a deployment one that each node which gets it sorts last.

    known: when versions were sent whose names do not tell it, seconds since the epoch.
    """
    present: list[str] = []
    for upload in uploads:
        present.extend(upload.versions)
    name = version_name(
        egg.content_hash,
        later_than(now, present, known),
        for_crawl=request.for_crawl,
        dirty=request.is_dirty(),
        label=request.label,
    )
    if request.for_crawl:
        return name
    unnamed = [upload for upload in uploads if upload.node.name not in request.given]
    return name_last(name, [upload.versions for upload in unnamed])


def _upload_to_all(
    pool: Executor,
    uploads: Sequence["NodeUpload"],
    egg: Egg,
    names: Mapping[str, str],
    request: RollOutRequest,
) -> RollOut:
    """Upload the egg to each node under the name that `names` has for it; undo all if asked for."""

    def bring(upload: NodeUpload) -> NodeResult:
        """Upload the egg to one node."""
        return upload.bring(names[upload.node.name], egg)

    result = RollOut(pool.map(bring, uploads))
    if request.atomic and result.failed:
        return RollOut(pool.map(NodeUpload.undo, uploads, result.results))
    return result


def _sent_so_far(
    nodes: Sequence[Node], names: Mapping[str, str], last_steps: Mapping[str, Step]
) -> Iterator[tuple[Node, str]]:
    """Generate the nodes that may have the egg, each with the version name there."""
    for node in nodes:
        if last_steps[node.name] in _SENT:
            yield node, names[node.name]


def _uploaded(result: RollOut) -> Iterator[tuple[Node, str]]:
    """Generate the nodes that the egg was uploaded to, each with the version name there."""
    for entry in result.results:
        if entry.uploaded and entry.version:
            yield entry.node, entry.version


def _keep(state: Path | None, project: str, egg: Egg, sent: Iterable[tuple[Node, str]]) -> None:
    """Keep the egg under each version.

    It is kept for the project itself and for each other name that the project has on a node.
    """
    if state is None:
        return
    copies = set()
    for node, version in sent:
        copies.add((project, version))
        copies.add((node.project or project, version))
    for name, version in copies:
        save_egg(state, name, version, egg.data)


def common_name(
    node_versions: Sequence[Sequence[str]],
    content_hash: str,
    *,
    for_crawl: bool = False,
    kept: str | None = None,
    known: Mapping[str, float] | None = None,
) -> str | None:
    """Return the most common existing version name for a content; None if a new name is needed.

    `node_versions` are the versions of each node that answered. A crawl does not deploy: it uses a
    deployment's name only if every node has it. Otherwise only a deployment's name is used, and
    only if no other code was deployed after it; if no node has one, the name `kept` in the state
    folder. `known` are upload times of versions of other code whose names have none.
    """
    all_names = [*itertools.chain.from_iterable(node_versions)]
    counts: Counter[str] = Counter()
    for name in all_names:
        if hash_in(name) == content_hash:
            counts[name] += 1
    if for_crawl:
        usable = _crawl_names(counts, len(node_versions))
    else:
        last = newest(all_names, known)
        if last is not None and hash_in(last) != content_hash:
            return None
        usable = _deployed_names(counts)
        if not usable and kept:
            usable = [kept]
    return max(usable, key=lambda name: (counts[name], made_at(name) or 0.0, name), default=None)


def _crawl_names(counts: Mapping[str, int], nodes: int) -> list[str]:
    """Return the names that a crawl may use: those of crawls, and those that every node has."""
    return [name for name, count in counts.items() if is_crawls(name) or count == nodes]


def _deployed_names(counts: Mapping[str, int]) -> list[str]:
    return [name for name in counts if not is_crawls(name)]


@dataclass(kw_only=True)
class NodeUpload:
    """Deploys an egg to one node. It is not thread-safe."""

    node: Node
    project: str
    egg: Egg | None
    request: RollOutRequest
    report_step: Callable[[Node, Step], object]  #: called with each step
    transport: Sender
    versions: tuple[str, ...] = ()  #: the node's, its default last; set by `list_versions`
    #: ids of the jobs that ran or waited before the upload; recorded if it may have to be undone
    _jobs_before: frozenset[str] = frozenset()
    error: DistError | None = None  #: why the versions are not known
    _left: str | None = None  #: the sent version that the node has or may have
    _unsure: bool = False  #: whether a call that failed may have been accepted, since it was unset
    _deadline: float = field(init=False)  #: monotonic time, set by the first `list_versions`

    def list_versions(self) -> None:
        """Ask the node for its versions, without a retry, because all nodes wait for the answer.

        An error is kept for the result.
        """
        self._deadline = time.monotonic() + self.request.timeout
        self.report_step(self.node, Step.ASKING)
        self._read_versions(tried=self.request.retries)

    def _list_versions_again(self) -> None:
        """Ask again after a failure that may have passed, while other nodes continue."""
        if isinstance(self.error, _PASSING) and self._pause(0):
            self._read_versions(tried=1)

    def _read_versions(self, *, tried: int) -> None:
        try:
            self.versions = self._send(api.listversions(self.project), api.TIMEOUT, tried=tried)
            if self.request.atomic and self.versions:
                jobs = self._send(api.listjobs(self.project), api.TIMEOUT, tried=tried)
                self._jobs_before = frozenset(job.id for job in jobs.running + jobs.pending)
            self.error = None
        except NodeError as error:
            self.error = error

    def bring(self, version: str, egg: Egg) -> NodeResult:
        """Upload the egg under this name, and return what has come of it.

        A node that has a version of this name gets no egg.
        If the name was given for it, it gets the egg in any case, except with `only_missing`.
        A dry run only asks whether the node lacks it.
        """
        self._list_versions_again()
        if self.request.dry_run:
            return self._plan(version)
        is_replaced = self.node.name in self.request.given and not self.request.only_missing
        if version in self.versions and not is_replaced:
            result = self._result(lambda: self._check(version), version=version, uploaded=False)
            return replace(result, default=self.versions[-1])
        result = self._result(lambda: self._upload(version, egg), version=version, uploaded=True)
        if result.error is None:
            with suppress(NodeError):
                names = self._send(api.listversions(self.project), api.TIMEOUT)
                return replace(result, default=names[-1] if names else None)
        return result

    def _plan(self, version: str) -> NodeResult:
        """Return what an upload would do."""
        if self.error is not None:
            return NodeResult(node=self.node, before=self.versions, error=self.error)
        return NodeResult(
            node=self.node,
            version=version,
            planned=version not in self.versions,
            before=self.versions,
        )

    def undo(self, result: NodeResult) -> NodeResult:
        """Delete the version that the node has or may have from us, unless a job may run it."""
        version = result.sent
        if version is None:
            return result
        if version in self.versions:
            replaced = "replaced" if result.error is None else "may have replaced"
            stays = (
                f"it {replaced} a version of the same name, {version}, "
                "which Scrapyd does not give back"
            )
            return replace(result, stays=stays)
        return self._undo_new(result, version)

    def _undo_new(self, result: NodeResult, version: str) -> NodeResult:
        """Delete a version that the node had not before, unless a job may run it."""
        try:
            is_gone = not self._has(version)
            users = set() if is_gone else self._jobs_using(version)
            if users:
                stays = f"the version {version} is in use there by {', '.join(sorted(users))}"
                return replace(result, stays=stays)
            if not is_gone:
                self._delete(version)
        except NodeError as error:
            stays = f"the version {version} could not be removed again: {error}"
            return replace(result, stays=stays)
        if is_gone and result.left:
            return replace(result, left=None)
        self.report_step(self.node, Step.UNDONE)
        return replace(result, version=None, left=None, undone=True)

    def _has(self, version: str) -> bool:
        return version in self._send(api.listversions(self.project))

    def _delete(self, version: str) -> None:
        """Delete a version, also where the answer to an earlier call was lost."""
        try:
            self._send(api.delversion(self.project, version))
        except ApiRefused:
            if self._has(version):
                raise

    def _jobs_using(self, version: str) -> set[str]:
        """Return the ids of the jobs that may run this version, which was just uploaded."""
        jobs = self._send(api.listjobs(self.project))
        users = set()
        for job in jobs.pending:
            if job.version == version:
                users.add(job.id)
        for job in jobs.running:
            # Scrapyd does not name its version; a new running job may use this one
            if job.id not in self._jobs_before:
                users.add(job.id)
        return users

    def use_existing(self) -> NodeResult:
        """Use the given version, else the newest one with the egg's content, else the current."""
        self._list_versions_again()
        version = self.request.given.get(self.node.name)
        if version is None:
            version = self._newest_with_content() or current(self.versions)
        return self._result(
            lambda: self._check_present(version), version=version or "", uploaded=False
        )

    def _newest_with_content(self) -> str | None:
        if self.egg is None:
            return None
        content_hash = self.egg.content_hash
        same = [name for name in self.versions if hash_in(name) == content_hash]
        return max(same, key=lambda name: made_at(name) or 0.0, default=None)

    def _check_present(self, version: str | None) -> tuple[str, ...]:
        """Return the spiders of a version that the node must have already; see `_check`."""
        if version is not None and version in self.versions:
            return self._check(version)
        if version is None:
            missing = "version"
            advice = "Deploy it first: sdist deploy --all."
        else:
            missing = f"version {version}"
            advice = "Deploy it first, or name another one: sdist code versions."
        raise NothingMatched(
            f"There is no {missing} of the project {self.project} on the node, and uploading is "
            f'switched off (DISTRIBUTED_DEPLOY = "never"). {advice}'
        )

    def _result(
        self, work: Callable[[], tuple[str, ...]], *, version: str, uploaded: bool
    ) -> NodeResult:
        """Return what `work`, which gives the spiders of the version, has come to."""
        try:
            if self.error is not None:
                raise self.error
            spiders = work()
        except DistError as error:
            self.report_step(self.node, Step.FAILED)
            return NodeResult(node=self.node, before=self.versions, error=error, left=self._left)
        self.report_step(self.node, Step.UPLOADED if uploaded else Step.PRESENT)
        same = self.egg is not None and hash_in(version) == self.egg.content_hash
        return NodeResult(
            node=self.node,
            version=version,
            uploaded=uploaded,
            same_code=same,
            spiders=spiders,
            before=self.versions,
        )

    def _upload(self, version: str, egg: Egg) -> tuple[str, ...]:
        """Upload the egg and return its spiders; it is removed again if the node refuses it."""
        self.report_step(self.node, Step.UPLOADING)
        try:
            self._add_version(version, egg)
            return self._check(version)
        except ApiRefused as error:
            raise BrokenEggError(
                self.node, explain_refusal(error, egg), after=self._remove(version)
            ) from error

    def _add_version(self, version: str, egg: Egg) -> None:
        """Upload the egg, and keep in `_left` whether the node has or may have it."""
        self._unsure = False
        try:
            self._send(api.addversion(self.project, version, egg.data))
        except NodeError as error:
            if isinstance(error, ApiRefused) or not self._unsure:
                raise
            # The upload may have succeeded although the reply was lost.
            self._left = version
            if version in self.versions:  # which of the two it has cannot be seen
                raise
            if version not in self._send(api.listversions(self.project)):
                self._left = None
                raise
        self._left = version

    def _check(self, version: str) -> tuple[str, ...]:
        """Return the spiders of a version, which proves that the node can import it."""
        self.report_step(self.node, Step.CHECKING)
        spiders = self._send(api.listspiders(self.project, version))
        if self.request.spider is not None and self.request.spider not in spiders:
            raise NothingMatched(
                f"Version {version} of the project {self.project} has no spider "
                f"{self.request.spider!r}. It has: {', '.join(spiders) or 'none'}."
            )
        return spiders

    def _remove(self, version: str) -> str:
        """Delete a version; return what came of it, as a sentence after a space."""
        try:
            self._send(api.delversion(self.project, version))
        except ApiRefused:
            self._left = None
            return ""  # the node has not kept it
        except NodeError as error:
            self._left = version
            return (
                f" The version {version} is still there and may be the node's default now: {error}"
            )
        self._left = None
        return f" The version {version} was removed from it again."

    def _send(self, call: Call[T], at_most: float = float("inf"), *, tried: int = 0) -> T:
        """Send a call, with retries after transient failures, `tried` of which were made before."""
        while True:
            try:
                left = self._deadline - time.monotonic()
                timeout = max(min(CHECK_TIMEOUT, self.request.timeout), left)
                return self.transport.send(self.node, call, timeout=min(timeout, at_most))
            except NodeError as error:
                self._unsure = self._unsure or error.maybe_accepted
                if not isinstance(error, _PASSING) or not self._pause(tried):
                    raise
            tried += 1

    def _pause(self, tried: int) -> bool:
        """Wait until the next retry; return False if there is none left."""
        pause = BACKOFF * 2**tried * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not cryptography
        if tried >= self.request.retries or time.monotonic() + pause > self._deadline:
            return False
        self.report_step(self.node, Step.RETRYING)
        time.sleep(pause)
        return True
