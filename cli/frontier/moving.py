"""`sdist frontier move` and `isolate`: requests change their slots. Rule: each batch is one step; none is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum
from itertools import cycle
from typing import TYPE_CHECKING, Annotated

import typer

from scrapyd_dist.batches import OUT, WAITING, AttemptState, BatchState
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.frontier.filling import Found, pack
from scrapyd_dist.frontier.slotting import Slots
from scrapyd_dist.frontier.values import OTHER_SPIDER, NewBatch, check_slot_name

from ..choosing import Json
from .counting import slots_in
from .naming import FrontierName, check_own_slot, key_of, opened, requests_in, with_prefix
from .stepping import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.payload import RequestValue
    from scrapyd_dist.store import Store


class By(str, Enum):
    """What decides about a request's slot."""

    fingerprint = "fingerprint"
    domain = "domain"


def move(
    frontier: FrontierName,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Slots whose name begins like this are emptied.")],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="The slots that are filled are called DEST0, DEST1 …")],
    slots: Annotated[int, typer.Argument(metavar="N", min=1, help="How many slots are filled.")],
    by: Annotated[
        By, typer.Option(help="Spread requests by their fingerprint, or keep each site (fingerprint, domain) together.")
    ] = By.fingerprint,
    uniform: Annotated[
        bool, typer.Option("--uniform", help="Spread whole batches in turn: quick, and a site may be anywhere.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Move what waits in some slots of a frontier to others: split slots, or join them.

    Workers and producers may go on meanwhile. A batch is moved in one step, so
    nothing is lost or doubled when it is broken off, and the same command goes
    on. What a worker has is left, and told. Unless --uniform or N is 1, a batch
    is cut into one for each slot.

    Example: sdist frontier move shop p q 8 --by domain
    """
    from scrapyd_dist.config import load

    from ..crawls.words import counted
    from ..speaking import put_json, say

    check_own_slot(prefix)
    check_own_slot(dest)
    goal = Slots(prefix=dest, number=slots, by=by.value)
    root = load().root
    with opened(root, frontier) as (store, _):
        found = with_prefix(slots_in(store, frontier), frontier, prefix)
        names = {one.slot for one in found if not one.slot.startswith(OTHER_SPIDER)}
        batches = [one for one in store.batches(frontier, WAITING | OUT) if one.slot in names]
        cut = _in_turn(store, frontier, goal) if uniform else _cutter(store, root, frontier, goal)
        made = walk([one for one in batches if one.state in WAITING], cut, "moved")
    made.left += [one for one in batches if one.state in OUT]
    if as_json:
        put_json({"frontier": frontier, "to": goal.names(), **made.document()})
    else:
        what = f"{counted(made.requests, 'request')} of {counted(len(made.done), 'batch', 'batches')}"
        say(f"Moved {what} of {frontier} to {dest}0{f' … {dest}{slots - 1}' if slots > 1 else ''}.")
    made.complain()
    raise typer.Exit(made.exit_code)


def _in_turn(store: Store, frontier: str, goal: Slots) -> Callable[[Batch], None]:
    """Puts each batch as it is into the next slot."""
    turn = cycle(goal.names())

    def put(batch: Batch) -> None:
        _put(store, frontier, batch, next(turn))

    return put


def _put(store: Store, frontier: str, batch: Batch, slot: str) -> Batch:
    """The batch that has taken its place, in that slot."""
    payload = store.payload(frontier, batch.number)
    new = NewBatch(payload=payload, size=batch.size, slot=slot, priority=batch.priority)
    return store.split(frontier, batch.number, [new])[0]


def _cutter(store: Store, root: Path, frontier: str, goal: Slots) -> Callable[[Batch], None]:
    """Cuts a batch by the slots that its requests belong to."""
    key = key_of(root)

    def cut(batch: Batch) -> None:
        values = requests_in(store, root, frontier, batch)
        parts = in_slots(values, store.batch_fingerprints(frontier, batch.number), goal, batch.priority, key)
        if [part.slot for part in parts] != [batch.slot]:
            store.split(frontier, batch.number, parts)

    return cut


def in_slots(
    values: Sequence[RequestValue], prints: Sequence[bytes], goal: Slots, priority: int, key: bytes
) -> list[NewBatch]:
    """Requests as batches, one for each slot that some of them belong to.

    Args:
        values: the requests of one batch.
        prints: their fingerprints; none where the batch was sealed by a crawl, which keeps them elsewhere.
        goal: the slots.
        priority: that of the batch.
        key: the Fernet key for what must be hidden.
    """
    known = list(prints) if len(prints) == len(values) else [_stand_in(value) for value in values]
    found = [
        Found(value=value, fingerprint=one, slot=goal.of(value["url"], one), priority=priority)
        for value, one in zip(values, known, strict=True)
    ]
    parts = pack(found, size=len(found), key=key)
    return parts if known == list(prints) else [replace(part, fingerprints=()) for part in parts]


def _stand_in(value: RequestValue) -> bytes:
    """What stands for the fingerprint of a request that nobody knows it of: only its place depends on that."""
    return json.dumps(value, sort_keys=True).encode()


def isolate(
    frontier: FrontierName,
    batch: Annotated[int, typer.Argument(metavar="BATCH", help="Its number, as `sdist batches FRONTIER` shows it.")],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="The name of the slot that it is put into.")],
    as_json: Json = False,
) -> None:
    """Put one batch into a slot of its own, away from all others: one that harms its workers.

    One that waits or is dead can be isolated. It waits there, with as many
    attempts as a new one, and under a new number.

    Example: sdist frontier isolate shop 7 poison
    """
    from scrapyd_dist.config import load

    from ..speaking import put_json, say

    check_own_slot(dest)
    check_slot_name(dest)
    with opened(load().root, frontier) as (store, _):
        row = _movable(store, frontier, batch)
        new = _put(store, frontier, row, dest)
    if as_json:
        put_json({"frontier": frontier, "was": batch, "batch": new.number, "slot": dest, "requests": new.size})
    else:
        say(f"Batch {batch} of {frontier} is batch {new.number} in the slot {dest!r} now.")


def _movable(store: Store, frontier: str, number: int) -> Batch:
    """The batch of that number.

    Raises:
        NothingMatched: there is none.
        ConfigError: a worker has it, or it is over.
    """
    row = next((one for one in store.batches(frontier) if one.number == number), None)
    if row is None:
        raise NothingMatched(f"The frontier {frontier} has no batch {number}. `sdist batches {frontier}` lists all.")
    check_own_slot(row.slot)
    if row.state in OUT:
        raise ConfigError(
            f"Batch {number} of {frontier} cannot be moved now: {_holder(store, frontier, number)} has it. When that"
            " has ended it, or its lease has run out, say the same again."
        )
    if row.state not in {*WAITING, BatchState.DEAD}:
        raise ConfigError(f"Batch {number} of {frontier} is {row.state.value}: nothing of it waits any more.")
    return row


def _holder(store: Store, frontier: str, number: int) -> str:
    out = {AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACKED}
    attempts = [one for one in store.attempts(frontier, out) if one.batch == number]
    return f"the job {attempts[-1].worker or attempts[-1].job} on {attempts[-1].node}" if attempts else "a worker"
