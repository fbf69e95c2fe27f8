"""Cuts links of the queue into batches: late, in the order of their scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.frontier.packing import FrontierIntake, pack
from scrapyd_dist.payload import PayloadError, RequestValue
from scrapyd_dist.strategy.links import (
    EXPIRED,
    PAGE,
    READ,
    SITEMAP,
    Link,
    States,
    link_meta,
    priority_of,
    with_link_meta,
)


@dataclass(kw_only=True)
class QueueCut:
    """Links that leave the queue: in batches, or as errors."""

    new: list[NewBatch] = field(default_factory=list)
    errors: list[Link] = field(default_factory=list)  #: the links that are in no batch
    expired: int = 0  #: how many of these were not requested in time


def cut(heads: Sequence[Link], *, size: int, key: bytes | None, now: float) -> QueueCut:
    """Cut links, each slot's in order of score, into batches of at most `size` requests.

    `key`: the Fernet key for requests that must be encrypted; `now`: seconds since the epoch.
    """
    result = QueueCut()
    alive: list[Link] = []
    for link in heads:
        if link.expires and link.expires <= now:
            result.errors.append(_make_error(link, EXPIRED))
            result.expired += 1
        else:
            alive.append(link)
    by_slot = attrgetter("slot")
    # sorted is stable: the order of scores stays.
    for _, links_of_slot in groupby(sorted(alive, key=by_slot), key=by_slot):
        links = sorted(links_of_slot, key=attrgetter("score"), reverse=True)
        for is_sitemap, group in groupby(links, key=_is_sitemap):
            # The links of no more than one sitemap are to be in the ack of a batch.
            _pack_group(list(group), 1 if is_sitemap else size, key, result)
    return result


def _pack_group(links: Sequence[Link], most: int, key: bytes | None, result: QueueCut) -> None:
    for start in range(0, len(links), most):
        _pack(links[start : start + most], key, result)


def _is_sitemap(link: Link) -> bool:
    return link_meta(link.request or {}).get(READ) == SITEMAP


def _pack(links: Sequence[Link], key: bytes | None, result: QueueCut) -> None:
    priority = priority_of(links[0].score)
    try:
        found = [_make_intake(link, priority) for link in links]
        result.new += pack(found, size=len(links), key=key)
    except PayloadError as error:
        # It is of one of them, which is too large, or needs a key that there is not.
        if len(links) == 1:
            result.errors.append(_make_error(links[0], str(error)))
            return
        for link in links:
            _pack([link], key, result)


def _make_intake(link: Link, priority: int) -> FrontierIntake:
    return FrontierIntake(
        value=_make_value(link), fingerprint=link.fingerprint, slot=link.slot, priority=priority
    )


def _make_value(link: Link) -> RequestValue:
    """Return the request as the worker gets it."""
    value = link.request or {"url": link.url}
    meta = {
        READ: PAGE,
        **link_meta(value),
        "fingerprint": link.fingerprint.hex(),
        "depth": link.depth,
        "score": link.score,
        "expires": link.expires,
    }
    return {**with_link_meta(value, meta), "priority": priority_of(link.score)}


def _make_error(link: Link, reason: str) -> Link:
    return replace(link, state=States.ERROR, request=None, reason=reason)
