"""The exceptions of scrapyd-dist, with the exit code of the command that each one ends."""

from __future__ import annotations

from traceback import extract_tb
from typing import ClassVar

from scrapyd_dist.escapes import harmless

#: exit codes without an error: not all was found, the time was up, Ctrl-C or a signal ended it
PARTIAL, TIME_UP, INTERRUPTED = 3, 124, 130


#: characters of an exception that is told
_LONGEST = 2_000


def fault_of(error: BaseException) -> str:
    """What was raised by a project's code, and where in it."""
    frames = [
        f for f in extract_tb(error.__traceback__) if not f.filename.startswith("<frozen importlib")
    ]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    said = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}{place}"
    return said.encode(
        "utf-8", "replace"
    ).decode()  # halves of surrogate pairs can be neither stored nor shown


class DistError(Exception):
    """The base of all errors; the message is one paragraph for users."""

    exit_code: ClassVar[int] = (
        1  #: the exit code of the process (see docs/reference/commands/README.md)
    )


class ConfigError(DistError):
    """Wrong usage or configuration: nothing was started."""

    exit_code = 2


class CrawlFailed(DistError):
    """The crawl did not begin, or did not come to its end; the code is that of the reason."""

    def __init__(self, message: str, code: int, *, told: bool = False) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # of this one, not of the class
        self.told = told  #: the producer has told DISTRIBUTED_ON_FINISH


class NothingMatched(DistError):
    """An unknown spider, crawl, job or version was named."""

    exit_code = 4


class NoCrawl(NothingMatched):
    """The store has no crawl of that name."""


class NoNodeReachable(DistError):
    """No node of the fleet answered."""

    exit_code = 5


class SessionExpired(DistError):
    """Raised in a callback if the site's session has expired: the worker logs in again and repeats the request."""


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
    """The store cannot keep what it was given, however often it is asked; nothing was changed."""


class NameTaken(StoreError):
    """A crawl of that name exists already."""


class ForeignRow(StoreError):
    """A row of the store is invalid or was not signed by this project, so it is not used."""

    exit_code = 2


class StepRefused(StoreError):
    """A state change that is not allowed."""


def as_store_error(error: BaseException) -> BaseException:
    """The error of a process that works on a crawl: that there is no such crawl means that its store was emptied."""
    if not isinstance(error, NoCrawl):
        return error
    return StoreEmptied(
        f"The store has lost this crawl with all that was in it ({str(error).rstrip('.')}), so nothing can go on. Items"
        " that have come home are in its folder parts/"
    )


class NodeError(DistError):
    """A call to a node failed.

    If `maybe_accepted` is False, the node certainly did not accept the call, and it can be sent again to any node.
    If it is True, the node must first be asked for the job id.
    """

    maybe_accepted: ClassVar[bool] = True
    short: ClassVar[str] = "the call failed"  #: what happened, in a few words for a table of nodes
    hint: ClassVar[str] = ""  #: what to do next, one or two sentences

    @classmethod
    def at(cls, where: str, detail: str = "", *, hint: str = "") -> NodeError:
        """Return an error whose message says where (`str(node)`, which has no password), what, why, and what to do."""
        what = f"{cls.short}: {harmless(detail)}" if detail else cls.short
        return cls(f"{where}: {what.rstrip('.')}. {hint or cls.hint}".rstrip())


class ConnectionRefused(NodeError):
    """The port is closed, or the host is unreachable."""

    maybe_accepted = False
    short = "connection refused"
    hint = "Is Scrapyd running there, on that port? Its bind_address is 127.0.0.1 unless scrapyd.conf says otherwise."


class HostNotFound(NodeError):
    maybe_accepted = False
    short = "host not found"
    hint = "Check the spelling of the url, and the name service of this machine."


class ConnectTimeout(NodeError):
    maybe_accepted = False
    short = "no connection within the time-out"
    hint = "The machine may be down or a firewall may drop the packets."


class NoTls(ConnectTimeout):
    short = "connected, but no TLS within the time-out"
    hint = "Does the url have to begin with http://, or does the server hang?"


class TlsRefused(NodeError):
    maybe_accepted = False
    exit_code = 6
    short = "TLS refused"
    hint = (
        "If the certificate is your own, name its CA file with `ca = FILE` in the target "
        "(or `verify = no`, which trusts everybody); if the server speaks no TLS, the url begins with http://."
    )


class NoReply(NodeError):
    """The request was sent, but no complete reply came within the timeout."""

    short = "no whole reply within the time-out"
    hint = "The node may be busy or hang; it may have taken the request all the same."


class ConnectionLost(NodeError):
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
    """HTTP 5xx."""

    short = "the server failed"
    hint = "Its own log says why; behind a proxy it may mean that Scrapyd is down."


class CallRefused(NodeError):
    """Any other HTTP 4xx, such as 413 from a proxy with a limit on bodies."""

    maybe_accepted = False
    short = "the request was refused"
    hint = "Scrapyd itself never answers so: look at the configuration of the proxy before it."


class AuthRefused(NodeError):
    """HTTP 401 or 403: wrong or missing user name and password."""

    maybe_accepted = False
    exit_code = 6
    short = "user name or password refused"
    hint = "Set `username` and `password` of the target in scrapy.cfg, or an entry for the host in ~/.netrc."


class NotFound(NodeError):
    """HTTP 404: no such page on this server."""

    maybe_accepted = False
    short = "page not found"
    hint = "Is the url the base of a Scrapyd of 1.5 or later, path prefix included?"


class ApiRefused(NodeError):
    """HTTP 200 with `status: error`: Scrapyd refused the call."""

    maybe_accepted = False
    short = "Scrapyd refused"
    said: str = ""  #: Scrapyd's message in one line; of a traceback only the first and last line
