"""Explains why a node does not answer like Scrapyd, and what to do about it."""

from scrapyd_dist.errors import (
    ConnectionRefused,
    HostNotFound,
    NodeError,
    NotFound,
    NotJson,
    TlsRefused,
)
from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.nodes import Node


def set_in_target(node: Node, line: str) -> str:
    """Return the remedy that sets a line in the node's section of scrapy.cfg."""
    return f"scrapy.cfg, [deploy:{node.name}]: {line}"


def process_ended(node: Node) -> NodeError:
    """Return the error of a local node whose process has ended, which need not be asked."""
    return ConnectionRefused.at(str(node), "its process has ended", hint=_start_local_again(node))


def _start_local_again(node: Node) -> str:
    return (
        "`sdist nodes up N` starts it again, N being how many local nodes shall run; `sdist"
        f" nodes remove {node.name}` forgets it."
    )


def explain_no_answer(exam: NodeDiagnosis, error: NodeError) -> tuple[str, str]:
    """Return why a node does not answer like Scrapyd, in a word or two, and the remedy."""
    node = exam.node
    scheme, rest = node.url.split("://", 1)
    if scheme == "https" and exam.speaks_tls is False and exam.speaks_http:
        return "tls", set_in_target(node, f"url = http://{rest}/ (this port speaks no TLS)")
    if scheme == "http" and exam.speaks_tls:
        return "tls", set_in_target(node, f"url = https://{rest}/ (this port speaks TLS)")
    if isinstance(error, TlsRefused):
        return "tls", _find_tls_remedy(node, str(error))
    if error.exit_code == 6:
        line = "username = …, password = $SOME_VARIABLE; or an entry for the host in ~/.netrc"
        return "auth", set_in_target(node, line)
    if isinstance(error, (NotFound, NotJson)):
        return "base path", _find_address_remedy(exam)
    return "reach", _find_reach_remedy(node, error)


def _find_address_remedy(exam: NodeDiagnosis) -> str:
    node = exam.node
    if exam.found_at:
        return set_in_target(node, f"url = {exam.found_at}/ (Scrapyd answers there)")
    return (
        f"Is that a Scrapyd? {node.url} has to be its base address, with the path that a proxy puts"
        " before it."
    )


def _find_reach_remedy(node: Node, error: NodeError) -> str:
    if isinstance(error, ConnectionRefused) and node.local:
        return _start_local_again(node)
    if isinstance(error, ConnectionRefused):
        return (
            "Start Scrapyd there; with SCRAPYD_BIND_ADDRESS=0.0.0.0, beside its password, if it"
            " listens on 127.0.0.1 only."
        )
    if isinstance(error, HostNotFound):
        return set_in_target(node, "url = …, with a name that this machine can look up")
    return error.hint or "Look into its log."


def _find_tls_remedy(node: Node, error: str) -> str:
    if "expired" in error:
        return "Renew the certificate of the proxy before this Scrapyd."
    if "mismatch" in error or "doesn't match" in error:
        return set_in_target(node, "url = https://…, with a name that stands in the certificate")
    line = "ca = FILE, with the CA certificate, if it is of your own making"
    if node.ca is not None:
        line = "ca = …, the file with the certificates that signed the server's own (this did not)"
    return set_in_target(node, line)
