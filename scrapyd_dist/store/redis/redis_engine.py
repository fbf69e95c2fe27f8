"""The engine for a server that several machines share: Redis."""

from urllib.parse import urlsplit

from scrapyd_dist.nodes import Node
from scrapyd_dist.store.ports.address_text import shown
from scrapyd_dist.store.ports.engine import ClientPackage, Engine, Ports, StoreRequest
from scrapyd_dist.this_machine import is_here, is_loopback

#: Before Python 3.11.3 the client imports async-timeout for its asyncio half, which no worker uses.
_ASYNC_TIMEOUT = b'''"""Stands in for async-timeout, which redis imports on old Pythons and a \
worker never calls."""


def timeout(delay):
    raise NotImplementedError
'''


def _open_ports(request: StoreRequest) -> Ports:
    from scrapyd_dist.store.redis.redis_ports import redis_ports  # noqa: PLC0415 - only the engine asked for is loaded

    return redis_ports(request)


def _why_unreached(where: str, node: Node) -> str:
    """Return why the node's workers do not reach the server; empty when they do."""
    parts = urlsplit(where)
    only_here = parts.scheme == "unix" or is_loopback(parts.hostname or "localhost")
    if only_here and not is_here(node.host):
        return (
            f"the store {shown(where)} is reached on this machine only, and {node.name} is another"
            " one"
        )
    return ""


REDIS_ENGINE = Engine(
    title="a Redis server",
    example="redis://host:6379/0",
    schemes=frozenset({"redis", "rediss", "unix"}),
    open_ports=_open_ports,
    why_unreached=_why_unreached,
    client=ClientPackage(
        name="redis", extra="redis", stand_ins={"async_timeout/__init__.py": _ASYNC_TIMEOUT}
    ),
)
