"""`sdist frontier list`, `count` and `dump`: what waits where, in which frontier and slot."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Annotated, Any

from scrapyd_dist.batches import Crawl, check_crawl_name
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.frontier_listing import (
    HEADINGS,
    KINDS,
    FrontierEntry,
    by_kind,
    filled_slots,
    list_frontiers,
    slot_document,
    total_of,
)
from scrapyd_dist.fleet.project_store import requests_in
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, SlotCount
from scrapyd_dist.frontier.intake import has_strategy
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.progress.summary_document import (
    MISSED,
    count_in,
)
from scrapyd_dist.settings import MOST_SLOTS
from scrapyd_dist.store import Store

from ..context import Context
from ..crawls import wording
from ..options import FrontierName, OnlyLabels, argument, frontiers, option
from ..output import Listing, Output, put, put_text, say, table

if TYPE_CHECKING:
    from scrapy.settings import Settings

#: slots that are shown on a terminal, at most: where each site has one there are thousands
SCREEN = 50
Prefix = Annotated[str | None, option("Only slots whose name begins like this.", metavar="P")]


def find_frontier(context: Context, name: str) -> tuple[Store, Crawl]:
    """Return the project's store and a frontier in it; a crawl is one as well.

    NothingMatched where there is none.
    """
    check_crawl_name(name, "frontier")
    store = context.store_if_any
    how = "`sdist frontier add FRONTIER FILE` makes one, and so does a producer's first write."
    if store is None:
        raise NothingMatched(
            f"There is no frontier {name}, and nothing else in {context.root} yet. {how}"
        )
    names = []
    frontier_names = []
    for crawl in store.crawls():
        if crawl.id == name:
            return store, crawl
        names.append(crawl.id)
        if crawl.kind == "frontier":
            frontier_names.append(crawl.id)
    raise NothingMatched(
        f"There is no frontier {name}.{did_you_mean(name, names)} The frontiers are: "
        f"{some_of(frontier_names) or 'none'}. {how}"
    )


def with_prefix(counts: Sequence[SlotCount], frontier: str, prefix: str) -> list[SlotCount]:
    """Return the slots whose names begin so; NothingMatched where there is none."""
    found = [count for count in counts if count.slot.startswith(prefix)]
    if not found:
        raise _no_slot(
            f"The frontier {frontier} has no slot whose name begins with {prefix!r}.", counts
        )
    return found


def _no_slot(text: str, counts: Sequence[SlotCount]) -> NothingMatched:
    names = [count.slot or "'' (the slot without a name)" for count in counts]
    return NothingMatched(f"{text} Its slots are: {some_of(names) or 'none'}.")


def check_own_slot(name: str) -> None:
    """Refuse slots of other spiders, because their names say which spider crawls them."""
    if name.startswith(OTHER_SPIDER):
        raise ConfigError(
            f"{name!r} names slots of other spiders: the name says which spider crawls what lies "
            "there, so their requests cannot be moved from or to them."
        )


def settings_of(ours: Mapping[str, Any]) -> "Settings":
    """Return the project's settings, with ours on top of them; its code runs in this process."""
    from scrapyd_dist.middlewares.producer.process import project_code, project_settings

    with project_code():
        return project_settings(ours)


def list_(
    context: Context,
    frontier: Annotated[
        str | None, argument("FRONTIER", "Only the slots of this one.", frontiers)
    ] = None,
    all_: Annotated[bool, option("The slots of all frontiers.")] = False,
    label: OnlyLabels = None,
    output: Listing = Listing(),
) -> None:
    """List the frontiers of this project; or the slots of one, or of all.

    A frontier is open while it may still be filled or crawled, standing when it
    waits for more for ever, and finished when nothing will come any more. It is
    incomplete when all that came is done, and a producer was lost before it was
    through.

    Example: sdist frontier list
    """
    if frontier is None:
        entries = list_frontiers(context.store_if_any, label)
    elif all_:
        raise ConfigError(f"--all, and the frontier {frontier}: one of the two has to go.")
    else:
        store, row = find_frontier(context, frontier)
        entries = [FrontierEntry(store, row)]
    documents = list(map(FrontierEntry.document, entries))
    if output.rows({"frontiers": documents}, "frontiers", "frontier"):
        return
    if frontier is not None:
        for count in entries[0].counts:
            put(count.slot)
    elif not entries:
        say("There are no frontiers yet. `sdist frontier add FRONTIER FILE` makes one.")
    elif all_:
        _show_slots(entries)
    else:
        _show_frontiers(entries)


def _show_slots(entries: Sequence["FrontierEntry"]) -> None:
    rows: list[tuple[object, ...]] = []
    for entry in entries:
        rows += [(entry.row.id, count.slot, count.waiting) for count in entry.counts]
    table(("frontier", "slot", "waiting"), rows)


def _show_frontiers(entries: Sequence["FrontierEntry"]) -> None:
    table(HEADINGS, list(map(FrontierEntry.cells, entries)))
    for entry in entries:
        if entry.backlog.lost:
            say(
                f"{entry.row.id}: not heard of any more, and not signed off: "
                f"{', '.join(entry.backlog.lost)}."
            )


def status(store: Store, row: Crawl, output: Output) -> None:
    """Say how a frontier stands, and what its workers have done."""
    entry = FrontierEntry(store, row)
    if output.document(entry.describe_standing()):
        return
    pieces = [entry.state, counted(len(entry.counts), "slot")]
    pieces += [f"{number:,} {kind}" for kind, number in total_of(entry.counts).items()]
    put(f"{row.id}: {' · '.join(pieces)}")
    if entry.manager:
        for line in wording.standing(row):
            put_text(line)
    elif row.summary and row.state.ended:
        for line in wording.closing(row):
            put_text(line)
    else:
        how = f"`sdist frontier consume SPIDER {row.id}`"
        if has_strategy(row):
            how = "`sdist strategy run`"
        put_text(row.message or f"No workers are kept running here; {how} does that.")


