"""The table of finish reasons of jobs, and their consequences.

Invariant: an end caused by this program, the store or the node is never blamed on a batch. Part of the worker half.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FinishReason(str, Enum):
    """The finish reasons that this program uses."""

    FINISHED = "finished"  #: the same as Scrapy's
    SHUTDOWN = "shutdown"  #: the same as Scrapy's
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  #: the job came too late, or another one has taken its place
    REFUSED = "refused"  #: the job could not start: its input or its node is unsuitable
    FAILED = "failed"  #: an error of this program
    DISK_FULL = "disk-full"
    FILES_LOST = "files-lost"  #: the job's folder was deleted, including its part
    STORE_LOST = "store-lost"
    THROTTLE_FAILED = "throttle-failed"
    LOGIN_FAILED = "login-failed"
    START_FAILED = "start-failed"
    LIMITED = "limited"  #: the producer has found as many requests as its limit allows


@dataclass(frozen=True, kw_only=True)
class ReasonMeaning:
    """The consequences of a finish reason."""

    blames_batch: bool = False  #: whether the batch may have caused the end
    in_order: bool = False  #: whether it is a normal end for a leasing worker
    told: bool = False  #: whether the job was told to end
    asked_for: bool = False  #: whether the job has done its work, as far as its settings allow
    by_settings: bool = False  #: whether settings ended the job early; a retry would end there, too


#: prefix of the reason of a miss whose request was not made because settings ended the job
NOT_MADE = "not made"
#: for finish reasons that are not in the table
_UNKNOWN = ReasonMeaning(blames_batch=True)
_MEANINGS: dict[str, ReasonMeaning] = {
    **{reason.value: ReasonMeaning() for reason in FinishReason},
    FinishReason.FINISHED.value: ReasonMeaning(in_order=True, asked_for=True),
    FinishReason.SHUTDOWN.value: ReasonMeaning(in_order=True, told=True),
    FinishReason.CANCELLED.value: ReasonMeaning(in_order=True),
    FinishReason.SUPERSEDED.value: ReasonMeaning(told=True),
    FinishReason.LIMITED.value: ReasonMeaning(in_order=True, asked_for=True, by_settings=True),
    # Scrapy's CloseSpider settings: after a time or a count, or after too many errors
    "closespider_timeout": ReasonMeaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_itemcount": ReasonMeaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_pagecount": ReasonMeaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_timeout_no_item": ReasonMeaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_pagecount_no_item": ReasonMeaning(in_order=True, asked_for=True, by_settings=True),
    "closespider_errorcount": ReasonMeaning(in_order=True, by_settings=True),
}


def meaning(finish_reason: str) -> ReasonMeaning:
    """Return the consequences of a finish reason in a report or log; an unknown one may be the batch's fault."""
    return _MEANINGS.get(finish_reason, _UNKNOWN)


def not_made(finish_reason: str) -> tuple[str, str]:
    """Return kind of miss and reason for requests that were not made because settings ended their job."""
    kind = "gone" if meaning(finish_reason).asked_for else "failed"
    return kind, f"{NOT_MADE}: {finish_reason.upper()} ended the job before"
