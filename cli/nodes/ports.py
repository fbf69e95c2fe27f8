"""What a port speaks, tried with bare sockets; rule: nothing of ours is sent there, no password, no name."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from scrapyd_dist.nodes import Node

#: most seconds for one try
PATIENCE = 2.0


def _connect(node: Node, timeout: float) -> socket.socket:
    parts = urlsplit(node.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return socket.create_connection((node.host, port), min(PATIENCE, timeout))


def speaks_tls(node: Node, timeout: float) -> bool | None:
    """Whether a TLS handshake comes about, whatever the certificate; None where no connection does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with closing(_connect(node, timeout)) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=node.tls_name or node.host):
                    return True
            except (OSError, ValueError):  # SSLError is an OSError
                return False
    except (OSError, UnicodeError):
        return None


def speaks_http(node: Node, timeout: float) -> bool | None:
    """Whether the port answers HTTP without TLS; None where no connection comes about."""
    try:
        plain = _connect(node, timeout)
    except (OSError, UnicodeError):
        return None
    with closing(plain), suppress(OSError):
        plain.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        return plain.recv(5) == b"HTTP/"
    return False


def certificate_end(node: Node, timeout: float) -> datetime | None:
    """When the server's certificate ends, UTC; None where it is not checked, or there is none."""
    if not node.url.startswith("https") or not node.verify:
        return None
    import certifi

    try:
        context = ssl.create_default_context(cafile=node.ca or certifi.where())
        with (
            closing(_connect(node, timeout)) as plain,
            context.wrap_socket(plain, server_hostname=node.tls_name or node.host) as wrapped,
        ):
            ends = (wrapped.getpeercert() or {}).get("notAfter")
    except (OSError, ValueError):
        return None
    if not isinstance(ends, str):
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), timezone.utc)
