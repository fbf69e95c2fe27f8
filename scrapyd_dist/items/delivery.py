"""The end of a crawl: accepted parts and feeds become output files, manifest and list of misses. Blocking."""

import ftplib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from scrapyd_dist.batches import Attempt, AttemptState, Miss
from scrapyd_dist.config import PARTS
from scrapyd_dist.items.json_lines import FoundItem, Items, left_out, number
from scrapyd_dist.items.kept_parts import KeptParts, differing_counts
from scrapyd_dist.items.merging import ItemOutput, ItemValues, merge

#: timeout of FTP connections in seconds
FTP_TIMEOUT = 30


def read_back(
    uris: Iterable[str], template: str, folder: Path
) -> tuple[list[tuple[str, Path]], list[str]]:
    """Fetch the accepted feeds, whose URIs have no passwords, with the account of the project's feed URL (`template`).

    Gives pairs of URI and local path in order, copies below `folder`; and a warning for each feed that is not read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copies, warnings = [], []
    for index, uri in enumerate(uris, 1):
        try:
            parts = urlsplit(uri)
            if not belongs(uri, template):
                warnings.append(f"{uri} is not merged: the project's feed URL does not lead there")
            elif parts.scheme in {"", "file"}:
                path = Path(unquote(parts.path))
                path.open("rb").close()  # fails if it cannot be read
                copies.append((uri, path))
            elif parts.scheme == "ftp":
                copies.append((uri, _ftp(parts, urlsplit(template), folder / f"{index}.jl")))
            else:
                warnings.append(
                    f"{uri} is not merged: feeds of the kind {parts.scheme}:// are not read back"
                )
        except (OSError, EOFError, ValueError, ftplib.Error) as error:
            warnings.append(f"{uri} is not merged: it could not be read back ({error})")
    return copies, warnings


def belongs(uri: str, feed_url: str) -> bool:
    """Whether a URI lies below the feed URL; any other URI is neither opened nor given the password."""
    try:
        parts, template = urlsplit(uri), urlsplit(feed_url)
        places = [(one.scheme or "file", one.hostname, one.port) for one in (parts, template)]
    except ValueError:  # invalid host or port
        return False
    folder, slash, _ = template.path.partition("%(")[0].rpartition("/")  # file names vary by batch
    return (
        places[0] == places[1]
        and parts.path.startswith(folder + slash)
        and ".." not in unquote(parts.path)
    )


def _ftp(parts: SplitResult, account: SplitResult, copy: Path) -> Path:
    with ftplib.FTP(timeout=FTP_TIMEOUT) as server:
        server.connect(parts.hostname or "", parts.port or 21)
        server.login(unquote(account.username or ""), unquote(account.password or ""))
        with copy.open("wb") as file:
            server.retrbinary(f"RETR {unquote(parts.path)}", file.write)
    return copy


FEEDS = "feeds"  #: the folder for copies of feeds in the crawl's folder
OWN = "own-"  #: file name prefix of part 0 (the producer's items), one file per shard
MISSES = "misses.jsonl"
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The files that a finished crawl has left."""

    items: int
    outputs: tuple[str, ...]
    misses: str | None  #: path of the list of URLs without a result, if there are any
    warnings: tuple[str, ...] = ()
    lost: int = 0  #: items that came home and are not there any more as they came


