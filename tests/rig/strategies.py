"""What tests of strategies in a store share: short words for links, events and steps."""

from collections.abc import Sequence
from typing import Any

from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.store import Store
from scrapyd_dist.strategy.links import (
    PARTITIONS,
    EventKind,
    FoundLink,
    Link,
    LinkEvent,
    States,
    StrategyStep,
    partition_of,
)

ALL = range(PARTITIONS)


def link(name: str, score: float = 1.0, slot: str = "a", **more: Any) -> Link:
    """A link that is to be queued."""
    url = f"http://{slot}/{name}"
    values: dict[str, Any] = {
        "state": States.QUEUED, "partition": partition_of(slot), "request": {"url": url, "meta": {"n": name}}, **more,
    }  # fmt: skip
    return Link(fingerprint=name.encode(), url=url, score=score, slot=slot, **values)


def event(
    name: str, *found: str, kind: EventKind = EventKind.CRAWLED, slot: str = "a", **more: Any
) -> LinkEvent:
    url = f"http://{slot}/{name}"
    links = tuple(
        FoundLink(fingerprint=one.encode(), request={"url": f"http://{slot}/{one}"}, slot=slot)
        for one in found
    )
    values: dict[str, Any] = {"url": url, "status": 200, "links": links, **more}
    request = {"url": url, "meta": {"depth": 1}}
    return LinkEvent(
        kind=kind,
        fingerprint=name.encode(),
        request=request,
        partition=partition_of(slot),
        **values,
    )


def hold(
    store: Store, process: str = "me", seconds: float = 60.0, *, finished: bool = False
) -> list[int]:
    return store.hold_partitions("c", process, seconds, finished=finished)


def apply(
    store: Store, *links: Link, process: str = "me", crawl: str = "c", **more: Any
) -> list[int]:
    """Make a step of a process that holds all partitions; the numbers of its new batches."""
    values: dict[str, Any] = {"partitions": ALL, "now": 1_000.0, **more}
    return [
        one.number
        for one in store.apply(StrategyStep(crawl=crawl, process=process, links=links, **values))
    ]


def heads(
    store: Store,
    *,
    ahead: int = 64,
    limit: int = 100,
    now: float = 1_000.0,
    of: Sequence[int] = ALL,
) -> list[Link]:
    return store.queue_heads("c", of, ahead=ahead, limit=limit, now=now)


def names(links: Sequence[Link]) -> str:
    return " ".join(one.fingerprint.decode() for one in links)


def taken(one: Link, **more: Any) -> Link:
    """The link as it is when a batch was made of it."""
    values: dict[str, Any] = {
        name: getattr(one, name) for name in ("url", "score", "slot", "partition", "depth")
    }
    return Link(fingerprint=one.fingerprint, **{**values, "state": States.QUEUED, **more})


def batch_of(links: Sequence[Link]) -> NewBatch:
    prints = tuple(one.fingerprint for one in links)
    payload = {"A": names(links)}
    return NewBatch(
        payload=payload, size=len(links), slot=links[0].slot, fingerprints=prints, sealed_at=10.0
    )


def cut(store: Store, *, limit: int = 100, now: float = 1_000.0, size: int = 100) -> list[str]:
    """Make batches of the front of the queue; what is in each."""
    front, pieces = heads(store, limit=limit, now=now), list[list[Link]]()
    for slot in dict.fromkeys(one.slot for one in front):
        own = [one for one in front if one.slot == slot]
        pieces += [own[at : at + size] for at in range(0, len(own), size)]
    apply(store, new=[batch_of(piece) for piece in pieces], now=now)
    return [names(piece) for piece in pieces]
