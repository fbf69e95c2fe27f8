"""Makes output files, manifest and list of misses from a crawl's parts and feeds. Blocking."""

import ftplib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from scrapyd_dist.batches import Attempt, AttemptState, Miss
from scrapyd_dist.config import PARTS
from scrapyd_dist.items.added_items import AddedRanges
from scrapyd_dist.items.json_lines import FoundItem, Items, Runs, count_items, left_out
from scrapyd_dist.items.kept_parts import KeptParts, differing_counts
from scrapyd_dist.items.merging import (
    ItemOutput,
    ItemValues,
    UnwrittenItems,
    header_of,
    merge,
)

#: timeout of FTP connections in seconds
FTP_TIMEOUT = 30
FEEDS = "feeds"  #: the folder for copies of feeds in the crawl's folder
OWN = "own-"  #: file name prefix of part 0 (the producer's items), one file per shard
MISSES = "misses.jsonl"
MANIFEST = "manifest.json"


def read_back(
    uris: Iterable[str], template: str, folder: Path
) -> tuple[list[tuple[str, Path]], list[str]]:
    """Fetch the accepted feeds with the account of the project's feed URL (`template`).

    The URIs have no passwords. Gives pairs of URI and local path in order, copies below `folder`;
    and a warning for each feed that is not read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    warnings = []
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
                copy = _fetch_by_ftp(parts, urlsplit(template), folder / f"{index}.jl")
                copies.append((uri, copy))
            else:
                warnings.append(
                    f"{uri} is not merged: feeds of the kind {parts.scheme}:// are not read back"
                )
        except (OSError, EOFError, ValueError, ftplib.Error) as error:
            warnings.append(f"{uri} is not merged: it could not be read back ({error})")
    return copies, warnings


def belongs(uri: str, feed_url: str) -> bool:
    """Say whether a URI lies below the feed URL.

    Any other URI is neither opened nor given the password.
    """
    try:
        parts = urlsplit(uri)
        template = urlsplit(feed_url)
        is_same_server = _server(parts) == _server(template)
    except ValueError:  # invalid host or port
        return False
    # What follows the first placeholder varies by batch.
    folder, slash, _ = template.path.partition("%(")[0].rpartition("/")
    return (
        is_same_server and parts.path.startswith(folder + slash) and ".." not in unquote(parts.path)
    )


def _server(parts: SplitResult) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port; ValueError for a port that is none."""
    return parts.scheme or "file", parts.hostname, parts.port


