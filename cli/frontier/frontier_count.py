"""`sdist frontier count` and `dump`: how much lies in the slots, and what. Rule: looking changes nothing."""

from __future__ import annotations

import json
import sys
from heapq import nlargest
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import SlotCount

from ..output import put, put_json, say
from ..project_store import requests_in
from ..selectors import Json
from ..tables import table
from .frontier_names import FrontierName, Prefix, matching, opened, slot_of, with_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.payload import RequestValue
    from scrapyd_dist.store import Store

#: slots that are shown on a terminal, at most: where each site has one there are thousands
SCREEN = 50
#: what requests of a slot can be -> the states of their batches
KINDS = {
    "waiting": ("sealed", "failed"),
    "leased": ("sent", "running"),
    "done": ("done",),
    "dead": ("dead",),
}


def requests_of(count: SlotCount) -> dict[str, int]:
    """Kind, one of `KINDS` -> requests of a slot."""
    return {kind: sum(count.requests.get(state, 0) for state in states) for kind, states in KINDS.items()}


def batches_of(count: SlotCount) -> dict[str, int]:
    """Kind, one of `KINDS` -> batches of a slot."""
    return {kind: sum(count.batches.get(state, 0) for state in states) for kind, states in KINDS.items()}


def slots_in(store: Store, frontier: str) -> list[SlotCount]:
    """The slots that have something; what was only cut there, and lies elsewhere now, is nothing."""
    return [one for one in store.slots(frontier) if any(batches_of(one).values())]


def total_of(counts: Sequence[SlotCount]) -> dict[str, int]:
    """Kind -> requests of all these slots."""
    rows = [requests_of(count) for count in counts]
    return {kind: sum(row[kind] for row in rows) for kind in KINDS}


def count(
    frontier: FrontierName,
    prefix: Prefix = None,
    regex: Annotated[
        Optional[str], typer.Option(metavar="R", help="Only slots whose whole name this regular expression fits.")
    ] = None,
    num_slots: Annotated[
        Optional[int], typer.Option(metavar="N", min=1, help="The slots P0 to P(N-1), with zeros where there is none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Count the requests in each slot of a frontier, by what became of them.

    Waiting requests are not leased by any worker. It takes the same time however
    much is stored. The name of a crawl works as well.

    Example: sdist frontier count shop --prefix p
    """
    if regex is not None and (prefix is not None or num_slots is not None):
        raise ConfigError("--regex stands alone: leave --prefix and --num-slots out, or write them into it.")
    with opened(load().root, frontier) as (store, _):
        counts = _chosen(slots_in(store, frontier), frontier, prefix, regex, num_slots)
    total, filled = total_of(counts), sum(one.waiting > 0 for one in counts)
    if as_json:
        put_json({
            "frontier": frontier,
            "slots": [slot_document(one) for one in counts],
            "requests": total,
            "not_empty": filled,
        })  # fmt: skip
        return
    shown = fullest(counts) if sys.stdout.isatty() else counts
    rows = [(one.slot, *requests_of(one).values()) for one in shown]
    table(("slot", *KINDS), [*rows, ("total", *total.values())])
    if len(shown) < len(counts):
        left = len(counts) - len(shown)
        say(f"The {len(shown)} with the most to do; and {left:,} more (--prefix, --regex, or a pipe shows them).")
    say(f"{filled:,} of {len(counts):,} slots have requests that wait.")


def fullest(counts: Sequence[SlotCount]) -> Sequence[SlotCount]:
    """As many as a screen has room for, those with the most to do first; all of them in their order when they fit."""
    if len(counts) <= SCREEN:
        return counts
    return nlargest(SCREEN, counts, key=lambda one: (one.waiting, requests_of(one)["leased"]))


def slot_document(count: SlotCount) -> dict[str, Any]:
    """A slot in JSON."""
    return {"slot": count.slot, "requests": requests_of(count), "batches": batches_of(count)}


def _chosen(
    counts: Sequence[SlotCount], frontier: str, prefix: str | None, regex: str | None, number: int | None
) -> list[SlotCount]:
    if regex is not None:
        return matching(counts, frontier, regex)
    if number is not None:
        known = {one.slot: one for one in counts}
        names = [f"{prefix or ''}{at}" for at in range(number)]
        return [known.get(name) or SlotCount(slot=name) for name in names]
    return with_prefix(counts, frontier, prefix) if prefix is not None else list(counts)


def dump(
    frontier: FrontierName,
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="The slot's name; '' is the one without a name.")],
    num_requests: Annotated[int, typer.Option(metavar="N", min=1, help="Requests to print, at most.")] = 100,
    as_json: Json = False,
) -> None:
    """Print the requests of a slot that are leased next, and leave them there.

    A line of JSON for each; `sdist frontier add --format jsonl` reads them.
    What is encrypted in the store is shown: cookies and passwords, too.

    Example: sdist frontier dump shop p0 --num-requests 10
    """
    root = load().root
    with opened(root, frontier) as (store, _):
        slot_of(slots_in(store, frontier), frontier, slot)
        found = list(_next(store, root, frontier, slot, num_requests))
    if as_json:
        batches = [{"batch": one.number, "priority": one.priority, "requests": values} for one, values in found]
        put_json({"frontier": frontier, "slot": slot, "batches": batches})
        return
    for _, values in found:
        for value in values:
            put(json.dumps(value, ensure_ascii=False))
    if not found:
        say(f"Nothing waits in the slot {slot!r} of {frontier}.")


def _next(store: Store, root: Path, frontier: str, slot: str, most: int) -> Iterator[tuple[Batch, list[RequestValue]]]:
    left = most
    for batch in store.peek(frontier, slot, most):
        values = requests_in(store, root, frontier, batch)[:left]
        yield batch, values
        left -= len(values)
        if left <= 0:
            return
