"""The smallest HTTP client that can talk to a node or a site: no proxies, no pool, nothing left open."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import requests


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(url: str, *, method: str = "GET", timeout: float = 30.0, **options: Any) -> Reply:
    """Send one request over a connection of its own; the options are those of `requests.request`.

    Without an answer it raises an OSError.
    """
    with requests.Session() as session:
        session.trust_env = False
        answer = session.request(method, url, timeout=timeout, allow_redirects=False, **options)
        return Reply(answer.status_code, answer.headers, answer.content)
