"""Creates and parses version names: creation time, content hash, whether a crawl brought it.

Scrapyd keeps only A-Za-z0-9_- of a name. It sorts a project's names as PEP 440 versions if all of
them are valid ones, else as text, and runs the last one if a job names none. A deployment is called
`<seconds>-<content>`, which sorts by time in both orders, together with the names of scrapyd-deploy
(also seconds). A version that a crawl brings is called `0-a<seconds>-<content>`, which sorts before
every deployment in both orders, so that no other job runs it by default. A deployment that has to
sort behind other names, such as `s2`, is called `s2-z<seconds>-<content>`. `known` are times of
names that do not contain one, seconds since the epoch.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone

from scrapyd_dist.errors import ConfigError, NothingMatched

#: hexadecimal digits of a content hash; 48 bits suffice for the versions of one project
HASH_DIGITS = 12
#: digits of a content hash that people are shown
SHORT_DIGITS = 6
#: characters of a name, or digits of a content hash, that mean a version by its beginning
LEAST_DIGITS = 4
#: decimal digits of a content hash in a name
_DECIMALS = 15
#: seconds that the clock of a scrapyd-deploy may have been ahead; a larger number is not a time
AHEAD = 86400.0

_OURS = re.compile(
    rf"(?:(?P<crawl>0-a)|(?P<behind>[A-Za-z0-9_-]+)-z)?(?P<seconds>\d{{10}})-(?P<content>\d{{{_DECIMALS}}})"
    r"(-(git|hg)-[A-Za-z0-9_-]+)?(-dev)?"
)
#: the default names of scrapyd-deploy
_SECONDS = re.compile(r"\d{10}")


def version_name(
    content_hash: str,
    now: datetime,
    *,
    for_crawl: bool = False,
    dirty: bool = False,
    label: str = "",
) -> str:
    """Return `[0-a]<seconds>-<content hash in 15 decimal digits>[-<label>][-dev]`.

    The hash has 12 hexadecimal digits, `now` a time zone. A version that a crawl brings must not
    become the project's default; `dirty`: there are uncommitted changes; `label` names the commit.
    A name with a label is not a PEP 440 version, so all names are sorted as text.
    """
    name = f"{int(now.timestamp())}-{int(content_hash, 16):0{_DECIMALS}d}"
    if for_crawl:
        name = f"0-a{name}"
    if label:
        name += f"-{label}"
    if dirty:
        name += "-dev"
    return name


def put_behind(name: str, other: str) -> str:
    """Return a name of this program as one that sorts as text behind another name.

    With its `z` it is no version of PEP 440, so that Scrapyd sorts all as text.
    """
    match = _OURS.fullmatch(other)
    if match is not None and match["behind"]:
        other = match["behind"]
    return f"{other}-z{name}"


def short_version(version: str) -> str:
    """Return how a version begins, for people: `a17958…`, of its content hash where it has one.

    Where a version is asked for, the part before the `…` will do.
    """
    name = hash_in(version) or version
    return name if len(name) <= SHORT_DIGITS else f"{name[:SHORT_DIGITS]}…"


def later_than(
    now: datetime, names: Iterable[str], known: Mapping[str, float] | None = None
) -> datetime:
    """Return `now`, or the first full second after the newest of these versions if that is later.

    A name made of it sorts after them then, and counts as newer than they are.
    """
    newest = None
    for name in names:
        made = time_of(name, known)
        if made is not None and (newest is None or made > newest):
            newest = made
    if newest is None:
        return now
    return max(now, datetime.fromtimestamp(int(newest) + 1, timezone.utc))


def hash_in(version: str) -> str | None:
    """Return the content hash in a name created by this program, else None."""
    match = _OURS.fullmatch(version)
    if match is None:
        return None
    content = f"{int(match['content']):0{HASH_DIGITS}x}"
    return content if len(content) == HASH_DIGITS else None


def made_at(version: str) -> float | None:
    """Return the creation time in a name of this program or of scrapyd-deploy, else None.

    It is in seconds since the epoch.
    """
    if match := _OURS.fullmatch(version):
        return float(match["seconds"])
    if _SECONDS.fullmatch(version) and float(version) < time.time() + AHEAD:
        return float(version)
    return None


def is_crawls(version: str) -> bool:
    """Return whether a crawl brought this version, so that it is not a deployment."""
    match = _OURS.fullmatch(version)
    return match is not None and match["crawl"] is not None


def newest(versions: Iterable[str], known: Mapping[str, float] | None = None) -> str | None:
    """Return the newest deployment among those with a known time, or None."""
    timed = []
    for name in versions:
        at = None if is_crawls(name) else time_of(name, known)
        if at is not None:
            timed.append((at, name))
    return max(timed, default=(0.0, None))[1]


def current(versions: Sequence[str], known: Mapping[str, float] | None = None) -> str | None:
    """Return the version that counts as the project's code; None if there is no version.

    It is the newest deployment. If no deployment has a known time, it is the one that Scrapyd sorts
    last; without a deployment, the newest version that a crawl brought. `versions` are those of one
    node, in Scrapyd's order.
    """
    found = newest(versions, known)
    if found is not None or not versions:
        return found
    deployed = [name for name in versions if not is_crawls(name)]
    if deployed:
        return deployed[-1]
    return max(versions, key=lambda name: made_at(name) or 0.0)


def behind(versions: Sequence[str], known: Mapping[str, float] | None = None) -> str:
    """Describe a newer deployment that Scrapyd sorts before its default; empty if there is none.

    `versions` are those of one node, in Scrapyd's order.
    """
    if not versions:
        return ""
    default = versions[-1]
    now = current(versions, known)
    if now is None or content_or_name(default) == content_or_name(now):
        return ""
    if time_of(default, known) is None:
        return f"{now}, the newest one whose time is known"
    return f"the newer {now}"


def content_or_name(version: str | None) -> str | None:
    """Return the content hash in a version's name, else the name.

    It is equal for versions of the same code.
    """
    if version is None:
        return None
    return hash_in(version) or version


def match_versions(wanted: str, versions: Iterable[str]) -> list[str]:
    """Return the versions that are meant: the one of this name, else all that begin so.

    wanted: the name, or how the name of a time or the content hash in it begins; versions: names to
    choose from. A name that was chosen is not meant by its beginning: where r1 is gone, r10 is none
    that was asked for.
    """
    name = sanitised(wanted)
    found = []
    for version in versions:
        if version == name:
            return [version]
        if _begins_with(version, name):
            found.append(version)
    return found


def _begins_with(version: str, beginning: str) -> bool:
    """Tell whether a generated name, or the content hash in it, begins so."""
    if len(beginning) < LEAST_DIGITS:
        return False
    match = _OURS.fullmatch(version)
    if match is None:
        return _SECONDS.fullmatch(version) is not None and version.startswith(beginning)
    if (hash_in(version) or "").startswith(beginning):
        return True
    own = f"{match['behind']}-z" if match["behind"] else ""
    return beginning.startswith(own) and version.startswith(beginning)


def resolve_version(wanted: str, versions: Sequence[str], project: str) -> list[str]:
    """Return the versions that are meant, all of the same code, the newest first.

    wanted, versions: as for `match_versions`, of this project.

    Raises:
        NothingMatched: none is meant, or several with different code.
    """
    found = match_versions(wanted, versions)
    if not found:
        raise NothingMatched(
            f"There is no version {wanted!r} of the project {project}. It has: "
            f"{', '.join(versions)}."
        )
    if len(set(map(content_or_name, found))) > 1:
        raise ambiguous_version(wanted, found)
    return sorted(found, key=lambda name: made_at(name) or 0.0, reverse=True)


def ambiguous_version(wanted: str, found: Iterable[str]) -> NothingMatched:
    """Return the error for the beginning of several versions, whose names it has."""
    return NothingMatched(f"{wanted!r} may be each of {', '.join(found)}. Give more of the name.")


def by_time(versions: Sequence[str], known: Mapping[str, float] | None = None) -> list[str]:
    """Sort oldest first; names without a known time come last, in Scrapyd's order."""

    def key(name: str) -> float:
        """Return the time of a version; infinite if it is not known."""
        at = time_of(name, known)
        return float("inf") if at is None else at

    return sorted(versions, key=key)


def time_of(version: str, known: Mapping[str, float] | None = None) -> float | None:
    """Return the time in a name, else in `known`; None if neither has it.

    It is in seconds since the epoch.
    """
    at = made_at(version)
    if at is None and known is not None:
        return known.get(version)
    return at


def check_version(version: str) -> str:
    """Return the name, or raise `ConfigError` if no version should be called so.

    Scrapyd keeps it as a file.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}", version):
        raise ConfigError(
            f"{version!r} cannot name a version: it becomes the name of a file on the nodes, so it "
            "begins with a letter or a digit, and may have '-', '_', '.' and '+' besides, 128 "
            "characters at most."
        )
    return version


def sanitised(version: str) -> str:
    """Return the name under which Scrapyd keeps and lists a version."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", version)
