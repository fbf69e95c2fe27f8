"""How the crawl of a job ends, and what follows from it: the one table of finish reasons.

Part of the worker half, which gives the reasons that are ours. The rule it keeps: what we, the store or the node have
done never speaks against a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(str, Enum):
    """The reasons that our own code gives."""

    FINISHED = "finished"  #: Scrapy's own word, too
    SHUTDOWN = "shutdown"  #: likewise
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  #: it came too late, or another one has taken its place
    REFUSED = "refused"  #: it could not begin: what it was given, or its node, does not fit
    FAILED = "failed"  #: a fault of ours
    DISK_FULL = "disk-full"
    FILES_LOST = "files-lost"  #: its folder is gone, and its part with it
    STORE_LOST = "store-lost"
    THROTTLE_FAILED = "throttle-failed"
    LOGIN_FAILED = "login-failed"
    START_FAILED = "start-failed"
    LIMITED = "limited"  #: of a producer that has found as much as was asked for


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What follows from one reason."""

    blames_batch: bool = False  #: whether what the job worked on may have done it
    in_order: bool = False  #: a worker that leases has nothing to complain of
    told: bool = False  #: it was told to end, and did
    asked_for: bool = False  #: it has done what it was to do, as far as its settings let it
    by_settings: bool = False  #: its settings ended it before all was done: the next attempt would end there as well


#: how the reasons of misses begin that settings have left over
NOT_MADE = "not made"
#: what is in no row: the end of a spider for which none of ours is known
_UNKNOWN = Meaning(blames_batch=True)
_MEANINGS: dict[str, Meaning] = {
    **{reason.value: Meaning() for reason in Reason},
    Reason.FINISHED.value: Meaning(in_order=True, asked_for=True),
    Reason.SHUTDOWN.value: Meaning(in_order=True, told=True),
    Reason.CANCELLED.value: Meaning(in_order=True),
    Reason.SUPERSEDED.value: Meaning(told=True),
    Reason.LIMITED.value: Meaning(in_order=True, asked_for=True, by_settings=True),
    # Scrapy's own ends, which settings ask for: at a number or a time, or when too much went wrong
    "closespider_timeout": Meaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_itemcount": Meaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_pagecount": Meaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_timeout_no_item": Meaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_pagecount_no_item": Meaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_errorcount": Meaning(in_order=True, by_settings=True),
}


def meaning(finish_reason: str) -> Meaning:
    """What follows from a finish reason, of a report or a log; where none is known, the batch may be the cause."""
    return _MEANINGS.get(finish_reason, _UNKNOWN)


def not_made(finish_reason: str) -> tuple[str, str]:
    """What becomes of requests that were not made since the settings have ended their job: kind of miss, and why."""
    kind = "gone" if meaning(finish_reason).asked_for else "failed"
    return kind, f"{NOT_MADE}: {finish_reason.upper()} ended the job before"
