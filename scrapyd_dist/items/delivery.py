"""The end of a crawl: accepted parts and feeds become the outputs, the manifest and the list of misses. Blocking."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.batches import Attempt, AttemptState, Miss
from scrapyd_dist.items.collect import Output, merge
from scrapyd_dist.items.feeds import belongs, read_back
from scrapyd_dist.items.lines import Items
from scrapyd_dist.items.replaced import left_out, number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PARTS = "parts"  #: folder of parts, below the crawl's own
FEEDS = "feeds"  #: folder of copies of feeds, below the crawl's own
OWN = "own-"  #: how the files of part 0 begin, one for each shard
MISSES = "misses.jsonl"
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """What was written."""

    items: int
    outputs: tuple[str, ...]
    misses: str | None  #: path of the list of URLs without a result, if there are any
    warnings: tuple[str, ...] = ()


def deliver(
    folder: Path,
    *,
    own: Sequence[Path],
    attempts: Sequence[Attempt],
    misses: Sequence[Miss],
    outputs: Sequence[Output],
    feed_url: str | None,
) -> Delivered:
    """Write everything that a finished crawl leaves behind.

    Args:
        folder: the crawl's own, in the state folder.
        own: the files of part 0, the producer's items.
        attempts: all of the crawl; only accepted ones count.
        misses: URLs without a result.
        outputs: the merged files that were asked for.
        feed_url: where batches wrote, when they did not write parts.
    """
    accepted = accepted_of(attempts)
    parts = [*own, *(folder / PARTS / a.part for a in accepted if a.part)]
    out = left_out(accepted)
    skip = {folder / PARTS / a.part: out[a.batch] for a in accepted if a.part and a.batch in out}
    warnings: list[str] = []
    if feed_url is not None:
        feeds = feeds_of(accepted, feed_url)
        in_feeds = {
            uri: runs
            for attempt in accepted
            for uri in feeds_of([attempt], feed_url)
            if (runs := out.get(attempt.batch))
        }
        document = {"schema": 1, "feeds": feeds, "replaced": in_feeds}
        (folder / MANIFEST).write_text(json.dumps(document, indent=1), "utf-8")
        copies, warnings = read_back(feeds, feed_url, folder / FEEDS) if outputs else ([], [])
        parts += [path for _, path in copies]
        skip |= {path: in_feeds[uri] for uri, path in copies if uri in in_feeds}
    if outputs:
        items = merge(Items(parts, skip=skip), outputs)
    else:
        items = sum(a.report.get("items", 0) - number(out.get(a.batch, ())) for a in accepted)
    return Delivered(
        items=items,
        outputs=tuple(str(output.path) for output in outputs),
        misses=_write_misses(folder / MISSES, misses),
        warnings=tuple(warnings),
    )


def accepted_of(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts whose items count, in the order of their batches."""
    return sorted((a for a in attempts if a.state is AttemptState.ACCEPTED), key=lambda a: a.batch)


def feeds_of(accepted: Sequence[Attempt], feed_url: str) -> list[str]:
    """Where these attempts wrote, of those that wrote to the feed URL and not into parts.

    A node with an items_dir writes each job's items there as well: such a feed is left out beside one that belongs.
    """
    found = []
    for attempt in accepted:
        uris = [] if attempt.part else [str(uri) for uri in attempt.report.get("feeds", ())]
        found += [uri for uri in uris if belongs(uri, feed_url)] or uris
    return found


def own_parts(folder: Path) -> list[Path]:
    """The files of part 0 in a folder of parts, those of earlier processes too, in the order of their shards."""
    # The name of a crawl, and so those of its other parts, may begin in the same way.
    shards = {path: path.stem.removeprefix(OWN) for path in folder.glob(f"{OWN}*.jl")}
    return sorted((path for path, shard in shards.items() if shard.isdecimal()), key=lambda path: int(shards[path]))


def _write_misses(path: Path, misses: Sequence[Miss]) -> str | None:
    if not misses:
        path.unlink(missing_ok=True)
        return None
    rows = ({"url": m.url, "kind": m.kind, "reason": m.reason, "batch": m.batch} for m in misses)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)
