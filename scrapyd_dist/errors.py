"""Defines the exceptions of scrapyd-dist, with the exit code of the command that each one ends."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import FrameSummary, extract_tb
from typing import ClassVar

from scrapyd_dist.escapes import harmless

# Exit codes without an error.
PARTIAL = 3  #: not all was found
TIME_UP = 124  #: the time was up
INTERRUPTED = 130  #: Ctrl-C or a signal ended it

#: characters of an exception's message that are shown, at most
_LONGEST = 2_000


def fault_of(error: BaseException) -> str:
    """Return what was raised by a project's code, and where in it."""
    frames: list[FrameSummary] = []
    own_frames: list[FrameSummary] = []
    for frame in extract_tb(error.__traceback__):
        if frame.filename.startswith("<frozen importlib"):
            continue
        frames.append(frame)
        if "site-packages" not in frame.filename:
            own_frames.append(frame)
    place = ""
    if frames:
        last = (own_frames or frames)[-1]
        place = f" ({last.filename}, line {last.lineno})"
    message = " ".join(str(error).split())[:_LONGEST]
    fault = f"{type(error).__name__}: {message}{place}"
    # Halves of surrogate pairs can be neither stored nor shown.
    return fault.encode("utf-8", "replace").decode()


class DistError(Exception):
    """The base of all errors; the message is one paragraph for users."""

    #: the exit code of the process (see docs/reference/commands/README.md)
    exit_code: ClassVar[int] = 1


class ConfigError(DistError):
    """Wrong usage or configuration: nothing was started."""

    exit_code = 2


class CrawlFailed(DistError):
    """The crawl did not begin, or did not come to its end; the code is that of the reason."""

    def __init__(self, message: str, code: int, *, hook_notified: bool = False) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # of this one, not of the class
        self.hook_notified = hook_notified  #: the producer has told DISTRIBUTED_ON_FINISH


class NothingMatched(DistError):
    """An unknown spider, crawl, job or version was named."""

    exit_code = 4


class NoCrawl(NothingMatched):
    """The store has no crawl of that name."""