def _fetch_by_ftp(parts: SplitResult, account: SplitResult, copy: Path) -> Path:
    with ftplib.FTP(timeout=FTP_TIMEOUT) as server:  # noqa: S321 - the user's choice of feed storage
        server.connect(parts.hostname or "", parts.port or 21)
        server.login(unquote(account.username or ""), unquote(account.password or ""))
        with copy.open("wb") as file:
            server.retrbinary(f"RETR {unquote(parts.path)}", file.write)
    return copy


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The files that a finished crawl has left."""

    items: int  #: items in the outputs, or reported if there are none
    outputs: tuple[str, ...]  #: paths
    misses: str | None  #: path of the list of URLs without a result, if there are any
    warnings: tuple[str, ...] = ()
    lost: int = 0  #: items that came home and are not there any more as they came
    more_columns: tuple[str, ...] = ()  #: those of new CSV files that the first item does not have


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

    Args:
        folder: the crawl's folder.
        own: the files of part 0.
        own_items: the items of the producer, which are in `own`.
        attempts: those of the crawl; only the accepted ones count.
        misses: the requests without a result.
        outputs: the files that the items are merged into.
        values: gives the items for CSV.
        write_feeds: writes other feeds than files, and returns how many items are not in them, with
            warnings; they come first, since what it raises is tried again.
        feed_url: the feed URL that batches wrote to, None if they wrote parts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merges = bool(outputs or write_feeds)
    accepted = accepted_of(attempts)
    out = left_out(accepted)
    feeds: dict[str, int] = {}
    copies: list[tuple[str, Path]] = []
    warnings: list[str] = []
    if feed_url is not None:
        feeds = feeds_of(accepted, feed_url)
        _write_manifest(folder / MANIFEST, feeds, out)
        if merges:
            copies, warnings = read_back(feeds, feed_url, folder / FEEDS)
    lost = 0
    more_columns: list[str] = []
    if merges:
        kept = KeptParts.found_in(folder / PARTS, accepted)
        found = _items_at_home(own, kept, copies, feeds, out)
        lost, problems = kept.losses(out)
        warnings += problems
        if write_feeds is not None:
            unwritten, problems = write_feeds(found)
            lost += unwritten
            warnings += problems
        tables = list(filter(_begins_table, outputs))
        not_written = UnwrittenItems()
        items = merge(found, outputs, fields_of(accepted), values, AddedRanges(folder), not_written)
        lost += not_written.total()
        warnings += not_written.sentences()
        missing, problems = _compared(found.found, own_items, len(own), kept)
        lost += missing
        warnings += problems
        more_columns = _columns_of_others(found, tables, fields_of(accepted))
    else:
        items = _reported_items(accepted, out)
    return Delivery(
        items=items,
        outputs=tuple(str(output.path) for output in outputs),
        misses=_write_misses(folder / MISSES, misses),
        warnings=tuple(warnings),
        lost=lost,
        more_columns=tuple(more_columns),
    )


def _begins_table(output: ItemOutput) -> bool:
    """Return whether an output is a CSV file that gets columns of its own."""
    return output.format == "csv" and (output.overwrite or not output.path.exists())


def _columns_of_others(
    items: Items, tables: Iterable[ItemOutput], declared: Iterable[str]
) -> list[str]:
    """Return the columns of new CSV files that neither the first item has nor a class."""
    first = dict.fromkeys(declared) or next(items.values(), {})
    names = dict[str, None]()
    for table in tables:
        names.update(dict.fromkeys(header_of(table.path)))
    return [name for name in names if name not in first]


def _write_manifest(path: Path, feeds: Mapping[str, int], out: Mapping[int, Runs]) -> None:
    """Write which feeds count, and which items in them do not."""
    replaced = {uri: out[batch] for uri, batch in feeds.items() if batch in out}
    document = {"schema": 1, "feeds": list(feeds), "replaced": replaced}
    path.write_text(json.dumps(document, indent=1), "utf-8")


def _items_at_home(
    own: Sequence[Path],
    kept: KeptParts,
    copies: Iterable[tuple[str, Path]],
    feeds: Mapping[str, int],
    out: Mapping[int, Runs],
) -> Items:
    """Return the items of all files: the producer's, then those of parts, then those of feeds.

    `copies` has URI and local path of each feed, `feeds` the batch of each URI.
    """
    paths = [*own]
    skip = {}
    for attempt in kept.whole:
        path = kept.folder / attempt.part
        paths.append(path)
        if attempt.batch in out:
            skip[path] = out[attempt.batch]
    for uri, path in copies:
        paths.append(path)
        if feeds[uri] in out:
            skip[path] = out[feeds[uri]]
    return Items(paths, unverified=own, skip=skip)


def _reported_items(accepted: Iterable[Attempt], out: Mapping[int, Runs]) -> int:
    """Return the number of items by the reports, without those that count no more."""
    items: int = 0
    for attempt in accepted:
        items += attempt.report.get("items", 0) - count_items(out.get(attempt.batch, ()))
    return items


def _compared(
    found: Sequence[FoundItem], own_items: int, own: int, kept: KeptParts
) -> tuple[int, list[str]]:
    """Return how many items fewer there are than were counted, and the sentences that say so.

    `found`: what is in all files; the first `own` ones have the producer's `own_items`, and those
    of `kept` follow.
    """
    sentences = []
    whole = 0
    bad = 0
    for file in found[:own]:
        whole += file.whole
        bad += file.bad
    away = max(own_items - whole, bad, 0)
    if away:
        sentences.append(
            f"{away:,} items are lost: those of the crawl's own pages are not in {kept.folder} any"
            " more, or are not whole. Only another crawl brings them."
        )
    counts = []
    for attempt, file in zip(kept.whole, found[own:], strict=False):
        reported = int(attempt.report.get("items") or 0)
        counts.append((reported, file.whole))
    short, words = differing_counts(counts)
    return away + short, [*sentences, *words]


def accepted_of(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the accepted attempts, ordered by batch."""
    accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
    return sorted(accepted, key=lambda attempt: attempt.batch)


def fields_of(accepted: Iterable[Attempt]) -> list[str]:
    """Return the fields that the items of these attempts declare, in order."""
    fields: dict[str, None] = {}
    for attempt in accepted:
        fields.update(dict.fromkeys(map(str, attempt.report.get("fields") or ())))
    return list(fields)


def feeds_of(accepted: Sequence[Attempt], feed_url: str) -> dict[str, int]:
    """Return the URIs of the feeds that attempts without a part have written, each with its batch.

    A node with an items_dir also writes each job's items there; such a feed is left out if one at
    the feed URL exists.
    """
    batches: dict[str, int] = {}
    for attempt in accepted:
        if attempt.part:
            continue
        uris = [str(uri) for uri in attempt.report.get("feeds", ())]
        at_feed_url = [uri for uri in uris if belongs(uri, feed_url)]
        batches |= dict.fromkeys(at_feed_url or uris, attempt.batch)
    return batches


def own_parts(folder: Path) -> list[Path]:
    """Return the files of part 0 in a folder of parts, ordered by shard.

    Those of earlier processes are among them.
    """
    shards = {}
    for path in folder.glob(f"{OWN}*.jl"):
        shard = path.stem.removeprefix(OWN)
        # A crawl's name, and with it the names of its other parts, may also begin with this prefix.
        if shard.isdecimal():
            shards[path] = int(shard)
    return sorted(shards, key=shards.__getitem__)


def _write_misses(path: Path, misses: Sequence[Miss]) -> str | None:
    if not misses:
        path.unlink(missing_ok=True)
        return None
    lines = [json.dumps(asdict(miss)) + "\n" for miss in misses]
    path.write_text("".join(lines), "utf-8")
    return str(path)
