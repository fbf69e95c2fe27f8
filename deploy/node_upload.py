"""The deployment to one node: its calls, their retries, and what it means if the node refuses the egg."""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from scrapyd_dist.errors import (
    ApiRefused,
    ConnectionLost,
    ConnectionRefused,
    ConnectTimeout,
    CutReply,
    DistError,
    NodeError,
    NothingMatched,
    ServerFailed,
)
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import current, hash_in, made_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call
    from scrapyd_dist.transports import Sender

    from .egg import Egg


T = TypeVar("T")
#: timeout in seconds of the first call, whose results all nodes wait for
ASK_TIMEOUT = 15.0
#: seconds to check the result of an upload after the node's timeout
CHECK_TIMEOUT = 10.0
#: seconds before the first retry of a call; doubled for each further one
BACKOFF = 0.5
#: transient failures, which are retried; every call made here may be repeated
_PASSING = (ConnectionRefused, ConnectTimeout, ConnectionLost, CutReply, ServerFailed)


class Step(str, Enum):
    """The current step of a deployment to a node."""

    ASKING = "asking"  #: asking for its versions
    UPLOADING = "uploading"
    CHECKING = "checking"  #: asking for the version's spiders
    RETRYING = "retrying"  #: waiting for the retry of a failed call
    PRESENT = "present"  #: done: the node had the version already
    UPLOADED = "uploaded"  #: done: the version was uploaded
    FAILED = "failed"
    UNDONE = "undone"  #: done: the version was deleted again because another node failed


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """The result of a deployment to a node."""

    node: Node
    #: the version that jobs on this node are pinned to; None if it failed
    version: str | None = None
    uploaded: bool = False
    #: whether the version has the egg's content; only mode "never" accepts others
    same_code: bool = False
    spiders: tuple[str, ...] = ()
    #: the node's default version; None if unknown
    default: str | None = None
    #: the node's versions before the deployment, its default last
    before: tuple[str, ...] = ()
    #: whether the version would be uploaded (dry run)
    planned: bool = False
    #: whether the upload was undone because another node failed
    undone: bool = False
    #: why the upload could not be undone
    stays: str = ""
    error: DistError | None = None
    #: why it failed, without the node's name, for grouping
    reason: str = ""


class BrokenEggError(DistError):
    """The node cannot import the egg."""

    def __init__(self, node: Node, reason: str, *, after: str = "") -> None:
        self.reason = reason
        super().__init__(f"{node}: {reason}{after}")


@dataclass(frozen=True, kw_only=True)
class RollOutRequest:
    """Options of a deployment."""

    #: name of the commit, for the name of a new version
    label: str = ""
    #: whether it is for a crawl, so that it must not become a node's default beside a deployment
    for_crawl: bool = False
    #: node name -> version name there, instead of one chosen by time and content
    given: Mapping[str, str] = field(default_factory=dict)
    #: whether a node that has the given name is skipped, instead of uploading again
    only_missing: bool = False
    #: whether all uploads are undone if one node fails, except those that a job may run
    atomic: bool = False
    #: maximum retries of a call after a transient failure
    retries: int = 0
    #: whether nothing is uploaded; results have `planned` instead
    dry_run: bool = False


def why(error: ApiRefused, egg: Egg) -> str:
    """Return Scrapyd's message about an egg that it cannot import, with a remedy."""
    words = error.said
    if "No module named 'pkg_resources'" in words:
        return (
            f"its Scrapyd cannot read any egg ({words}): the setuptools on the node is too new. "
            "Run pip install 'setuptools<81' in the node's environment and restart its Scrapyd."
        )
    missing = re.search(r"No module named '(\w+)", words)
    if missing and f"{missing[1]}.py" in egg.left_out:
        return (
            f"the project cannot be imported there ({words}). {missing[1]}.py lies beside the packages, and only "
            "packages travel: move it into one, and deploy again."
        )
    if "No module named" in words:
        return f"the project cannot be imported there ({words}). Install what is missing on the node, and deploy again."
    return f"the project cannot be imported there ({words}). Correct the project, and deploy again."


