"""The smallest HTTP client that can talk to a node or a site: no proxies, no pool, nothing left open."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import requests


class Reply(NamedTuple):
    """Status, headers and body of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(url: str, *, method: str = "GET", timeout: float = 30.0, **options: Any) -> Reply:
    """Send one request over a connection of its own; the options are those of `requests.request`.

    Raises:
        OSError: when there is no answer.
    """
    with requests.Session() as session:
        session.trust_env = False
        answer = session.request(method, url, timeout=timeout, allow_redirects=False, **options)
        return Reply(answer.status_code, answer.headers, answer.content)
