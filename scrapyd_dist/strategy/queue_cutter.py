"""Cuts links of the queue into batches: late, in the order of their scores, and told what the worker has to know."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.frontier.intake import FrontierIntake, pack
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
    errors: list[Link] = field(default_factory=list)
    expired: int = 0


def cut(heads: Sequence[Link], *, size: int, key: bytes | None, now: float) -> QueueCut:
    """Cut links, each slot's in order of score, into batches of at most `size` requests."""
    result = QueueCut()
    alive = []
    for link in heads:
        if link.expires and link.expires <= now:
            result.errors.append(_failed(link, EXPIRED))
            result.expired += 1
        else:
            alive.append(link)
    slot = attrgetter("slot")
    for _, group in groupby(
        sorted(alive, key=slot), key=slot
    ):  # sorted is stable: the order of scores stays
        links = sorted(group, key=attrgetter("score"), reverse=True)
        for is_sitemap, some in groupby(links, key=_is_sitemap):
            together = list(some)
            most = (
                1 if is_sitemap else size
            )  # so that the links of no more than one are in the ack of a batch
            for start in range(0, len(together), most):
                _pack(together[start : start + most], key, result)
    return result


def _is_sitemap(link: Link) -> bool:
    return link_meta(link.request or {}).get(READ) == SITEMAP


def _pack(links: Sequence[Link], key: bytes | None, result: QueueCut) -> None:
    first = priority_of(links[0].score)
    try:
        found = [
            FrontierIntake(
                value=_told(one), fingerprint=one.fingerprint, slot=one.slot, priority=first
            )
            for one in links
        ]
        result.new += pack(found, size=len(links), key=key)
    except (
        PayloadError
    ) as error:  # of one of them: it is too large, or needs a key that there is not
        if len(links) == 1:
            result.errors.append(_failed(links[0], str(error)))
        for link in links if len(links) > 1 else ():
            _pack([link], key, result)


def _told(link: Link) -> RequestValue:
    """The request as the worker gets it."""
    value = link.request or {"url": link.url}
    told = {
        READ: PAGE,
        **link_meta(value),
        "fingerprint": link.fingerprint.hex(),
        "depth": link.depth,
        "score": link.score,
        "expires": link.expires,
    }
    return {**with_link_meta(value, told), "priority": priority_of(link.score)}


def _failed(link: Link, reason: str) -> Link:
    return replace(link, state=States.ERROR, request=None, reason=reason)