@dataclass(kw_only=True)
class NodeUpload:
    """The deployment to one node. Not thread-safe."""

    node: Node
    project: str
    egg: Egg | None
    spider: str | None
    wish: RollOutRequest
    #: seconds for all calls
    timeout: float
    #: called with each step
    tell: Callable[[Node, Step], object]
    transport: Sender
    #: the node's versions, its default last; set by `ask`
    versions: tuple[str, ...] = ()
    #: the current step
    step: Step = Step.ASKING
    #: ids of the jobs that ran or waited before the upload; recorded if it may have to be undone
    _jobs_before: frozenset[str] = frozenset()
    _error: DistError | None = None
    _deadline: float = field(init=False)

    @property
    def answered(self) -> bool:
        """Whether the node's versions are known."""
        return self._error is None

    def ask(self, *, again: bool = False) -> None:
        """Ask for the versions. An error is kept for the result.

        The first time without a retry, because all nodes wait for it; with `again` only after a failure that may have
        passed, while other nodes continue.
        """
        if not again:
            self._deadline = time.monotonic() + self.timeout
            self._tell(Step.ASKING)
        elif not isinstance(self._error, _PASSING) or not self._pause(0):
            return
        tried = 1 if again else self.wish.retries
        try:
            self.versions = self._send(api.listversions(self.project), ASK_TIMEOUT, tried=tried)
            if self.wish.atomic and self.versions:
                jobs = self._send(api.listjobs(self.project), ASK_TIMEOUT, tried=tried)
                self._jobs_before = frozenset(job.id for job in jobs.running + jobs.pending)
            self._error = None
        except NodeError as error:
            self._error = error

    def _tell(self, step: Step) -> None:
        self.step = step
        self.tell(self.node, step)

    def lacks(self, version: str) -> NodeResult:
        """Return whether `bring` would upload, without doing it."""
        self.ask(again=True)
        if self._error is not None:
            return NodeResult(node=self.node, error=self._error, reason=str(self._error))
        planned = version not in self.versions
        return NodeResult(node=self.node, version=version, planned=planned, before=self.versions)

    def bring(self, version: str, egg: Egg) -> NodeResult:
        """Upload the egg under this name if the node lacks it, or in any case if the name was given for it."""
        self.ask(again=True)
        again = self.node.name in self.wish.given and not self.wish.only_missing
        if version in self.versions and not again:
            result = self._result(lambda: self._check(version), version=version, uploaded=False)
            return replace(result, default=self.versions[-1])
        result = self._result(lambda: self._upload(version, egg), version=version, uploaded=True)
        if result.error is None:
            with suppress(NodeError):
                names = self._send(api.listversions(self.project), ASK_TIMEOUT)
                return replace(result, default=names[-1] if names else None)
        return result

    def undo(self, result: NodeResult) -> NodeResult:
        """Delete the uploaded version, unless a job may run it."""
        if result.error is not None or not result.uploaded or result.version is None:
            return result
        try:
            stays = self._why_it_stays(result.version)
            if stays:
                return replace(result, stays=stays)
            self._send(api.delversion(self.project, result.version))
        except NodeError as error:
            return replace(result, stays=f"the version {result.version} could not be removed again: {error}")
        self._tell(Step.UNDONE)
        return replace(result, version=None, undone=True)

    def _why_it_stays(self, version: str) -> str:
        if version in self.versions:
            return f"it replaced a version of the same name, {version}, which Scrapyd does not give back"
        jobs = self._send(api.listjobs(self.project))
        # Scrapyd names the version of pending jobs only; a new running job may use this version.
        using = {job.id for job in jobs.pending if job.version == version}
        using |= {job.id for job in jobs.running if job.id not in self._jobs_before}
        return f"the version {version} is in use there by {', '.join(sorted(using))}" if using else ""

    def take_what_is_there(self, wanted: str | None = None) -> NodeResult:
        """Use the wanted version, else the newest one with the egg's content, else the newest deployment."""
        self.ask(again=True)
        ours = [name for name in self.versions if self.egg and hash_in(name) == self.egg.content_hash]
        newest = max(ours, key=lambda name: made_at(name) or 0.0) if ours else current(self.versions)
        version = newest if wanted is None else wanted
        return self._result(lambda: self._check_there(version), version=version or "", uploaded=False)

    def _check_there(self, version: str | None) -> tuple[str, ...]:
        if version is not None and version in self.versions:
            return self._check(version)
        what, advice = "version", "Deploy it first: sdist deploy-all."
        if version is not None:
            what, advice = f"version {version}", "Deploy it first, or name another one: sdist versions."
        raise NothingMatched(
            f"There is no {what} of the project {self.project} on the node, and uploading is switched off "
            f'(DISTRIBUTED_DEPLOY = "never"). {advice}'
        )

    def _result(self, work: Callable[[], tuple[str, ...]], *, version: str, uploaded: bool) -> NodeResult:
        try:
            if self._error is not None:
                raise self._error
            spiders = work()
        except DistError as error:
            self._tell(Step.FAILED)
            reason = error.reason if isinstance(error, BrokenEggError) else str(error)
            return NodeResult(node=self.node, before=self.versions, error=error, reason=reason)
        self._tell(Step.UPLOADED if uploaded else Step.PRESENT)
        same = self.egg is not None and hash_in(version) == self.egg.content_hash
        return NodeResult(
            node=self.node, version=version, uploaded=uploaded, same_code=same, spiders=spiders, before=self.versions
        )

    def _upload(self, version: str, egg: Egg) -> tuple[str, ...]:
        self._tell(Step.UPLOADING)
        try:
            try:
                self._send(api.addversion(self.project, version, egg.data))
            except NodeError as error:
                # The upload may have succeeded although the reply was lost.
                if not error.maybe_accepted or version not in self._send(api.listversions(self.project)):
                    raise
            return self._check(version)
        except ApiRefused as error:
            raise BrokenEggError(self.node, why(error, egg), after=self._remove(version)) from error

    def _check(self, version: str) -> tuple[str, ...]:
        """Return the spiders of a version, which proves that the node can import it."""
        self._tell(Step.CHECKING)
        spiders = self._send(api.listspiders(self.project, version))
        if self.spider is not None and self.spider not in spiders:
            raise NothingMatched(
                f"Version {version} of the project {self.project} has no spider {self.spider!r}. "
                f"It has: {', '.join(spiders) or 'none'}."
            )
        return spiders

    def _remove(self, version: str) -> str:
        try:
            self._send(api.delversion(self.project, version))
        except ApiRefused:
            return ""  # the node has not kept it
        except NodeError as error:
            return f" The version {version} is still there and may be the node's default now: {error}"
        return f" The version {version} was removed from it again."

    def _send(self, call: Call[T], at_most: float = float("inf"), *, tried: int = 0) -> T:
        """Send a call, with retries after transient failures; `tried` is the number of retries made already."""
        while True:
            try:
                left = max(min(CHECK_TIMEOUT, self.timeout), self._deadline - time.monotonic())
                return self.transport.send(self.node, call, timeout=min(left, at_most))
            except _PASSING:
                if not self._pause(tried):
                    raise
            tried += 1

    def _pause(self, tried: int) -> bool:
        """Wait until the next retry; returns False if there is none left."""
        pause = BACKOFF * 2**tried * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not cryptography
        if tried >= self.wish.retries or time.monotonic() + pause > self._deadline:
            return False
        self._tell(Step.RETRYING)
        time.sleep(pause)
        return True
