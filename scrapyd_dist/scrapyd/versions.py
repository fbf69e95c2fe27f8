"""What the name of a version tells: when it was made, of which content, and whether only a crawl needs it.

Scrapyd keeps nothing but A-Za-z0-9_- of a name. It sorts the names of a project as PEP 440 versions if all of them are
such, else all as text, and runs the last one when a job names none. A deployment is called `<seconds>-<content>`: in
both orders that sorts by time, and scrapyd-deploy's own names (seconds, too) sort in between. What a crawl brings is
called `0-a<seconds>-<content>`, which sorts before every deployment in both orders: no other job runs it by default.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: hexadecimal digits of a content hash: 48 bits tell apart what one project ever deploys
HASH_DIGITS = 12
#: the decimal digits that a name has for them
_DECIMALS = 15
#: how far ahead of our clock the one of scrapyd-deploy may have been: a larger number is no time
AHEAD = 86400.0

_STAMP = "%Y%m%dT%H%M%SZ"
_OURS = re.compile(
    rf"(?P<crawl>0-a)?(?P<seconds>\d{{10}})-(?P<content>\d{{{_DECIMALS}}})(-(git|hg)-[A-Za-z0-9_-]+)?(-dev)?"
)
#: what this program called all versions before: `20260102T030405Z-0123456789ab-dirty`
_OLD = re.compile(
    rf"(?P<stamp>\d{{8}}T\d{{6}}Z)-(?P<content>[0-9a-f]{{{HASH_DIGITS}}})(-(git|hg)-[A-Za-z0-9_-]+)?(-dirty)?"
)
#: what scrapyd-deploy calls a version where nothing was said
_SECONDS = re.compile(r"\d{10}")


def version_name(
    content_hash: str, now: datetime, *, for_crawl: bool = False, dirty: bool = False, label: str = ""
) -> str:
    """`[0-a]<seconds>-<content hash in 15 decimal digits>[-<label>][-dev]`.

    Args:
        content_hash: 12 hexadecimal digits.
        now: must know its time zone; whole seconds of it count.
        for_crawl: a name that never makes it the project's default beside a deployment.
        dirty: there were changes that are not committed: `-dev`.
        label: what the commit is called. Such a name is no PEP 440 version, and sorts by time among text only.
    """
    name = f"{'0-a' if for_crawl else ''}{int(now.timestamp())}-{int(content_hash, 16):0{_DECIMALS}d}"
    return f"{name}{f'-{label}' if label else ''}{'-dev' if dirty else ''}"


def later_than(now: datetime, names: Iterable[str]) -> datetime:
    """`now`, or the first second in which a name of ours sorts behind all of these: two deploys may share one."""
    newest = max((made for name in names if (made := made_at(name)) is not None), default=None)
    if newest is None:
        return now
    return max(now, datetime.fromtimestamp(newest, timezone.utc) + timedelta(seconds=1))


def hash_in(version: str) -> str | None:
    """The content hash in a name that this program made, else None."""
    if match := _OURS.fullmatch(version):
        content = f"{int(match['content']):0{HASH_DIGITS}x}"
        return content if len(content) == HASH_DIGITS else None
    old = _OLD.fullmatch(version)
    return old["content"] if old else None


def made_at(version: str) -> float | None:
    """When a version was made, seconds since the epoch, as far as its name tells: ours do, and scrapyd-deploy's."""
    if match := _OURS.fullmatch(version):
        return float(match["seconds"])
    if match := _OLD.fullmatch(version):
        try:
            return datetime.strptime(match["stamp"], _STAMP).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            return None
    if _SECONDS.fullmatch(version) and float(version) < time.time() + AHEAD:
        return float(version)
    return None


def is_crawls(version: str) -> bool:
    """Whether only a crawl brought it: it is no deployment."""
    match = _OURS.fullmatch(version)
    return match is not None and match["crawl"] is not None


def newest(versions: Iterable[str], known: Mapping[str, float] | None = None) -> str | None:
    """The newest deployment by time, of those whose time is known; None where there is none.

    Args:
        versions: in any order.
        known: times of names that do not tell them, seconds since the epoch.
    """
    timed = [(at, name) for name in versions if not is_crawls(name) and (at := time_of(name, known)) is not None]
    return max(timed, default=(0.0, None))[1]


def current(versions: Sequence[str], known: Mapping[str, float] | None = None) -> str | None:
    """The version that counts as the project's code: the newest deployment; None where there is no version at all.

    Where the time of no deployment is known it is the one that Scrapyd sorts last, and without any the newest that
    a crawl brought.

    Args:
        versions: of one node, in Scrapyd's order.
        known: as for `newest`.
    """
    found = newest(versions, known)
    if found is not None or not versions:
        return found
    deployed = [name for name in versions if not is_crawls(name)]
    return deployed[-1] if deployed else max(versions, key=lambda name: made_at(name) or 0.0)


def behind(versions: Sequence[str], known: Mapping[str, float] | None = None) -> str:
    """The newer deployment that Scrapyd sorts before its default, in words; empty where there is none.

    Args:
        versions: of one node, in Scrapyd's order.
        known: as for `newest`.
    """
    default, now = (versions[-1] if versions else None), current(versions, known)
    if default is None or now is None or told_content(default) == told_content(now):
        return ""
    if time_of(default, known) is None:
        return f"{now}, the newest one whose time is known"
    return f"the newer {now}"


def told_content(version: str | None) -> str | None:
    """What two versions of the same code have in common: the hash in their names, else the name."""
    return (hash_in(version) or version) if version is not None else None


def by_time(versions: Sequence[str], known: Mapping[str, float] | None = None) -> list[str]:
    """Oldest first; what tells no time counts as newer than what does, and stays in Scrapyd's order."""

    def key(name: str) -> float:
        at = time_of(name, known)
        return float("inf") if at is None else at

    return sorted(versions, key=key)


def time_of(version: str, known: Mapping[str, float] | None = None) -> float | None:
    """When it was made or sent, as far as the name or `known` tells; seconds since the epoch."""
    at = made_at(version)
    return (known or {}).get(version) if at is None else at


def sanitised(version: str) -> str:
    """The name under which Scrapyd keeps and lists a version."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", version)
