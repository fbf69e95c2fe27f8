"""Decides which nodes' workers can reach a store, and what their jobs are given to find it.

The rule it keeps: an address with a secret travels only encrypted, by the key that is in the egg.
What is decided here is what this machine can know; a worker tries for itself
(`middlewares/store_access.py`).
"""

import ipaddress
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from scrapyd_dist.errors import StoreError
from scrapyd_dist.nodes import Node
from scrapyd_dist.store.address import check_local, is_url, kind_on, shown


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the workers of one node reach the store."""

    #: what a job there is given: `store`, or `store_sealed`, which is encrypted
    job_settings: Mapping[str, str] = field(default_factory=dict)
    #: why they do not reach it; empty when they do
    reason: str = ""


def how_to_reach(where: str, node: Node, key: bytes | None) -> Way:
    """Return how the workers of a node reach the store.

    It may take seconds, since names of hosts are resolved.

    Args:
        where: the store's address, as `address.store_address` gives it.
        node: where the workers run.
        key: the Fernet key that the workers have, if they have one.
    """
    reason = _why_not(where, node)
    if reason:
        return Way(reason=reason)
    if not is_url(where) or shown(where) == where:
        return Way(job_settings={"store": where})
    if key is None:
        return Way(
            reason=f"the store's address has a password, and {node.name} has no key to read it"
            " with: its code was not deployed by sdist from here"
        )
    from cryptography.fernet import Fernet  # noqa: PLC0415 - only an address with a secret pays for it

    return Way(job_settings={"store_sealed": Fernet(key).encrypt(where.encode()).decode()})


def ways_to(where: str, key: bytes | None) -> Callable[[Node], Way]:
    """Return a function that gives each node's way, found once. Any thread may call it."""
    return cache(lambda node: how_to_reach(where, node, key))


def _why_not(where: str, node: Node) -> str:
    """Return why the node's workers do not reach the store; empty when they do."""
    if is_url(where):
        return _why_not_redis(where, node)
    return _why_not_file(where, node)


def _why_not_file(where: str, node: Node) -> str:
    path = Path(where.removeprefix("sqlite://"))
    if not is_here(node.host):
        return (
            f"the store {path} is a file of this machine, and {node.name} is another one; a Redis"
            " server (SDIST_STORE=redis://…) is reached from everywhere"
        )
    if not path.is_absolute():
        return f"the store {path} has no absolute path"
    try:
        check_local(path)
    except StoreError as error:
        return str(error)
    kind = kind_on(path)
    if kind == "fuse" or kind.startswith("fuse."):
        return (
            f"the store {path} is on a file system of the kind {kind}, where locks between"
            " processes cannot be trusted"
        )
    return ""


def _why_not_redis(where: str, node: Node) -> str:
    parts = urlsplit(where)
    only_here = parts.scheme == "unix" or _is_loopback(parts.hostname or "localhost")
    if only_here and not is_here(node.host):
        return (
            f"the store {shown(where)} is reached on this machine only, and {node.name} is another"
            " one"
        )
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_here(host: str) -> bool:
    """Return whether a host is this machine: all its addresses are this machine's own."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    addresses = {str(info[4][0]) for info in infos}
    return bool(addresses) and all(map(_is_own, addresses))


def _is_own(address: str) -> bool:
    """Return whether the address can be bound: only one of this machine can."""
    bare = address.partition("%")[0]
    if ipaddress.ip_address(bare).is_loopback:
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
