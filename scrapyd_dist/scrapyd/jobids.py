"""Ids of jobs: those of plain ones are made here, and all are read here. Rule: an id tells which code the job runs.

Scrapyd names the version of a waiting job only. What runs can then be told apart by what was made here.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timezone

from scrapyd_dist.scrapyd.versions import hash_in

_STAMP = "%Y%m%dT%H%M%SZ"
_OURS = re.compile(r"(?P<crawl>[A-Za-z0-9_-]{1,80})\.(?P<kind>[bw])(?P<number>[0-9]{1,16})\.a(?P<attempt>[0-9]{1,16})")
_ID = re.compile(r".*-\d{8}T\d{6}Z-([0-9a-f]{12})-[0-9a-f]{8}")


def job_id(spider: str, version: str | None, now: datetime) -> str:
    """A new id: `<spider>-<UTC time>[-<content hash of the version>]-<8 hexadecimal digits>`.

    Args:
        spider: its name; what is no part of an id becomes a dash.
        version: the one that the job is pinned to; one whose name tells no content hash leaves that part out.
        now: must know its time zone.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", spider)[:80].lstrip("-") or "job"
    content = hash_in(version or "")
    parts = [plain, now.astimezone(timezone.utc).strftime(_STAMP), *([content] if content else ())]
    return "-".join([*parts, secrets.token_hex(4)])


def content_of(job: str) -> str | None:
    """The content hash of the version that a job runs, if its id tells."""
    found = _ID.fullmatch(job)
    return found[1] if found else None


@dataclass(frozen=True, kw_only=True)
class OurJob:
    """What the id of a job of a crawl or a frontier says: an attempt, a row's one too, or a worker that leases."""

    crawl: str
    leases: bool  #: a worker, or its introduction in another project; else an attempt of a batch
    number: int  #: of the worker, or of the batch
    attempt: int


def read_id(job: str) -> OurJob | None:
    """Takes the id of a job of ours apart; None for any other one. The only place where that is done."""
    found = _OURS.fullmatch(job)
    if found is None:
        return None
    return OurJob(
        crawl=found["crawl"], leases=found["kind"] == "w", number=int(found["number"]), attempt=int(found["attempt"])
    )