def deliver(
    folder: Path,
    *,
    own: Sequence[Path],
    own_items: int = 0,
    attempts: Sequence[Attempt],
    misses: Sequence[Miss],
    outputs: Sequence[ItemOutput],
    values: ItemValues = Items.values,
    write_feeds: Callable[[Items], tuple[int, list[str]]] | None = None,
    feed_url: str | None,
) -> Delivery:
    """Write everything that a finished crawl leaves behind, from its folder in the state folder.

    `own` are the files of part 0, the producer's `own_items`; of `attempts` only the accepted ones count; `feed_url` is
    the feed URL that batches wrote to, None if they wrote parts; `values` gives the items for CSV. `write_feeds` writes
    other feeds than files, and returns how many items are not in them, with warnings; they come first, since what it
    raises is tried again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merges = bool(outputs or write_feeds)
    accepted = accepted_of(attempts)
    out = left_out(accepted)
    warnings: list[str] = []
    copies: list[tuple[str, Path]] = []
    feeds: dict[str, int] = {}
    if feed_url is not None:
        feeds = feeds_of(accepted, feed_url)
        in_feeds = {uri: out[batch] for uri, batch in feeds.items() if batch in out}
        document = {"schema": 1, "feeds": list(feeds), "replaced": in_feeds}
        (folder / MANIFEST).write_text(json.dumps(document, indent=1), "utf-8")
        copies, warnings = read_back(feeds, feed_url, folder / FEEDS) if merges else ([], [])
    if not merges:
        items = sum(a.report.get("items", 0) - number(out.get(a.batch, ())) for a in accepted)
        lost = 0
    else:
        kept = KeptParts.found_in(folder / PARTS, accepted)
        skip = {folder / PARTS / a.part: out[a.batch] for a in kept.whole if a.batch in out}
        skip |= {path: out[feeds[uri]] for uri, path in copies if feeds[uri] in out}
        paths = [
            *own,
            *(folder / PARTS / a.part for a in kept.whole),
            *(path for _, path in copies),
        ]
        found = Items(paths, unverified=own, skip=skip)
        lost, said = kept.losses(out)
        warnings += said
        if write_feeds is not None:
            unwritten, problems = write_feeds(found)
            lost += unwritten
            warnings += problems
        items = merge(found, outputs, fields_of(accepted), values)
        missing, said = _compared(found.found, own_items, len(own), kept)
        lost += missing
        warnings += said
    return Delivery(
        items=items,
        outputs=tuple(str(output.path) for output in outputs),
        misses=_write_misses(folder / MISSES, misses),
        warnings=tuple(warnings),
        lost=lost,
    )


def _compared(
    found: Sequence[FoundItem], own_items: int, own: int, kept: KeptParts
) -> tuple[int, list[str]]:
    """How many items fewer there are than were counted, and the sentences that say so.

    `found`: what is in all files; the first `own` ones have the producer's `own_items`, and those of `kept` follow.
    """
    said = []
    mine = found[:own]
    away = max(own_items - sum(one.whole for one in mine), sum(one.bad for one in mine), 0)
    if away:
        said.append(
            f"{away:,} items are lost: those of the crawl's own pages are not in {kept.folder} any more, or are not"
            " whole. Only another crawl brings them."
        )
    parts = zip(kept.whole, found[own:], strict=False)
    short, words = differing_counts(
        (int(attempt.report.get("items") or 0), one.whole) for attempt, one in parts
    )
    return away + short, [*said, *words]


def accepted_of(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the accepted attempts, ordered by batch."""
    return sorted((a for a in attempts if a.state is AttemptState.ACCEPTED), key=lambda a: a.batch)


def fields_of(accepted: Iterable[Attempt]) -> list[str]:
    """Return the fields that the items of these attempts declare, in order."""
    return list(
        dict.fromkeys(
            str(name) for attempt in accepted for name in attempt.report.get("fields") or ()
        )
    )


def feeds_of(accepted: Sequence[Attempt], feed_url: str) -> dict[str, int]:
    """Return the URIs of the feeds that attempts without a part have written, each with its batch.

    A node with an items_dir also writes each job's items there; such a feed is left out if one at the feed URL exists.
    """
    found: dict[str, int] = {}
    for attempt in accepted:
        uris = [] if attempt.part else [str(uri) for uri in attempt.report.get("feeds", ())]
        found |= dict.fromkeys(
            [uri for uri in uris if belongs(uri, feed_url)] or uris, attempt.batch
        )
    return found


def own_parts(folder: Path) -> list[Path]:
    """Return the files of part 0 in a folder of parts, including those of earlier processes, ordered by shard."""
    # A crawl's name, and with it the names of its other parts, may also begin with this prefix.
    shards = {path: path.stem.removeprefix(OWN) for path in folder.glob(f"{OWN}*.jl")}
    return sorted(
        (path for path, shard in shards.items() if shard.isdecimal()),
        key=lambda path: int(shards[path]),
    )


def _write_misses(path: Path, misses: Sequence[Miss]) -> str | None:
    if not misses:
        path.unlink(missing_ok=True)
        return None
    path.write_text("".join(json.dumps(asdict(miss)) + "\n" for miss in misses), "utf-8")
    return str(path)