def count(
    context: Context,
    frontier: FrontierName,
    prefix: Prefix = None,
    regex: Annotated[
        str | None, option("Only slots whose whole name fits this regex.", metavar="R")
    ] = None,
    num_slots: Annotated[
        int | None,
        option(
            "The slots P0 to P(N-1), with zeros where there is none.",
            metavar="N",
            min=1,
            max=MOST_SLOTS,
        ),
    ] = None,
    output: Output = Output(),
) -> None:
    """Count the requests in each slot of a frontier, by what became of them.

    Waiting requests are not leased by any worker. It takes the same time however
    much is stored. The name of a crawl works as well.

    Example: sdist frontier count shop --prefix p
    """
    if regex is not None and (prefix is not None or num_slots is not None):
        raise ConfigError(
            "--regex stands alone: leave --prefix and --num-slots out, or write them into it."
        )
    store, row = find_frontier(context, frontier)
    counts = filled_slots(store.backlog(frontier))
    if regex is not None:
        counts = _matching(counts, frontier, regex)
    elif num_slots is not None:
        counts = _numbered(counts, prefix or "", num_slots)
    elif prefix is not None:
        counts = with_prefix(counts, frontier, prefix)
    filled = sum(count.waiting > 0 for count in counts)
    document = {
        "frontier": frontier,
        "slots": list(map(slot_document, counts)),
        "requests": total_of(counts),
        "not_empty": filled,
    }
    if not output.document(document):
        _show_counts(counts)
        say(f"{filled:,} of {counted(len(counts), 'slot has', 'slots have')} requests that wait.")
        _say_missed(row)


def _numbered(counts: Sequence[SlotCount], prefix: str, number: int) -> list[SlotCount]:
    """Return the slots with this prefix and the numbers from 0 on, also those without anything."""
    known = {count.slot: count for count in counts}
    found = []
    for at in range(number):
        name = f"{prefix}{at}"
        found.append(known.get(name) or SlotCount(slot=name))
    return found


def _show_counts(counts: Sequence[SlotCount]) -> None:
    shown = fullest(counts) if sys.stdout.isatty() else counts
    rows = [(count.slot, *by_kind(count.requests).values()) for count in shown]
    rows.append(("total", *total_of(counts).values()))
    table(("slot", *KINDS), rows)
    if len(shown) < len(counts):
        left = len(counts) - len(shown)
        say(
            f"The {len(shown)} with the most to do; and {left:,} more (--prefix, --regex, or a "
            "pipe shows them)."
        )


def _say_missed(row: Crawl) -> None:
    missed = 0
    for kind in ("gone", "failed", "dead"):
        missed += count_in(row.summary, MISSED[kind])
    if missed:
        requests = "request has" if missed == 1 else "requests have"
        say(
            f"When it was last worked on, {missed:,} {requests} no result: sdist crawls show "
            f"{row.id} --misses"
        )


def _matching(counts: Sequence[SlotCount], frontier: str, pattern: str) -> list[SlotCount]:
    """Return the slots whose names a regular expression fits, as a whole."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--regex {pattern!r} is no regular expression: {error}.") from None
    found = [count for count in counts if wanted.fullmatch(count.slot)]
    if not found:
        raise _no_slot(f"No slot of the frontier {frontier} fits {pattern!r}.", counts)
    return found


def fullest(counts: Sequence[SlotCount]) -> Sequence[SlotCount]:
    """Return as many as a screen has room for, those with the most to do first.

    All of them in their order when they fit.
    """
    if len(counts) <= SCREEN:
        return counts
    return nlargest(SCREEN, counts, key=_work_in)


def _work_in(count: SlotCount) -> tuple[int, int]:
    return count.waiting, by_kind(count.requests)["leased"]


def dump(
    context: Context,
    frontier: FrontierName,
    slot: Annotated[str, argument("SLOT", "The slot's name; '' is the one without a name.")],
    num_requests: Annotated[int, option("Requests to print, at most.", metavar="N", min=1)] = 100,
    output: Output = Output(),
) -> None:
    """Print the requests of a slot that are leased next, and leave them there.

    A line of JSON for each; `sdist frontier add --format jsonl` reads them.
    What is encrypted in the store is shown: cookies and passwords, too.

    Example: sdist frontier dump shop p0 --num-requests 10
    """
    store, _ = find_frontier(context, frontier)
    counts = filled_slots(store.backlog(frontier))
    names = [count.slot for count in counts]
    if slot not in names:
        raise _no_slot(
            f"The frontier {frontier} has no slot {slot!r}.{did_you_mean(slot, names)}", counts
        )
    documents: list[dict[str, Any]] = []
    left = num_requests
    for batch in store.peek(frontier, slot, num_requests):
        values = requests_in(store, context.root, frontier, batch)[:left]
        documents.append({"batch": batch.number, "priority": batch.priority, "requests": values})
        left -= len(values)
        if left <= 0:
            break
    if output.document({"frontier": frontier, "slot": slot, "batches": documents}):
        return
    for document in documents:
        for value in document["requests"]:
            put(json.dumps(value, ensure_ascii=False))
    if not documents:
        say(f"Nothing waits in the slot {slot!r} of {frontier}.")
