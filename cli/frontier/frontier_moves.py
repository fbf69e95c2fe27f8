"""`sdist frontier move`: puts batches into other slots; one that a worker has is left as it is."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Annotated, Literal

from scrapyd_dist.batches import (
    OUT,
    WAITING,
    AttemptState,
    Batch,
    BatchState,
)
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.frontier_listing import filled_slots
from scrapyd_dist.fleet.project_store import key_of, requests_in
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, NewBatch, check_slot_name
from scrapyd_dist.frontier.packing import FrontierIntake, move_batch, pack
from scrapyd_dist.frontier.slots import SlotRule
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.settings import MOST_SLOTS
from scrapyd_dist.store import Store

from ..context import Context
from ..options import FrontierName, argument, option
from ..output import Output, say
from .batch_walk import batches_of, check_no_strategy, walk
from .frontier_list import check_own_slot, find_frontier, with_prefix


def move(
    context: Context,
    frontier: FrontierName,
    source: Annotated[
        str, argument("PREFIX", "Slots whose names begin so are emptied; with --batch: DEST.")
    ],
    dest: Annotated[
        str | None, argument("DEST", "The slots that are filled are called DEST0, DEST1 …")
    ] = None,
    slots: Annotated[
        int | None, argument("N", "How many slots are filled.", min=1, max=MOST_SLOTS)
    ] = None,
    by: Annotated[
        Literal["fingerprint", "domain"],
        option(
            "Spread requests by their fingerprint, or keep each site (fingerprint, domain) "
            "together.",
            metavar="KEY",
        ),
    ] = "fingerprint",
    uniform: Annotated[
        bool, option("Spread whole batches in turn: quick, and a site may be anywhere.")
    ] = False,
    batch: Annotated[
        int | None,
        option(
            "Move this one batch, waiting or dead, into the slot DEST, the only other argument.",
            metavar="NUMBER",
        ),
    ] = None,
    output: Output = Output(),
) -> int:
    """Move what waits in some slots of a frontier to others: split slots, join them, or put one \
