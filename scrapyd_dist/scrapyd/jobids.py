"""Ids of plain jobs, as `sdist schedule` gives them; rule: an id tells which code the job runs, since Scrapyd does not.

Scrapyd names the version of a waiting job only. What runs can then be told apart by what was made here.
"""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timezone

from scrapyd_dist.scrapyd.versions import hash_in

_STAMP = "%Y%m%dT%H%M%SZ"
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
