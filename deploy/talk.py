"""The talk with one node about one version; rule: what we uploaded and the node cannot import is deleted again.

Scrapyd keeps an egg that it refused, and may make it the project's default.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

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

from .refusals import why

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call
    from scrapyd_dist.transports import Sender

    from .egg import Egg

T = TypeVar("T")


class _Send(Protocol):
    def __call__(self, call: Call[T], at_most: float, /) -> T: ...


#: seconds for the first question, which all nodes wait for together
ASK_TIMEOUT = 15.0
#: seconds to find out what became of an upload, when the node's time is over
CHECK_TIMEOUT = 10.0
#: seconds before the first repetition of a call; each further one waits twice as long
BACKOFF = 0.5

#: what may be over in a moment; all that is said here may be said twice
_PASSING = (ConnectionRefused, ConnectTimeout, ConnectionLost, CutReply, ServerFailed)


class Step(str, Enum):
    """What happens on a node now."""

    ASKING = "asking"  #: which versions it has
    UPLOADING = "uploading"
    CHECKING = "checking"  #: which spiders the version has
    RETRYING = "retrying"  #: it did not answer, and is asked again
    PRESENT = "present"  #: done: it had the version already
    UPLOADED = "uploaded"  #: done: it has the version now
    FAILED = "failed"
    UNDONE = "undone"  #: done: the version was deleted again, since another node failed


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """What came of one node."""

    node: Node
    #: what jobs on this node are pinned to; None = it failed
    version: str | None = None
    uploaded: bool = False
    #: whether that version has the content of our egg; only mode "never" takes others
    same_code: bool = False
    spiders: tuple[str, ...] = ()
    #: what a job runs that names no version; None = not known
    default: str | None = None
    #: what the node had when it was asked, its default last
    before: tuple[str, ...] = ()
    #: it lacks the version, and was only asked (a dry run)
    planned: bool = False
    #: it had the version for a moment: another node failed, and all or none were to have it
    undone: bool = False
    #: why it could not be undone
    stays: str = ""
    error: DistError | None = None
    #: why it failed, in words that are the same for every node that fails so
    reason: str = ""


class BrokenEggError(DistError):
    """The node cannot import the egg."""

    def __init__(self, node: Node, reason: str, *, after: str = "") -> None:
        self.reason = reason
        super().__init__(f"{node}: {reason}{after}")


@dataclass(frozen=True, kw_only=True)
class Line:
    """How nodes are talked to; the same for all of them."""

    #: seconds for everything that one node is asked
    timeout: float
    #: told each step
    tell: Callable[[Node, Step], object]
    transport: Sender
    #: how often a call is repeated whose failure may pass
    retries: int = 0
    #: whether an upload may have to be undone: then the jobs that ran before are remembered
    undoable: bool = False


@dataclass(kw_only=True)
class Talk:
    """One node, from the question what it has to the answer that it is ready; all in one thread."""

    node: Node
    project: str
    egg: Egg | None
    spider: str | None
    line: Line
    #: what the node has, its default last; after `ask`
    versions: tuple[str, ...] = ()
    #: what happened last
    step: Step = Step.ASKING
    #: ids of the jobs that ran or waited before the upload; where it may have to be undone
    _jobs_before: frozenset[str] = frozenset()
    _error: DistError | None = None
    _deadline: float = field(init=False)

    @property
    def answered(self) -> bool:
        """Whether it is known what the node has."""
        return self._error is None

    def ask(self) -> None:
        """Learn the versions; an error waits for the result. All nodes wait for this: nothing is repeated here."""
        self._deadline = time.monotonic() + self.line.timeout
        self._tell(Step.ASKING)
        self._ask(self._send_once)

    def _ask(self, send: _Send) -> None:
        try:
            self.versions = send(api.listversions(self.project), ASK_TIMEOUT)
            if self.line.undoable and self.versions:
                jobs = send(api.listjobs(self.project), ASK_TIMEOUT)
                self._jobs_before = frozenset(job.id for job in jobs.running + jobs.pending)
            self._error = None
        except NodeError as error:
            self._error = error

    def _ask_again(self) -> None:
        """What failed may be over by now; the others are on their way meanwhile."""
        if isinstance(self._error, _PASSING) and self._pause(0):
            self._ask(partial(self._send, tried=1))

    def _tell(self, step: Step) -> None:
        self.step = step
        self.line.tell(self.node, step)

    def lacks(self, version: str) -> NodeResult:
        """What `bring` would have to do; nothing is done."""
        self._ask_again()
        if self._error is not None:
            return NodeResult(node=self.node, error=self._error, reason=str(self._error))
        planned = version not in self.versions
        return NodeResult(node=self.node, version=version, planned=planned, before=self.versions)

    def bring(self, version: str, data: bytes, *, again: bool = False) -> NodeResult:
        """Upload the egg under this name if the node lacks it; `again` = also if it has one of this name."""
        self._ask_again()
        if version in self.versions and not again:
            result = self._result(lambda: self._check(version), version=version, uploaded=False)
            return replace(result, default=self.versions[-1])
        result = self._result(lambda: self._upload(version, data), version=version, uploaded=True)
        return replace(result, default=self._default()) if result.error is None else result

    def undo(self, result: NodeResult) -> NodeResult:
        """Delete what was just uploaded, unless a job may run it."""
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
        # Scrapyd tells the version of a waiting job only; a running one that is new may run ours.
        using = {job.id for job in jobs.pending if job.version == version}
        using |= {job.id for job in jobs.running if job.id not in self._jobs_before}
        return f"the version {version} is in use there by {', '.join(sorted(using))}" if using else ""

    def _default(self) -> str | None:
        with suppress(NodeError):
            names = self._send(api.listversions(self.project), ASK_TIMEOUT)
            return names[-1] if names else None
        return None

    def take_what_is_there(self, wanted: str | None = None) -> NodeResult:
        """The version that is wanted, or the newest with our content, else the newest deployment."""
        self._ask_again()
        if wanted is not None:
            return self._result(lambda: self._check_there(wanted), version=wanted, uploaded=False)
        ours = [name for name in self.versions if self.egg and hash_in(name) == self.egg.content_hash]
        version = max(ours, key=lambda name: made_at(name) or 0.0) if ours else current(self.versions) or ""
        return self._result(lambda: self._check(version), version=version, uploaded=False)

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

    def _upload(self, version: str, data: bytes) -> tuple[str, ...]:
        self._tell(Step.UPLOADING)
        try:
            try:
                self._send(api.addversion(self.project, version, data))
            except NodeError as error:
                # Without an answer it may have arrived all the same.
                if not error.maybe_accepted or version not in self._send(api.listversions(self.project)):
                    raise
            return self._check(version)
        except ApiRefused as error:
            raise BrokenEggError(self.node, why(error, self.egg), after=self._remove(version)) from error

    def _check_there(self, version: str) -> tuple[str, ...]:
        if version not in self.versions:
            raise NothingMatched(
                f"There is no version {version} of the project {self.project} on the node, and uploading is switched "
                'off (DISTRIBUTED_DEPLOY = "never"). Deploy it first, or name another one: sdist versions.'
            )
        return self._check(version)

    def _check(self, version: str) -> tuple[str, ...]:
        """The spiders of a version: the proof that the node can import it."""
        if not version:
            raise NothingMatched(
                f"There is no version of the project {self.project} on the node, and uploading is switched off "
                '(DISTRIBUTED_DEPLOY = "never"). Deploy it first: sdist deploy-all.'
            )
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
            return ""  # nothing was kept
        except NodeError as error:
            return f" The version {version} is still there and may be the node's default now: {error}"
        return f" The version {version} was removed from it again."

    def _send(self, call: Call[T], at_most: float = float("inf"), *, tried: int = 0) -> T:
        """Send it, and again when it fails in a way that may pass; `tried` repetitions were made already."""
        while True:
            try:
                return self._send_once(call, at_most)
            except _PASSING:
                if not self._pause(tried):
                    raise
            tried += 1

    def _pause(self, tried: int) -> bool:
        """Wait until the next repetition; False when there is none."""
        pause = BACKOFF * 2**tried * random.uniform(0.8, 1.2)  # noqa: S311 - to spread the calls, not to hide
        if tried >= self.line.retries or time.monotonic() + pause > self._deadline:
            return False
        self._tell(Step.RETRYING)
        time.sleep(pause)
        return True

    def _send_once(self, call: Call[T], at_most: float) -> T:
        left = max(min(CHECK_TIMEOUT, self.line.timeout), self._deadline - time.monotonic())
        return self.line.transport.send(self.node, call, timeout=min(left, at_most))
