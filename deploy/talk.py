"""The talk with one node about one version; rule: what we uploaded and the node cannot import is deleted again.

Scrapyd keeps an egg that it refused, and may make it the project's default.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from scrapyd_dist import api
from scrapyd_dist.errors import ApiRefused, DistError, NodeError, NothingMatched

from .versions import hash_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapyd_dist.call import Call
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

    from .egg import Egg

T = TypeVar("T")

#: seconds for the first question, which all nodes wait for together
ASK_TIMEOUT = 15.0
#: seconds to find out what became of an upload, when the node's time is over
CHECK_TIMEOUT = 10.0


class Step(str, Enum):
    """What happens on a node now."""

    ASKING = "asking"  #: which versions it has
    UPLOADING = "uploading"
    CHECKING = "checking"  #: which spiders the version has
    PRESENT = "present"  #: done: it had the version already
    UPLOADED = "uploaded"  #: done: it has the version now
    FAILED = "failed"


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
    _error: DistError | None = None
    _deadline: float = field(init=False)

    def ask(self) -> None:
        """Learn the versions; an error waits for the result."""
        self._deadline = time.monotonic() + self.line.timeout
        self.line.tell(self.node, Step.ASKING)
        try:
            self.versions = self._send(api.listversions(self.project), at_most=ASK_TIMEOUT)
        except NodeError as error:
            self._error = error

    def bring(self, version: str, data: bytes) -> NodeResult:
        """Upload the egg under this name if the node lacks it."""
        if version in self.versions:
            return self._result(lambda: self._check(version), version=version, uploaded=False)
        return self._result(lambda: self._upload(version, data), version=version, uploaded=True)

    def take_what_is_there(self) -> NodeResult:
        """The newest version with our content, else the node's default."""
        ours = [name for name in self.versions if self.egg and hash_in(name) == self.egg.content_hash]
        version = max(ours) if ours else (self.versions[-1] if self.versions else "")
        return self._result(lambda: self._check(version), version=version, uploaded=False)

    def _result(self, work: Callable[[], tuple[str, ...]], *, version: str, uploaded: bool) -> NodeResult:
        try:
            if self._error is not None:
                raise self._error
            spiders = work()
        except DistError as error:
            self.line.tell(self.node, Step.FAILED)
            reason = error.reason if isinstance(error, BrokenEggError) else str(error)
            return NodeResult(node=self.node, error=error, reason=reason)
        self.line.tell(self.node, Step.UPLOADED if uploaded else Step.PRESENT)
        same = self.egg is not None and hash_in(version) == self.egg.content_hash
        return NodeResult(node=self.node, version=version, uploaded=uploaded, same_code=same, spiders=spiders)

    def _upload(self, version: str, data: bytes) -> tuple[str, ...]:
        self.line.tell(self.node, Step.UPLOADING)
        try:
            try:
                self._send(api.addversion(self.project, version, data))
            except NodeError as error:
                # Without an answer it may have arrived all the same.
                if not error.maybe_accepted or version not in self._send(api.listversions(self.project)):
                    raise
            return self._check(version)
        except ApiRefused as error:
            raise BrokenEggError(self.node, _why(error), after=self._remove(version)) from error

    def _check(self, version: str) -> tuple[str, ...]:
        """The spiders of a version: the proof that the node can import it."""
        if not version:
            raise NothingMatched(
                f"There is no version of the project {self.project} on the node, and uploading is switched off "
                '(DISTRIBUTED_DEPLOY = "never"). Deploy it first: sdist deploy-all.'
            )
        self.line.tell(self.node, Step.CHECKING)
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

    def _send(self, call: Call[T], *, at_most: float = float("inf")) -> T:
        left = max(min(CHECK_TIMEOUT, self.line.timeout), self._deadline - time.monotonic())
        return self.line.transport.send(self.node, call, timeout=min(left, at_most))


def _why(error: ApiRefused) -> str:
    """Scrapyd's words for an egg that it cannot import, with what to do about it."""
    words = error.said
    if "No module named 'pkg_resources'" in words:
        return (
            f"its Scrapyd cannot read any egg ({words}): the setuptools on the node is too new. "
            "Run pip install 'setuptools<81' in the node's environment and restart its Scrapyd."
        )
    if "No module named" in words:
        return f"the project cannot be imported there ({words}). Install what is missing on the node, and deploy again."
    return f"the project cannot be imported there ({words}). Correct the project, and deploy again."
