"""Creates the ids of plain jobs, and parses the ids of all jobs of this program.

The id of a plain job contains the content hash of its version, because Scrapyd names the version of pending jobs only.
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
    """Return a new id: `<spider>-<UTC time>[-<content hash of the version>]-<8 hexadecimal digits>`.

    Args:
        spider: the spider's name; characters not allowed in an id become dashes.
        version: the version that the job is pinned to; the hash is left out if the name has none.
        now: the current time, with a time zone.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", spider)[:80].lstrip("-") or "job"
    content = hash_in(version or "")
    parts = [plain, now.astimezone(timezone.utc).strftime(_STAMP), *([content] if content else ())]
    return "-".join([*parts, secrets.token_hex(4)])


def content_of(job: str) -> str | None:
    """Return the content hash in a plain job's id, or None."""
    found = _ID.fullmatch(job)
    return found[1] if found else None


@dataclass(frozen=True, kw_only=True)
class OurJob:
    """The parsed id of a job of a crawl or frontier: an attempt, or a worker that leases batches."""

    crawl: str
    leases: bool  #: whether it is a worker (or its introduction in another project), not an attempt
    number: int  #: number of the worker or of the batch
    attempt: int


def read_id(job: str) -> OurJob | None:
    """Parse the id of a crawl's job; returns None for any other id."""
    found = _OURS.fullmatch(job)
    if found is None:
        return None
    return OurJob(
        crawl=found["crawl"], leases=found["kind"] == "w", number=int(found["number"]), attempt=int(found["attempt"])
    )
