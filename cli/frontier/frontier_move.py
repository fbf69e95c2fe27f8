"""`sdist frontier move`: requests change their slots, batch by batch; each step is atomic."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import cycle
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.batches import OUT, WAITING, AttemptState, BatchState
from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError, NothingMatched, StepRefused
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, NewBatch, check_slot_name
from scrapyd_dist.frontier.intake import FrontierIntake, pack
from scrapyd_dist.frontier.slots import SlotRule

from ..crawls.watcher import looked_out_for
from ..crawls.wording import counted
from ..output import put_json, say
from ..project_store import key_of, requests_in
from ..selectors import Json
from .frontier_count import slots_in
from .frontier_names import FrontierName, check_own_slot, opened, with_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.payload import RequestValue
    from scrapyd_dist.store import Store

#: seconds between two lines about how far it is
TELL = 10.0


#: batches that are named where they were left
SHOWN = 5


#: exit codes: some batches were left; interrupted
PARTIAL, INTERRUPTED = 3, 130


@dataclass(kw_only=True)
class BatchWalk:
    """What became of the batches."""

    total: int
    done: list[Batch] = field(default_factory=list)
    left: list[Batch] = field(default_factory=list)  #: that workers have
    interrupted: bool = False

    @property
    def requests(self) -> int:
        """In those that are done."""
        return sum(batch.size for batch in self.done)

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.interrupted else PARTIAL if self.left else 0

    def document(self) -> dict[str, Any]:
        """The same in JSON."""
        return {
            "batches": len(self.done),
            "requests": self.requests,
            "left": [batch.number for batch in self.left],
            "interrupted": self.interrupted,
        }

    def complain(self) -> None:
        """Say what was not done."""
        if self.left:
            named = ", ".join(str(batch.number) for batch in self.left[:SHOWN])
            more = f" and {len(self.left) - SHOWN:,} more" if len(self.left) > SHOWN else ""
            say(f"Left as they are, because workers have them now: batch {named}{more}. Say the same again later.")
        if self.interrupted:
            say(f"Interrupted after {len(self.done):,} of {self.total:,} batches; the same command goes on.")


def walk(batches: Sequence[Batch], step: Callable[[Batch], None], doing: str) -> BatchWalk:
    """Do it to one batch after the other.

    Args:
        batches: all of them.
        step: what is done to one, in one step of the store; `StepRefused` where a worker has it.
        doing: what is done, as a word: deleted.
    """
    made, told = BatchWalk(total=len(batches)), time.monotonic()
    with looked_out_for() as ctrl_c:
        for batch in batches:
            try:
                ctrl_c.pause(0)
            except KeyboardInterrupt:
                made.interrupted = True
                return made
            try:
                step(batch)
            except (StepRefused, NothingMatched):  # a worker was faster, or has ended it meanwhile
                made.left.append(batch)
            else:
                made.done.append(batch)
            if time.monotonic() - told >= TELL:
                told = time.monotonic()
                say(f"{len(made.done):,} of {made.total:,} batches {doing}")
    return made


class By(str, Enum):
    """What decides about a request's slot."""

    fingerprint = "fingerprint"
    domain = "domain"


def move(
    frontier: FrontierName,
    source: Annotated[
        str,
        typer.Argument(metavar="PREFIX", help="Slots whose names begin so are emptied; with --batch: DEST."),
    ],
    dest: Annotated[
        Optional[str], typer.Argument(metavar="DEST", help="The slots that are filled are called DEST0, DEST1 …")
    ] = None,
    slots: Annotated[Optional[int], typer.Argument(metavar="N", min=1, help="How many slots are filled.")] = None,
    by: Annotated[
        By, typer.Option(help="Spread requests by their fingerprint, or keep each site (fingerprint, domain) together.")
    ] = By.fingerprint,
    uniform: Annotated[
        bool, typer.Option("--uniform", help="Spread whole batches in turn: quick, and a site may be anywhere.")
    ] = False,
    batch: Annotated[
        Optional[int],
        typer.Option(
            "--batch",
            metavar="NUMBER",
            help="Move this one batch, waiting or dead, into the slot DEST, the only other argument.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Move what waits in some slots of a frontier to others: split slots, join them, or put one batch away.

    Workers and producers may go on meanwhile. A batch is moved in one step, so
    nothing is lost or doubled when the command is interrupted, and the same
    command goes on. Batches that workers have are left, and listed. Unless
    --uniform or N is 1, a batch is cut into one for each slot.

    With --batch, a batch that harms its workers gets a slot of its own. It waits
    there under a new number, with as many attempts as a new one.

    Example: sdist frontier move shop p q 8 --by domain
    Example: sdist frontier move shop --batch 7 poison
    """
    check_own_slot(source)
    if batch is not None:
        if dest is not None or uniform:
            raise ConfigError(
                "--batch moves one batch into one slot: sdist frontier move FRONTIER --batch NUMBER DEST. Leave out"
                " what belongs to moving whole slots."
            )
        _put_alone(frontier, batch, source, as_json=as_json)
        return
    if dest is None or slots is None:
        raise ConfigError(
            "Name the slots to empty, the slots to fill and how many: sdist frontier move FRONTIER PREFIX DEST N."
            " For one batch: sdist frontier move FRONTIER --batch NUMBER DEST."
        )
    check_own_slot(dest)
    _move_slots(frontier, source, SlotRule(prefix=dest, number=slots, by=by.value), uniform=uniform, as_json=as_json)


def _move_slots(frontier: str, prefix: str, goal: SlotRule, *, uniform: bool, as_json: bool) -> None:
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
        filled = f"{goal.prefix}0" + (f" … {goal.prefix}{goal.number - 1}" if goal.number > 1 else "")
        say(f"Moved {what} of {frontier} to {filled}.")
    made.complain()
    raise typer.Exit(made.exit_code)


def _in_turn(store: Store, frontier: str, goal: SlotRule) -> Callable[[Batch], None]:
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


def _cutter(store: Store, root: Path, frontier: str, goal: SlotRule) -> Callable[[Batch], None]:
    """Cuts a batch by the slots that its requests belong to."""
    key = key_of(root)

    def cut(batch: Batch) -> None:
        values = requests_in(store, root, frontier, batch)
        parts = in_slots(values, store.batch_fingerprints(frontier, batch.number), goal, batch.priority, key)
        if [part.slot for part in parts] != [batch.slot]:
            store.split(frontier, batch.number, parts)

    return cut


def in_slots(
    values: Sequence[RequestValue], prints: Sequence[bytes], goal: SlotRule, priority: int, key: bytes
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
        FrontierIntake(value=value, fingerprint=one, slot=goal.of(value["url"], one), priority=priority)
        for value, one in zip(values, known, strict=True)
    ]
    parts = pack(found, size=len(found), key=key)
    return parts if known == list(prints) else [replace(part, fingerprints=()) for part in parts]


def _stand_in(value: RequestValue) -> bytes:
    """Stands for a fingerprint that is not known here; it only decides the slot."""
    return json.dumps(value, sort_keys=True).encode()


def _put_alone(frontier: str, number: int, slot: str, *, as_json: bool) -> None:
    """Put one batch, waiting or dead, into a slot under a new number."""
    check_slot_name(slot)
    with opened(load().root, frontier) as (store, _):
        row = _movable(store, frontier, number)
        new = _put(store, frontier, row, slot)
    if as_json:
        put_json({"frontier": frontier, "was": number, "batch": new.number, "slot": slot, "requests": new.size})
    else:
        say(f"Batch {number} of {frontier} is batch {new.number} in the slot {slot!r} now.")


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
