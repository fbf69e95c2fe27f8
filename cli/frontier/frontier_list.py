"""`sdist frontier list`, `count` and `dump`: what waits where; and how a frontier and its slots are found by name."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Annotated, Any

from scrapyd_dist.batches import Crawl, check_crawl_name
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, Backlog, SlotCount
from scrapyd_dist.frontier.intake import has_strategy
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import MISSED, labels_of, number, told
from scrapyd_dist.settings import MOST_SLOTS, nearest
from scrapyd_dist.store import Store

from ..context import Context, requests_in
from ..crawls import wording
from ..crawls.producer_process import lives
from ..options import FrontierName, OnlyLabels, argument, frontiers, has_labels, option
from ..output import Listing, Output, put, say, some_of, table

if TYPE_CHECKING:
    from scrapy.settings import Settings

Prefix = Annotated[str | None, option("Only slots whose name begins like this.", metavar="P")]


def opened(context: Context, name: str) -> tuple[Store, Crawl]:
    """The project's store and a frontier in it; a crawl is one as well. NothingMatched where there is none."""
    check_crawl_name(name, "frontier")
    store = context.store_if_any
    how = "`sdist frontier add FRONTIER FILE` makes one, and so does a producer's first write."
    if store is None:
        raise NothingMatched(
            f"There is no frontier {name}, and nothing else in {context.root} yet. {how}"
        )
    rows = {crawl.id: crawl for crawl in store.crawls()}
    if name in rows:
        return store, rows[name]
    there = some_of([crawl.id for crawl in rows.values() if crawl.kind == "frontier"]) or "none"
    raise NothingMatched(
        f"There is no frontier {name}.{nearest(name, rows, 0.6)} The frontiers are: {there}. {how}"
    )


def with_prefix(counts: Sequence[SlotCount], frontier: str, prefix: str) -> list[SlotCount]:
    """The slots whose names begin so; NothingMatched where there is none."""
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
            f"{name!r} names slots of other spiders: the name says which spider crawls what lies there, so their"
            " requests cannot be moved from or to them."
        )


def settings_of(ours: Mapping[str, Any]) -> "Settings":
    """The project's settings, with ours on top of them; its code runs in this process."""
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
    if frontier is not None:
        if all_:
            raise ConfigError(f"--all, and the frontier {frontier}: one of the two has to go.")
        store, row = opened(context, frontier)
        entries = [_Entry(store, row)]
    else:
        found = context.store_if_any
        entries = (
            []
            if found is None
            else [
                _Entry(found, row)
                for row in found.crawls()
                if row.kind == "frontier" and has_labels(labels_of(row), label)
            ]
        )
    if output.rows({"frontiers": [entry.document() for entry in entries]}, "frontiers", "frontier"):
        return
    if frontier is not None:
        for count in entries[0].counts:
            put(count.slot)
    elif not entries:
        say("There are no frontiers yet. `sdist frontier add FRONTIER FILE` makes one.")
    elif all_:
        rows = [
            (entry.row.id, count.slot, count.waiting) for entry in entries for count in entry.counts
        ]
        table(("frontier", "slot", "waiting"), rows)
    else:
        headings = ("frontier", "state", "slots", *KINDS, "producers", "manager")
        table(headings, [entry.cells() for entry in entries])
        for entry in entries:
            if entry.backlog.lost:
                say(
                    f"{entry.row.id}: not heard of any more, and not signed off: {', '.join(entry.backlog.lost)}."
                )


#: what requests of a slot can be -> the states of their batches
KINDS = {
    "waiting": ("sealed", "failed"),
    "leased": ("sent", "running"),
    "done": ("done",),
    "dead": ("dead",),
}


def by_kind(states: Mapping[str, int]) -> dict[str, int]:
    """Kind, one of `KINDS` -> number, of the numbers by the state of the batch."""
    return {kind: sum(states.get(state, 0) for state in its) for kind, its in KINDS.items()}


def batches_in(counts: Sequence[SlotCount]) -> int:
    """Batches of all these slots; what was only cut there, and lies elsewhere now, is none."""
    return sum(sum(by_kind(count.batches).values()) for count in counts)


def slots_in(backlog: Backlog) -> list[SlotCount]:
    """The slots that have something."""
    return [one for one in backlog.slots if batches_in([one])]


def total_of(counts: Sequence[SlotCount]) -> dict[str, int]:
    """Kind -> requests of all these slots."""
    rows = [by_kind(count.requests) for count in counts]
    return {kind: sum(row[kind] for row in rows) for kind in KINDS}


def slot_document(count: SlotCount) -> dict[str, Any]:
    return {
        "slot": count.slot,
        "requests": by_kind(count.requests),
        "batches": by_kind(count.batches),
    }


