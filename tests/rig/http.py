"""The smallest HTTP client that can talk to a node or a site: no proxies, no pool, nothing left open."""

import http.client
from base64 import b64encode
from typing import NamedTuple
from urllib.parse import urlsplit


class Reply(NamedTuple):
    """Status, headers (names in lower case) and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes


def fetch(
    url: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    auth: tuple[str, str] | None = None,
    timeout: float = 30.0,
) -> Reply:
    """Send one request over a connection of its own.

    Raises:
        OSError: when there is no answer; http.client.HTTPException becomes a ConnectionError.
    """
    parts = urlsplit(url)
    sent = dict(headers or {})
    if auth:
        sent["Authorization"] = "Basic " + b64encode(":".join(auth).encode()).decode()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request(method, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, sent)
        answer = connection.getresponse()
        got = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, got, answer.read())
    except http.client.HTTPException as error:
        raise ConnectionError(f"{method} {url}: {error!r}") from error
    finally:
        connection.close()


def multipart(fields: dict[str, str], files: dict[str, bytes]) -> tuple[str, bytes]:
    """A multipart/form-data body: its content type, and itself."""
    boundary = "rig-boundary-7d1c5e"
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value.encode() + b"\r\n"
        for name, value in fields.items()
    ]
    parts += [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, data in files.items()
    ]
    return f"multipart/form-data; boundary={boundary}", b"".join(parts) + f"--{boundary}--\r\n".encode()
