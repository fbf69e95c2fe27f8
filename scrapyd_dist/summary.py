"""A crawl in numbers, as a JSON document: what watchers show, what `--json` prints, and the exit code it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.fleet import Member
    from scrapyd_dist.tally import Tally

SCHEMA = 1
#: the names of the account's counts; found is their sum
ACCOUNT = ("offsite", "duplicate", "refused", "local", "sealed")


@dataclass(frozen=True, kw_only=True)
class IndexProgress:
    """How far the index pages are."""

    pages: int = 0
    total: int | None = None  #: None when nobody knows
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that a summary is made from."""

    crawl: str
    spider: str
    project: str
    version: str | None
    state: str
    duration: float
    counts: Mapping[str, int]  #: the account so far
    buffered: int  #: found, not sealed yet
    waiting: int  #: batches that wait for a node
    batches: int  #: all batches
    tally: Tally
    members: Sequence[Member] = ()
    index: IndexProgress = field(default_factory=IndexProgress)
    own_items: int = 0
    local_missed: Mapping[str, int] = field(default_factory=dict)  #: of locally crawled requests: gone, failed
    output: Sequence[str] = ()
    misses: str | None = None
    warnings: Sequence[str] = ()
    message: str = ""


def summary(snap: Snapshot) -> dict[str, Any]:
    """The summary document, schema 1. Counts are of URLs, requests, pages or items; `duration_s` is seconds."""
    account = {name: snap.counts.get(name, 0) for name in ACCOUNT}
    tally = snap.tally
    out = [member.progress() for member in snap.members]
    running = {name: sum(row[column] for row in out) for column, name in enumerate(("ended", "pages", "items"))}
    return {
        "schema": SCHEMA,
        "crawl": snap.crawl,
        "spider": snap.spider,
        "project": snap.project,
        "version": snap.version,
        "state": snap.state,
        "duration_s": round(snap.duration, 3),
        "urls_found": sum(account.values()) + snap.buffered,
        "urls_distinct": account["sealed"] + account["local"] + account["refused"] + snap.buffered,
        **account,
        "batches": {
            "total": snap.batches,
            "sent": tally.sent,
            "out": sum(len(member.out) for member in snap.members),
            "waiting": snap.waiting,
            "done": tally.done,
            "failed": tally.failed,
            "dead": tally.dead,
        },
        "requests": {
            "total": account["sealed"],
            "done": tally.requests_done + tally.gone + tally.failed_urls + running["ended"],
        },
        "pages": snap.index.pages + tally.pages + running["pages"],
        "items": snap.own_items + tally.items + running["items"],
        "gone_urls": tally.gone + snap.local_missed.get("gone", 0),
        "failed_urls": tally.failed_urls + snap.local_missed.get("failed", 0),
        "dead_urls": tally.dead_urls,
        "index": {"pages": snap.index.pages, "total": snap.index.total, "failed": snap.index.failed},
        "index_failed": snap.index.failed,
        "nodes": [_node(member) for member in snap.members],
        "output": list(snap.output),
        "misses": snap.misses,
        "warnings": list(snap.warnings),
        "message": snap.message,
    }


def _node(member: Member) -> dict[str, Any]:
    state = "unfit" if member.unfit else "up" if member.up else "down"
    _, _, items = member.progress()
    return {
        "name": member.node.name,
        "url": member.node.url,
        "state": state,
        "reason": member.unfit or member.down_reason,
        "slots": member.slots,
        "running": len(member.out),
        "jobs": member.jobs,
        "items": member.items + items,
    }


def exit_code(document: Mapping[str, Any], *, max_failed: int) -> int:
    """What a finished crawl ends with: 0 good, 3 partial, 1 when nothing came of it."""
    lost = document["failed_urls"] + document["dead_urls"] + document["refused"]
    if document["batches"]["total"] and not document["batches"]["done"] and document["dead_urls"]:
        return 1
    if lost > max_failed or document["index_failed"]:
        return 3
    return 0
