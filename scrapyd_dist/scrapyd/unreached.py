"""Why a node does not answer as a Scrapyd does, and what to do about it. Values and rules, no IO."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConnectionRefused, HostNotFound, NodeError, NotFound, NotJson, TlsRefused

if TYPE_CHECKING:
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.upkeep.checkup import Exam


def in_target(node: Node, line: str) -> str:
    """What to write into the node's section of scrapy.cfg."""
    return f"scrapy.cfg, [deploy:{node.name}]: {line}"


def host_of(url: str) -> str:
    """Scheme, host and port of a base address: where Scrapyd would be without a path prefix."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def why_not(exam: Exam, error: NodeError) -> tuple[str, str]:
    """What it is about, in a word or two, and the remedy."""
    found = _of_port(exam)
    if found is not None:
        return found
    if isinstance(error, TlsRefused):
        return "tls", _tls_remedy(exam.node, str(error))
    if error.exit_code == 6:
        line = "username = …, password = $SOME_VARIABLE; or an entry for the host in ~/.netrc"
        return "auth", in_target(exam.node, line)
    if isinstance(error, (NotFound, NotJson)):
        return "base path", _base_path(exam)
    return "reach", _reach_remedy(exam.node, error)


def _of_port(exam: Exam) -> tuple[str, str] | None:
    """Whether the url says http where the port speaks TLS, or the other way round."""
    scheme, rest = exam.node.url.split("://", 1)
    if scheme == "https" and exam.speaks_tls is False and exam.speaks_http:
        return "tls", in_target(exam.node, f"url = http://{rest}/ (this port speaks no TLS)")
    if scheme == "http" and exam.speaks_tls:
        return "tls", in_target(exam.node, f"url = https://{rest}/ (this port speaks TLS)")
    return None


def _base_path(exam: Exam) -> str:
    if exam.found_at:
        return in_target(exam.node, f"url = {exam.found_at}/ (Scrapyd answers there)")
    url = exam.node.url
    return f"Is that a Scrapyd? {url} has to be its base address, with the path that a proxy puts before it."


def _reach_remedy(node: Node, error: NodeError) -> str:
    if isinstance(error, ConnectionRefused):
        return "Start Scrapyd there; scrapyd.conf: bind_address = 0.0.0.0, if it listens on 127.0.0.1 only."
    if isinstance(error, HostNotFound):
        return in_target(node, "url = …, with a name that this machine can look up")
    return error.hint or "Look into its log."


def _tls_remedy(node: Node, text: str) -> str:
    if "expired" in text:
        return "Renew the certificate of the proxy before this Scrapyd."
    if "mismatch" in text or "doesn't match" in text:
        return in_target(node, "url = https://…, with a name that stands in the certificate")
    if node.ca is not None:
        return in_target(node, "ca = …, the file with the certificates that signed the server's own (this did not)")
    return in_target(node, "ca = FILE, with the CA certificate, if it is of your own making")