class NoJob(NothingMatched):
    """Neither the nodes that answered nor the store have a job of that name.

    asked: nodes that count; unreached: why those did not answer that did not.
    """

    def __init__(self, message: str, *, asked: int, unreached: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.asked = asked
        self.unreached = unreached


class NoBatch(NothingMatched):
    """The store has no batch of that number."""


class NoNodeReachable(DistError):
    """No node of the fleet answered."""

    exit_code = 5


class StillRuns(DistError):
    """What was waited for goes on beyond the time that it was given."""

    exit_code = TIME_UP


class SessionExpired(DistError):
    """The site's session has expired: raise it in a callback.

    The worker logs in again and repeats the request.
    """


class StoreError(DistError):
    """A call to the store failed."""


class StoreAway(StoreError):
    """The store cannot keep anything now, and may again in a moment; nothing was changed."""


class StoreEmptied(StoreError):
    """The store has lost a crawl that this process works on or watches."""


class StoreBarred(StoreError):
    """The store refuses the user name, the password or the certificate."""

    exit_code = 6


class NoPlaceForStore(StoreError):
    """The configured place cannot hold a store."""

    exit_code = 2


class ContentRefused(StoreError):
    """The store cannot keep what it was given, however often it is tried; nothing was changed."""


class NameTaken(StoreError):
    """A crawl of that name exists already."""


class ForeignRow(StoreError):
    """A row of the store is invalid or was not signed by this project, so it is not used."""

    exit_code = 2


class StepRefused(StoreError):
    """A state change was asked for that is not allowed."""


def as_store_error(error: BaseException) -> BaseException:
    """Return the error that a process which works on a crawl is to raise.

    That its crawl or a batch is not there means that its store was emptied; other errors stay.
    """
    if not isinstance(error, (NoCrawl, NoBatch)):
        return error
    return StoreEmptied(
        "The store has lost this crawl with all that was in it"
        f" ({str(error).rstrip('.')}), so nothing can go on. Items that have come home are in its"
        " folder parts/"
    )


class NodeError(DistError):
    """A call to a node failed.

    If `maybe_accepted` is False, the node certainly did not accept the call, and it can be sent
    again to any node. If it is True, the node must first be asked for the job id.
    """

    maybe_accepted: ClassVar[bool] = True
    short: ClassVar[str] = "the call failed"  #: what happened, in a few words for a table of nodes
    hint: ClassVar[str] = ""  #: what to do next, one or two sentences

    @classmethod
    def at(cls, where: str, detail: str = "", *, hint: str = "") -> NodeError:
        """Return an error whose message says where, what, why, and what to do.

        `where` is `str(node)`, which has no password.
        """
        problem = cls.short
        if detail:
            problem += f": {harmless(detail)}"
        return cls(f"{where}: {problem.rstrip('.')}. {hint or cls.hint}".rstrip())


class ConnectionRefused(NodeError):
    """The port is closed, or the host is unreachable."""

    maybe_accepted = False
    short = "connection refused"
    hint = (
        "Is Scrapyd running there, on that port? Its bind_address is 127.0.0.1 unless scrapyd.conf"
        " says otherwise."
    )


class HostNotFound(NodeError):
    """The name service knows no address of the host."""

    maybe_accepted = False
    short = "host not found"
    hint = "Check the spelling of the url, and the name service of this machine."


class ConnectTimeout(NodeError):
    """The connection was not made in time."""

    maybe_accepted = False
    short = "no connection within the time-out"
    hint = "The machine may be down or a firewall may drop the packets."


class NoTls(ConnectTimeout):
    """The TLS handshake did not end in time."""

    short = "connected, but no TLS within the time-out"
    hint = "Does the url have to begin with http://, or does the server hang?"


class TlsRefused(NodeError):
    """The TLS handshake failed, mostly because of the certificate."""

    maybe_accepted = False
    exit_code = 6
    short = "TLS refused"
    hint = (
        "If the certificate is your own, name its CA file with `ca = FILE` in the target (or"
        " `verify = no`, which trusts everybody); if the server speaks no TLS, the url begins with"
        " http://."
    )


class NoReply(NodeError):
    """The request was sent, but no complete reply came within the timeout."""

    short = "no whole reply within the time-out"
    hint = "The node may be busy or hang; it may have taken the request all the same."


class ConnectionLost(NodeError):
    """The connection was closed before the reply was whole."""

    short = "connection lost before the reply"
    hint = (
        "The node may have been stopped or restarted; it may have taken the request all the same."
    )


class CutReply(NodeError):
    """The reply is shorter than announced."""

    short = "the reply was cut off"
    hint = "The node, or a proxy before it, closed the connection too early."


class NotJson(NodeError):
    """The reply is not Scrapyd's, but that of a proxy or another server."""

    short = "the reply is not Scrapyd's"
    hint = "Does the url lead to Scrapyd itself, and not to a proxy's page or another server?"


class ServerFailed(NodeError):
    """The reply is HTTP 5xx."""

    short = "the server failed"
    hint = "Its own log says why; behind a proxy it may mean that Scrapyd is down."


class CallRefused(NodeError):
    """The reply is another HTTP 4xx, such as 413 from a proxy with a limit on bodies."""

    maybe_accepted = False
    short = "the request was refused"
    hint = "Scrapyd itself never answers so: look at the configuration of the proxy before it."


class AuthRefused(NodeError):
    """The reply is HTTP 401 or 403: the user name or the password is wrong or missing."""

    maybe_accepted = False
    exit_code = 6
    short = "user name or password refused"
    hint = (
        "Set `username` and `password` of the target in scrapy.cfg, or an entry for the host in"
        " ~/.netrc."
    )


class NotFound(NodeError):
    """The reply is HTTP 404: there is no such page on this server."""

    maybe_accepted = False
    short = "page not found"
    hint = "Is the url the base of a Scrapyd of 1.5 or later, path prefix included?"


class ApiRefused(NodeError):
    """The reply is HTTP 200 with `status: error`: Scrapyd refused the call."""

    maybe_accepted = False
    short = "Scrapyd refused"
    scrapyd_message: str = (
        ""  #: Scrapyd's message in one line; of a traceback only the first and last line
    )
