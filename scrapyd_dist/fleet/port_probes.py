"""Finds out what a port speaks, and until when its certificate is valid, below Scrapyd's API."""

import socket
import ssl
from contextlib import closing, suppress
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from scrapyd_dist.nodes import Node

#: most seconds for one try to connect
PATIENCE = 2.0


def _connect(node: Node, timeout: float) -> socket.socket:
    parts = urlsplit(node.url)
    usual_port = 443 if parts.scheme == "https" else 80
    return socket.create_connection((node.host, parts.port or usual_port), min(PATIENCE, timeout))


def speaks_tls(node: Node, timeout: float) -> bool | None:
    """Return whether a TLS handshake comes about, whatever the certificate.

    None where no connection does; timeout: in seconds.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with closing(_connect(node, timeout)) as plain:
            return _certificate(node, plain, context) is not None
    except (OSError, UnicodeError):
        return None


def _certificate(
    node: Node, plain: socket.socket, context: ssl.SSLContext
) -> dict[str, Any] | None:
    """Return the certificate after a handshake, empty where it is not checked; else None."""
    try:
        with context.wrap_socket(plain, server_hostname=node.tls_name or node.host) as wrapped:
            return wrapped.getpeercert() or {}
    except (OSError, ValueError):  # SSLError is an OSError
        return None


def speaks_http(node: Node, timeout: float) -> bool | None:
    """Return whether the port answers HTTP without TLS; None where no connection comes about."""
    try:
        plain = _connect(node, timeout)
    except (OSError, UnicodeError):
        return None
    with closing(plain), suppress(OSError):
        plain.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        return plain.recv(5) == b"HTTP/"
    return False


def certificate_end(node: Node, timeout: float) -> datetime | None:
    """Return when the server's certificate ends, UTC; None where it is not checked, or is none."""
    if not node.url.startswith("https") or not node.verify:
        return None
    import certifi  # noqa: PLC0415 - few nodes have a certificate to check

    try:
        context = ssl.create_default_context(cafile=node.ca or certifi.where())
        with closing(_connect(node, timeout)) as plain:
            ends = (_certificate(node, plain, context) or {}).get("notAfter")
    except (OSError, ValueError):
        return None
    if not isinstance(ends, str):
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), timezone.utc)
