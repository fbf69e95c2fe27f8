"""Every exception of scrapyd-dist, under one root; each knows the exit code it ends a command with."""

from __future__ import annotations

from typing import ClassVar


class DistError(Exception):
    """Something went wrong that a user can read about: the message is one whole paragraph."""

    #: what the process ends with when nothing better is known (see docs/exit-codes)
    exit_code: ClassVar[int] = 1


class ConfigError(DistError):
    """Wrong usage or configuration: nothing was started."""

    exit_code = 2


class NothingMatched(DistError):
    """What was named does not exist: an unknown spider, crawl, job or version."""

    exit_code = 4


class NoNodeReachable(DistError):
    """Not one node of the fleet answered."""

    exit_code = 5


class SessionExpired(DistError):
    """A callback says that the site has forgotten the login: the worker logs in again, and repeats the request."""


class StoreError(DistError):
    """The store refused or failed."""


class StoreBarred(StoreError):
    """The store does not let us in: user name, password or certificate."""

    exit_code = 6


class NoPlaceForStore(StoreError):
    """Where the store should be there can be none."""

    exit_code = 2


class NameTaken(StoreError):
    """There is a crawl of that name already."""


class ForeignRow(StoreError):
    """A row of the store was not written by this project, or is not what such a row can be: nothing of it is used."""

    exit_code = 2


class StepRefused(StoreError):
    """A state change that the table of steps does not allow."""


class NodeError(DistError):
    """A call to one node failed.

    `maybe_accepted` is the question that decides what may happen next: when it is False the node
    certainly did not take the job, and sending it again, anywhere, is safe. When it is True the
    node has to be asked for the job id first.
    """

    maybe_accepted: ClassVar[bool] = True
    #: what happened in a few words, for a table of nodes
    short: ClassVar[str] = "the call failed"
    #: what to do next; one or two sentences
    hint: ClassVar[str] = ""

    @classmethod
    def at(cls, where: str, detail: str = "", *, hint: str = "") -> NodeError:
        """The error with its whole paragraph: where, what, why, what to do next.

        Args:
            where: the node as `str(node)` gives it; never with a password.
            detail: why, in a few words; put behind a colon.
            hint: what to do next, where that is not what the class says.
        """
        what = f"{cls.short}: {detail}" if detail else cls.short
        return cls(f"{where}: {what.rstrip('.')}. {hint or cls.hint}".rstrip())


class ConnectionRefused(NodeError):
    """Nobody listens there, or no way leads there."""

    maybe_accepted = False
    short = "connection refused"
    hint = "Is Scrapyd running there, on that port? Its bind_address is 127.0.0.1 unless scrapyd.conf says otherwise."


class HostNotFound(NodeError):
    """The name has no address."""

    maybe_accepted = False
    short = "host not found"
    hint = "Check the spelling of the url, and the name service of this machine."


class ConnectTimeout(NodeError):
    """No connection within the time-out."""

    maybe_accepted = False
    short = "no connection within the time-out"
    hint = "The machine may be down or a firewall may drop the packets."


class NoTls(ConnectTimeout):
    """The connection came about, but no TLS handshake within the time-out."""

    short = "connected, but no TLS within the time-out"
    hint = "Does the url have to begin with http://, or does the server hang?"


class TlsRefused(NodeError):
    """The certificate or the TLS handshake was not accepted."""

    maybe_accepted = False
    exit_code = 6
    short = "TLS refused"
    hint = (
        "If the certificate is your own, name its CA file with `ca = FILE` in the target "
        "(or `verify = no`, which trusts everybody); if the server speaks no TLS, the url begins with http://."
    )


class NoReply(NodeError):
    """Connected and sent, but no whole reply within the time-out."""

    short = "no whole reply within the time-out"
    hint = "The node may be busy or hang; it may have taken the request all the same."


class ConnectionLost(NodeError):
    """The connection broke after the request left."""

    short = "connection lost before the reply"
    hint = "The node may have been stopped or restarted; it may have taken the request all the same."


class CutReply(NodeError):
    """The reply ended before its announced length."""

    short = "the reply was cut off"
    hint = "The node, or a proxy before it, closed the connection too early."


class NotJson(NodeError):
    """The reply is not Scrapyd's: a proxy's page, or another server altogether."""

    short = "the reply is not Scrapyd's"
    hint = "Does the url lead to Scrapyd itself, and not to a proxy's page or another server?"


class ServerFailed(NodeError):
    """HTTP 5xx."""

    short = "the server failed"
    hint = "Its own log says why; behind a proxy it may mean that Scrapyd is down."


class CallRefused(NodeError):
    """HTTP 4xx that is none of the others, such as 413 from a proxy with a limit on bodies."""

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
    """HTTP 200 with `status: error`: Scrapyd understood and said no.

    Attributes:
        said: Scrapyd's own words, in one line; of a traceback only what it begins and ends with.
    """

    maybe_accepted = False
    short = "Scrapyd refused"

    said: str = ""
