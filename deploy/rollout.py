"""The deployment of one egg to many nodes at the same time: calls, retries, and what follows from a refusal."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from scrapyd_dist.nodes import Node, names_by
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
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
from .egg_refusal import why
from .kept_eggs import find_egg, save_egg

T = TypeVar("T")
#: seconds to check the result of an upload after the node's timeout
CHECK_TIMEOUT = 10.0
#: seconds before the first retry of a call; doubled for each further one
BACKOFF = 0.5
#: transient failures, which are retried; every call made here may be repeated
_PASSING = (ConnectionRefused, ConnectTimeout, ConnectionLost, CutReply, ServerFailed)


class Step(str, Enum):
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
    spider: str | None = None  #: the version must have it
    upload: bool = (
        True  #: if not, the version with the egg's content is taken, else the newest deployment
    )
    timeout: float = 60.0  #: seconds for all calls to one node
    dirty: bool = False  #: whether there are uncommitted changes, for the name of a new version
    label: str = ""  #: name of the commit, for the name of a new version
    for_crawl: bool = (
        False  #: whether it is for a crawl, so that it must not become a node's default
    )
    #: node name -> version name there, instead of one chosen by time and content
    given: Mapping[str, str] = field(default_factory=dict)
    only_missing: bool = (
        False  #: whether a node that has the given name is skipped, instead of uploading again
    )
    atomic: bool = (
        False  #: whether all uploads are undone if one node fails, except those that a job may run
    )
    retries: int = 0  #: maximum retries of a call after a transient failure
    dry_run: bool = False  #: whether nothing is uploaded; results have `planned` instead


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    node: Node
    version: str | None = (
        None  #: the version that jobs on this node are pinned to; None if it failed
    )
    uploaded: bool = False
    same_code: bool = False  #: whether the version has the egg's content; others are accepted only without an upload
    spiders: tuple[str, ...] = ()
    default: str | None = None  #: the node's default version; None if unknown
    before: tuple[str, ...] = ()  #: the node's versions before the deployment, its default last
    planned: bool = False  #: whether the version would be uploaded (dry run)
    undone: bool = False  #: whether the upload was undone because another node failed
    stays: str = ""  #: why the upload could not be undone
    error: DistError | None = None

    @property
    def reason(self) -> str:
        """Why it failed, if possible without the node's name, for grouping."""
        return (
            self.error.reason if isinstance(self.error, BrokenEggError) else str(self.error or "")
        )


