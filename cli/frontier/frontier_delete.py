"""`sdist frontier delete`: slots go, with what they remember. Rule: asked first, and no selector never means all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scrapyd_dist.batches import OUT, BatchState
from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError

from ..crawls.clean import check_idle, remove
from ..crawls.wording import counted
from ..output import ask, can_ask, put_json, say
from ..selectors import Json
from .frontier_count import batches_of, slot_document, slots_in, total_of
from .frontier_move import walk
from .frontier_names import FrontierName, Prefix, Yes, opened, with_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.frontier.backlog import SlotCount
    from scrapyd_dist.store import Store

#: slots that are shown before the question
_SHOWN = 20


def delete(
    frontier: FrontierName,
    prefix: Prefix = None,
    all_: Annotated[bool, typer.Option("--all", help="The whole frontier, and all that came home of it.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete slots of a frontier, with what they remember: their requests can come again.

    What workers have now is left, and told. With --all the frontier itself goes,
    as by `sdist clean`: nobody may be working on it then. The item files that
    were merged stay.

    Example: sdist frontier delete shop --prefix old-
    """
    if (prefix is None) is not all_:
        raise ConfigError("Name what to delete: --prefix P for slots, or --all for the whole frontier. One of the two.")
    if prefix == "":
        raise ConfigError("An empty --prefix fits every slot. If that is meant, say --all.")
    root = load().root
    with opened(root, frontier) as (store, row):
        if all_:
            _everything(store, root, row, yes=yes, as_json=as_json)
            return
        counts = with_prefix(slots_in(store, frontier), frontier, prefix or "")
        _confirm(frontier, counts, yes=yes)
        _slots(store, frontier, counts, as_json=as_json)


def _slots(store: Store, frontier: str, counts: Sequence[SlotCount], *, as_json: bool) -> None:
    slots = {count.slot for count in counts}
    # What was cut has given all it had to its pieces, which may lie elsewhere.
    states = set(BatchState) - {BatchState.SPLIT}
    batches = [batch for batch in store.batches(frontier, states) if batch.slot in slots]
    idle = [batch for batch in batches if batch.state not in OUT]
    made = walk(idle, lambda batch: store.drop_batch(frontier, batch.number, forget=True), "deleted")
    made.left += [batch for batch in batches if batch.state in OUT]
    if as_json:
        put_json({"frontier": frontier, "slots": [slot_document(count) for count in counts], **made.document()})
    else:
        what = f"{counted(made.requests, 'request')} in {counted(len(made.done), 'batch', 'batches')}"
        say(f"Deleted {what}, of {counted(len(counts), 'slot')} of {frontier}.")
    made.complain()
    raise typer.Exit(made.exit_code)


def _everything(store: Store, root: Path, row: Crawl, *, yes: bool, as_json: bool) -> None:
    if row.kind != "frontier":
        raise ConfigError(f"{row.id} is a crawl, and goes as a whole by `sdist clean {row.id}`.")
    check_idle(store, row)
    counts = slots_in(store, row.id)
    _confirm(row.id, counts, yes=yes)
    remove(store, root, row)
    requests = sum(total_of(counts).values())
    if as_json:
        batches = sum(sum(batches_of(count).values()) for count in counts)
        made = {"batches": batches, "requests": requests, "left": [], "interrupted": False}
        put_json({"frontier": row.id, "slots": [slot_document(count) for count in counts], **made})
    else:
        say(f"Deleted the frontier {row.id} and all that was kept of it.")


def _confirm(frontier: str, counts: Sequence[SlotCount], *, yes: bool) -> None:
    if yes:
        return
    slots, total = counted(len(counts), "slot"), total_of(counts)
    told = ", ".join(f"{number:,} {kind}" for kind, number in total.items() if number) or "no requests"
    if not can_ask():
        raise ConfigError(
            f"{slots} of {frontier} would be deleted ({told}), and nobody is here to be asked. Add --yes to do it."
        )
    for count in counts[:_SHOWN]:
        say(f"  {count.slot}: {counted(sum(batches_of(count).values()), 'batch', 'batches')}")
    if len(counts) > _SHOWN:
        say(f"  and {len(counts) - _SHOWN:,} more")
    if not ask(f"Delete {slots} of {frontier} for good ({told})?"):
        raise typer.Exit(130)