batch away.

    Workers and producers may go on meanwhile. A batch is moved in one step, so
    nothing is lost or doubled when the command is interrupted, and the same
    command goes on. Batches that workers have are left, and listed. Unless
    --uniform or N is 1, a batch is cut into one for each slot.

    With --batch, a batch that harms its workers gets a slot of its own. It waits
    there under a new number, with as many attempts as a new one.

    Example: sdist frontier move shop p q 8 --by domain
    Example: sdist frontier move shop --batch 7 poison
    """  # noqa: D205  # the summary is one line of the help
    check_own_slot(source)
    if batch is not None:
        if dest is not None or uniform:
            raise ConfigError(
                "--batch moves one batch into one slot: sdist frontier move FRONTIER --batch "
                "NUMBER DEST. Leave out what belongs to moving whole slots."
            )
        _put_alone(context, frontier, batch, source, output)
        return 0
    if dest is None or slots is None:
        raise ConfigError(
            "Name the slots to empty, the slots to fill and how many: sdist frontier move FRONTIER "
            "PREFIX DEST N. For one batch: sdist frontier move FRONTIER --batch NUMBER DEST."
        )
    check_own_slot(dest)
    goal = SlotRule(prefix=dest, number=slots, by=by)
    return _move_slots(context, frontier, source, goal, uniform=uniform, output=output)


def _move_slots(
    context: Context, frontier: str, prefix: str, goal: SlotRule, *, uniform: bool, output: Output
) -> int:
    root = context.root
    store, whole = find_frontier(context, frontier)
    check_no_strategy(whole)
    slots = with_prefix(filled_slots(store.backlog(frontier)), frontier, prefix)
    names = {count.slot for count in slots if not count.slot.startswith(OTHER_SPIDER)}
    turn = cycle(goal.names())

    def cut(batch: Batch) -> None:
        """Put the requests of a batch into the slots that they belong to."""
        if uniform:  # each batch as it is into the next slot
            _put(store, frontier, batch, next(turn))
            return
        values = requests_in(store, root, frontier, batch)
        prints = store.batch_fingerprints(frontier, batch.number)
        parts = spread_over_slots(values, prints, goal, batch.priority, key_of(root))
        lies_there = len(parts) == 1 and parts[0].slot == batch.slot
        if not lies_there:
            store.split(frontier, batch.number, parts)

    made = walk(batches_of(store, frontier, names, WAITING | OUT), cut, "moved")
    filled = f"{goal.prefix}0"
    if goal.number > 1:
        filled += f" … {goal.prefix}{goal.number - 1}"
    requests, batches = made.words()
    return made.end(
        output,
        {"frontier": frontier, "to": goal.names()},
        f"Moved {requests} of {batches} of {frontier} to {filled}.",
    )


def _put(store: Store, frontier: str, batch: Batch, slot: str) -> Batch:
    """Return the batch that has taken its place, in that slot."""
    payload = store.payload(frontier, batch.number)
    return store.split(frontier, batch.number, [move_batch(batch, payload, slot)])[0]


def spread_over_slots(
    values: Sequence[RequestValue],
    prints: Sequence[bytes],
    goal: SlotRule,
    priority: int,
    key: bytes,
) -> list[NewBatch]:
    """Return requests of one batch as batches, one for each slot that some of them belong to.

    prints: their fingerprints; none where the batch was sealed by a crawl, which keeps them
    elsewhere. What stands for them then only decides the slot. key: the Fernet key for what must be
    hidden.
    """
    known = list(prints)
    if len(prints) != len(values):
        known = [json.dumps(value, sort_keys=True).encode() for value in values]
    requests = []
    for value, fingerprint in zip(values, known, strict=True):
        slot = goal.slot_for(value["url"], fingerprint)
        request = FrontierIntake(value=value, fingerprint=fingerprint, slot=slot, priority=priority)
        requests.append(request)
    parts = pack(requests, size=len(requests), key=key)
    if known == list(prints):
        return parts
    return [replace(part, fingerprints=()) for part in parts]


def _put_alone(context: Context, frontier: str, number: int, slot: str, output: Output) -> None:
    """Put one batch, waiting or dead, into a slot under a new number."""
    check_slot_name(slot)
    store, whole = find_frontier(context, frontier)
    check_no_strategy(whole)
    row = _movable_batch(store, frontier, number)
    new = _put(store, frontier, row, slot)
    document = {
        "frontier": frontier,
        "was": number,
        "batch": new.number,
        "slot": slot,
        "requests": new.size,
    }
    if not output.document(document):
        say(f"Batch {number} of {frontier} is batch {new.number} in the slot {slot!r} now.")


def _movable_batch(store: Store, frontier: str, number: int) -> Batch:
    """Return the batch of this number; an error where there is none that can be moved."""
    numbered = {batch.number: batch for batch in store.batches(frontier)}
    row = numbered.get(number)
    if row is None:
        raise NothingMatched(
            f"The frontier {frontier} has no batch {number}. `sdist crawls show {frontier} "
            "--batches` lists all."
        )
    check_own_slot(row.slot)
    if row.state in OUT:
        raise ConfigError(
            f"Batch {number} of {frontier} cannot be moved now: {_holder(store, frontier, number)} "
            "has it. When that has ended it, or its lease has run out, say the same again."
        )
    if row.state not in {*WAITING, BatchState.DEAD}:
        raise ConfigError(
            f"Batch {number} of {frontier} is {row.state.value}: nothing of it waits any more."
        )
    return row


def _holder(store: Store, frontier: str, number: int) -> str:
    """Return the job that has a batch now, in words."""
    out = {AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACKED}
    holder = "a worker"
    for attempt in store.attempts(frontier, out):
        if attempt.batch == number:
            holder = f"the job {attempt.worker or attempt.job} on {attempt.node}"
    return holder
