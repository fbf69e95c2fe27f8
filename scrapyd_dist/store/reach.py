"""Decides which nodes' workers can reach a store, and what their jobs are given to find it.

The rule it keeps: an address with a secret travels only encrypted, by the key that is in the egg.
What is decided here is what this machine can know; a worker tries for itself
(`middlewares/store_access.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from scrapyd_dist.nodes import Node
from scrapyd_dist.store.engines import find_engine
from scrapyd_dist.store.ports.address_text import file_of, shown


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the workers of one node reach the store."""

    #: what a job there is given: `store`, or `store_sealed`, which is encrypted
    job_settings: Mapping[str, str] = field(default_factory=dict)
    #: why they do not reach it; empty when they do
    reason: str = ""
    #: the package that a worker needs for this store; empty where Python is enough
    client: str = ""


def how_to_reach(where: str, node: Node, key: bytes | None) -> Way:
    """Return how the workers of a node reach the store.

    It may take seconds, since names of hosts are resolved.

    Args:
        where: the store's address, as `address.store_address` gives it.
        node: where the workers run.
        key: the Fernet key that the workers have, if they have one.
    """
    engine = find_engine(where)
    client = ""
    if engine is not None:
        reason = engine.why_unreached(where, node)
        if reason:
            return Way(reason=reason)
        if engine.client is not None:
            client = engine.client.name
    if file_of(where) is not None or shown(where) == where:
        return Way(job_settings={"store": where}, client=client)
    if key is None:
        return Way(
            reason=f"the store's address has a password, and {node.name} has no key to read it"
            " with: its code was not deployed by sdist from here"
        )
    from cryptography.fernet import Fernet  # noqa: PLC0415 - only an address with a secret pays for it

    sealed = Fernet(key).encrypt(where.encode()).decode()
    return Way(job_settings={"store_sealed": sealed}, client=client)


def ways_to(where: str, key: bytes | None) -> Callable[[Node], Way]:
    """Return a function that gives each node's way, found once. Any thread may call it."""
    return cache(lambda node: how_to_reach(where, node, key))