class RollOut:
    """The results of a deployment, in the order of the nodes."""

    def __init__(self, results: Iterable[NodeResult]) -> None:
        self.results = tuple(results)
        self.ready = tuple(
            result for result in self.results if result.error is None and not result.undone
        )
        self.failed = tuple(result for result in self.results if result.error is not None)
        versions = {result.version for result in self.results if result.version is not None}
        #: on all good nodes; None without a good node, or with different versions (only without an upload)
        self.version = versions.pop() if len(versions) == 1 else None

    @property
    def spider_lists(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """List of spiders -> names of the good nodes with that list; more than one entry is an error."""
        return names_by((tuple(sorted(result.spiders)), result.node) for result in self.ready)

    @property
    def failures(self) -> dict[str, tuple[str, ...]]:
        """Reason -> names of the nodes that failed for it."""
        return names_by((result.reason, result.node) for result in self.failed)


class BrokenEggError(DistError):
    """The node cannot import the egg."""

    def __init__(self, node: Node, reason: str, *, after: str = "") -> None:
        self.reason = reason
        super().__init__(f"{node}: {reason}{after}")


class RollOutInterrupted(KeyboardInterrupt):
    """Ctrl-C during the upload; nodes finish what they have begun."""

    def __init__(self, steps: Mapping[str, Step], version: str) -> None:
        super().__init__()
        self.steps = steps  #: node name -> its last step
        self.version = version  #: its name on nodes without a given one


def ensure(
    nodes: Sequence[Node],
    project: str,
    egg: Egg | None,
    wish: RollOutRequest = RollOutRequest(),
    *,
    state: Path | None = None,
    now: datetime | None = None,
    progress: Callable[[Node, Step], object] = lambda _node, _step: None,
    transport: Sender | None = None,
) -> RollOut:
    """Ensure that every node has the egg's code and can import it, each in its own thread, at most 64 at once.

    A node's own project name goes before `project`. Without an upload, no egg is needed, and any version is taken then.
    Uploaded eggs are kept in the folder `state`. The name of a new version has the time `now`. `progress` is called
    with each step, from several threads, but never concurrently. Ctrl-C during the upload raises RollOutInterrupted.
    """
    if not nodes:
        raise ConfigError(
            "There is no node to deploy to. Name one in a [deploy:NAME] section of scrapy.cfg."
        )
    if egg is None and wish.upload:
        raise ConfigError("Nothing to deploy: no egg was built.")
    lock, steps = threading.Lock(), {node.name: Step.ASKING for node in nodes}

    def tell(node: Node, step: Step) -> None:
        with lock:
            steps[node.name] = step
            progress(node, step)

    sender = transport or RequestsTransport()
    uploads = [
        NodeUpload(
            node=node,
            project=node.project or project,
            egg=egg,
            wish=wish,
            tell=tell,
            transport=sender,
        )
        for node in nodes
    ]
    with thread_pool(len(uploads)) as pool:
        list(pool.map(NodeUpload.ask, uploads))
        if egg is None or not wish.upload:
            return RollOut(
                pool.map(lambda one: one.take_what_is_there(wish.given.get(one.node.name)), uploads)
            )
        there, content = [one.versions for one in uploads if one.error is None], egg.content_hash
        saved = (
            find_egg(state, project, content) if state is not None and not wish.for_crawl else None
        )
        common = common_name(
            there, content, for_crawl=wish.for_crawl, kept=saved.version if saved else None
        )
        if common is None:
            moment = later_than(
                now or datetime.now(timezone.utc),
                [name for one in uploads for name in one.versions],
            )
            common = version_name(
                content, moment, for_crawl=wish.for_crawl, dirty=wish.dirty, label=wish.label
            )
        names = {one.node.name: wish.given.get(one.node.name, common) for one in uploads}
        try:
            result = RollOut(pool.map(lambda one: one.bring(names[one.node.name], egg), uploads))
            if wish.atomic and result.failed:
                result = RollOut(pool.map(NodeUpload.undo, uploads, result.results))
        except KeyboardInterrupt:
            if wish.dry_run:  # nothing was under way
                raise
            last = dict(steps)
            _keep(
                state,
                project,
                egg,
                [(node, names[node.name]) for node in nodes if last[node.name] in _SENT],
            )
            raise RollOutInterrupted(last, common) from None
    _keep(
        state,
        project,
        egg,
        [(one.node, one.version) for one in result.results if one.uploaded and one.version],
    )
    return result


def _keep(state: Path | None, project: str, egg: Egg, sent: Iterable[tuple[Node, str]]) -> None:
    """Keep the egg under each version, for the project itself and for each other name that it has on a node."""
    if state is not None:
        for name, version in {
            (name, version) for node, version in sent for name in (project, node.project or project)
        }:
            save_egg(state, name, version, egg.data)


def common_name(
    there: Sequence[Sequence[str]],
    content_hash: str,
    *,
    for_crawl: bool = False,
    kept: str | None = None,
) -> str | None:
    """Return the existing version name to use for a content on all nodes: the most common one; None for a new name.

    `there` are the versions of each node that answered. A crawl does not deploy: it uses a deployment's name only if
    every node has it. Otherwise only a deployment's name is used, and only if no other code was deployed after it; if
    no node has one, the name `kept` in the state folder.
    """
    names = Counter(name for node in there for name in node if hash_in(name) == content_hash)
    if for_crawl:
        usable = {name for name in names if is_crawls(name) or names[name] == len(there)}
    else:
        last = newest(name for node in there for name in node)
        if last is not None and hash_in(last) != content_hash:
            return None
        usable = {name for name in names if not is_crawls(name)} or ({kept} if kept else set())
    return max(usable, key=lambda name: (names[name], made_at(name) or 0.0, name), default=None)


@dataclass(kw_only=True)
class NodeUpload:
    """The deployment to one node. Not thread-safe."""

    node: Node
    project: str
    egg: Egg | None
    wish: RollOutRequest
    tell: Callable[[Node, Step], object]  #: called with each step
    transport: Sender
    versions: tuple[str, ...] = ()  #: the node's versions, its default last; set by `ask`
    #: ids of the jobs that ran or waited before the upload; recorded if it may have to be undone
    _jobs_before: frozenset[str] = frozenset()
    error: DistError | None = None  #: why the versions are not known
    _deadline: float = field(init=False)

    def ask(self, *, again: bool = False) -> None:
        """Ask for the versions. An error is kept for the result.

        The first time without a retry, because all nodes wait for it; with `again` only after a failure that may have
        passed, while other nodes continue.
        """
        if not again:
            self._deadline = time.monotonic() + self.wish.timeout
            self.tell(self.node, Step.ASKING)
        elif not isinstance(self.error, _PASSING) or not self._pause(0):
            return
        tried = 1 if again else self.wish.retries
        try:
            self.versions = self._send(api.listversions(self.project), api.TIMEOUT, tried=tried)
            if self.wish.atomic and self.versions:
                jobs = self._send(api.listjobs(self.project), api.TIMEOUT, tried=tried)
                self._jobs_before = frozenset(job.id for job in jobs.running + jobs.pending)
            self.error = None
        except NodeError as error:
            self.error = error

    def bring(self, version: str, egg: Egg) -> NodeResult:
        """Upload the egg under this name if the node lacks it, or in any case if the name was given for it.

        A dry run only asks whether the node lacks it.
        """
        self.ask(again=True)
        if self.wish.dry_run:
            planned, known = (
                version not in self.versions and self.error is None,
                None if self.error else version,
            )
            return NodeResult(
                node=self.node,
                version=known,
                planned=planned,
                before=self.versions,
                error=self.error,
            )
        again = self.node.name in self.wish.given and not self.wish.only_missing
        if version in self.versions and not again:
            result = self._result(lambda: self._check(version), version=version, uploaded=False)
            return replace(result, default=self.versions[-1])
        result = self._result(lambda: self._upload(version, egg), version=version, uploaded=True)
        if result.error is None:
            with suppress(NodeError):
                names = self._send(api.listversions(self.project), api.TIMEOUT)
                return replace(result, default=names[-1] if names else None)
        return result

    def undo(self, result: NodeResult) -> NodeResult:
        """Delete the uploaded version, unless a job may run it."""
        version = result.version
        if result.error is not None or not result.uploaded or version is None:
            return result
        if version in self.versions:
            stays = f"it replaced a version of the same name, {version}, which Scrapyd does not give back"
            return replace(result, stays=stays)
        try:
            jobs = self._send(api.listjobs(self.project))
            # Scrapyd names the version of pending jobs only; a new running job may use this version.
            using = {job.id for job in jobs.pending if job.version == version}
            using |= {job.id for job in jobs.running if job.id not in self._jobs_before}
            if using:
                stays = f"the version {version} is in use there by {', '.join(sorted(using))}"
                return replace(result, stays=stays)
            self._send(api.delversion(self.project, version))
        except NodeError as error:
            return replace(
                result, stays=f"the version {version} could not be removed again: {error}"
            )
        self.tell(self.node, Step.UNDONE)
        return replace(result, version=None, undone=True)

    def take_what_is_there(self, wanted: str | None = None) -> NodeResult:
        """Use the wanted version, else the newest one with the egg's content, else the newest deployment."""
        self.ask(again=True)
        ours = [
            name for name in self.versions if self.egg and hash_in(name) == self.egg.content_hash
        ]
        there = max(ours, key=lambda name: made_at(name) or 0.0) if ours else current(self.versions)
        version = there if wanted is None else wanted
        return self._result(
            lambda: self._check_there(version), version=version or "", uploaded=False
        )

    def _check_there(self, version: str | None) -> tuple[str, ...]:
        if version is not None and version in self.versions:
            return self._check(version)
        what, advice = "version", "Deploy it first: sdist deploy --all."
        if version is not None:
            what, advice = (
                f"version {version}",
                "Deploy it first, or name another one: sdist code versions.",
            )
        raise NothingMatched(
            f"There is no {what} of the project {self.project} on the node, and uploading is switched off "
            f'(DISTRIBUTED_DEPLOY = "never"). {advice}'
        )

    def _result(
        self, work: Callable[[], tuple[str, ...]], *, version: str, uploaded: bool
    ) -> NodeResult:
        try:
            if self.error is not None:
                raise self.error
            spiders = work()
        except DistError as error:
            self.tell(self.node, Step.FAILED)
            return NodeResult(node=self.node, before=self.versions, error=error)
        self.tell(self.node, Step.UPLOADED if uploaded else Step.PRESENT)
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
        self.tell(self.node, Step.UPLOADING)
        try:
            try:
                self._send(api.addversion(self.project, version, egg.data))
            except NodeError as error:
                # The upload may have succeeded although the reply was lost.
                if not error.maybe_accepted or version not in self._send(
                    api.listversions(self.project)
                ):
                    raise
            return self._check(version)
        except ApiRefused as error:
            raise BrokenEggError(self.node, why(error, egg), after=self._remove(version)) from error

    def _check(self, version: str) -> tuple[str, ...]:
        """Return the spiders of a version, which proves that the node can import it."""
        self.tell(self.node, Step.CHECKING)
        spiders = self._send(api.listspiders(self.project, version))
        if self.wish.spider is not None and self.wish.spider not in spiders:
            raise NothingMatched(
                f"Version {version} of the project {self.project} has no spider {self.wish.spider!r}. "
                f"It has: {', '.join(spiders) or 'none'}."
            )
        return spiders

    def _remove(self, version: str) -> str:
        try:
            self._send(api.delversion(self.project, version))
        except ApiRefused:
            return ""  # the node has not kept it
        except NodeError as error:
            return (
                f" The version {version} is still there and may be the node's default now: {error}"
            )
        return f" The version {version} was removed from it again."

    def _send(self, call: Call[T], at_most: float = float("inf"), *, tried: int = 0) -> T:
        """Send a call, with retries after transient failures; `tried` is the number of retries made already."""
        while True:
            try:
                left = max(min(CHECK_TIMEOUT, self.wish.timeout), self._deadline - time.monotonic())
                return self.transport.send(self.node, call, timeout=min(left, at_most))
            except _PASSING:
                if not self._pause(tried):
                    raise
            tried += 1

    def _pause(self, tried: int) -> bool:
        """Wait until the next retry; returns False if there is none left."""
        pause = BACKOFF * 2**tried * random.uniform(0.8, 1.2)
        if tried >= self.wish.retries or time.monotonic() + pause > self._deadline:
            return False
        self.tell(self.node, Step.RETRYING)
        time.sleep(pause)
        return True
