"""Reads the parts of a Redis store's address that are not the client library's."""

import re
from urllib.parse import parse_qsl, urlsplit

#: a prefix with a hash tag
_TAG = re.compile(r"^[^{]*\{[^}]+\}")


def tagged(prefix: str) -> str:
    """Return the prefix with a hash tag, `{…}`, so that a Redis Cluster keeps all keys together.

    One that has a tag of its own stays as it is.
    """
    if _TAG.search(prefix):
        return prefix
    name = prefix.rstrip(":") or prefix
    return f"{{{name}}}{prefix[len(name) :]}"


def without_prefix(url: str) -> tuple[str, str | None]:
    """Return the URL as the client library takes it, and the prefix of keys that it may name."""
    parts = urlsplit(url)
    options = []
    for option in parts.query.split("&"):
        if not option or option.startswith("prefix="):
            continue
        options.append(option)
    prefix = None
    for name, value in parse_qsl(parts.query):
        if name == "prefix":
            prefix = value
    return parts._replace(query="&".join(options)).geturl(), prefix