class _Entry:
    """One frontier as it stands now."""

    def __init__(self, store: Store, row: Crawl) -> None:
        self.row = row
        self.backlog: Backlog = store.backlog(row.id)
        self.counts: list[SlotCount] = slots_in(self.backlog)

    @property
    def state(self) -> str:
        if self.row.standing:
            return "standing"
        if self.backlog.incomplete:
            return "incomplete"
        return "finished" if self.backlog.finished else "open"

    @property
    def manager(self) -> str:
        """The process that keeps workers running here; empty if there is none."""
        return f"process {self.row.pid} on {self.row.host}" if lives(self.row) else ""

    def cells(self) -> tuple[object, ...]:
        return (
            self.row.id,
            self.state,
            len(self.counts),
            *total_of(self.counts).values(),
            len(self.backlog.producers),
            self.manager,
        )

    def document(self) -> dict[str, Any]:
        return {
            "frontier": self.row.id,
            "state": self.state,
            "labels": [*labels_of(self.row)],
            "created": self.row.created,
            "requests": total_of(self.counts),
            "slots": [slot_document(count) for count in self.counts],
            "producers": list(self.backlog.producers),
            "lost_producers": list(self.backlog.lost),
            "manager": self.manager or None,
        }


def status(store: Store, row: Crawl, output: Output) -> None:
    """Say how a frontier stands, and what its workers have done."""
    entry = _Entry(store, row)
    if output.document({**told(row), **entry.document()}):
        return
    requests = " · ".join(f"{number:,} {kind}" for kind, number in total_of(entry.counts).items())
    put(f"{row.id}: {entry.state} · {counted(len(entry.counts), 'slot')} · {requests}")
    if entry.manager:
        for line in wording.standing(row):
            put(line)
    elif row.summary and row.state.ended:
        for line in wording.closing(row):
            put(line)
    else:
        how = (
            "`sdist strategy run`"
            if has_strategy(row)
            else f"`sdist frontier consume SPIDER {row.id}`"
        )
        put(row.message or f"No workers are kept running here; {how} does that.")


#: slots that are shown on a terminal, at most: where each site has one there are thousands
SCREEN = 50


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
    store, row = opened(context, frontier)
    counts = slots_in(store.backlog(frontier))
    if regex is not None:
        counts = _matching(counts, frontier, regex)
    elif num_slots is not None:
        known = {one.slot: one for one in counts}
        names = [f"{prefix or ''}{at}" for at in range(num_slots)]
        counts = [known.get(name) or SlotCount(slot=name) for name in names]
    elif prefix is not None:
        counts = with_prefix(counts, frontier, prefix)
    total, filled = total_of(counts), sum(one.waiting > 0 for one in counts)
    slots = [slot_document(one) for one in counts]
    if output.document(
        {"frontier": frontier, "slots": slots, "requests": total, "not_empty": filled}
    ):
        return
    shown = fullest(counts) if sys.stdout.isatty() else counts
    rows = [(one.slot, *by_kind(one.requests).values()) for one in shown]
    table(("slot", *KINDS), [*rows, ("total", *total.values())])
    if len(shown) < len(counts):
        left = len(counts) - len(shown)
        say(
            f"The {len(shown)} with the most to do; and {left:,} more (--prefix, --regex, or a pipe shows them)."
        )
    say(f"{filled:,} of {counted(len(counts), 'slot has', 'slots have')} requests that wait.")
    if missed := sum(number(row.summary, MISSED[kind]) for kind in ("gone", "failed", "dead")):
        what = "request has" if missed == 1 else "requests have"
        say(
            f"When it was last worked on, {missed:,} {what} no result: sdist crawls misses {frontier}"
        )


def _matching(counts: Sequence[SlotCount], frontier: str, pattern: str) -> list[SlotCount]:
    """The slots whose names a regular expression fits, as a whole."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--regex {pattern!r} is no regular expression: {error}.") from None
    found = [count for count in counts if wanted.fullmatch(count.slot)]
    if not found:
        raise _no_slot(f"No slot of the frontier {frontier} fits {pattern!r}.", counts)
    return found


def fullest(counts: Sequence[SlotCount]) -> Sequence[SlotCount]:
    """As many as a screen has room for, those with the most to do first; all of them in their order when they fit."""
    if len(counts) <= SCREEN:
        return counts
    return nlargest(SCREEN, counts, key=lambda one: (one.waiting, by_kind(one.requests)["leased"]))


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
    store, _ = opened(context, frontier)
    counts = slots_in(store.backlog(frontier))
    names = [count.slot for count in counts]
    if slot not in names:
        raise _no_slot(
            f"The frontier {frontier} has no slot {slot!r}.{nearest(slot, names, 0.6)}", counts
        )
    batches, left = list[dict[str, Any]](), num_requests
    for batch in store.peek(frontier, slot, num_requests):
        values = requests_in(store, context.root, frontier, batch)[:left]
        batches.append({"batch": batch.number, "priority": batch.priority, "requests": values})
        left -= len(values)
        if left <= 0:
            break
    if output.document({"frontier": frontier, "slot": slot, "batches": batches}):
        return
    for one in batches:
        for value in one["requests"]:
            put(json.dumps(value, ensure_ascii=False))
    if not batches:
        say(f"Nothing waits in the slot {slot!r} of {frontier}.")
