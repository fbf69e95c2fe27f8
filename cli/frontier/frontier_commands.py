"""`sdist frontier prioritise`, `requeue`, `delete`; a batch that a worker has is left as it is."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any

from scrapyd_dist.batches import WAITING, Batch, BatchState, Crawl
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.frontier_listing import batches_in, filled_slots, slot_document, total_of
from scrapyd_dist.frontier.backlog import MAX_PRIORITY, SlotCount
from scrapyd_dist.plurals import counted
from scrapyd_dist.store import Store

from ..context import Context
from ..crawls.stored_crawls import check_idle, remove, try_again
from ..options import FrontierName, Yes, argument, option
from ..output import Output, confirm, say
from .batch_walk import batches_of, check_no_strategy, walk
from .frontier_list import Prefix, find_frontier, with_prefix

#: slots that are shown before they are deleted
SLOTS_SHOWN = 20


def prioritise(
    context: Context,
    frontier: FrontierName,
    batch: Annotated[
        list[int] | None, argument("BATCH", "Numbers of batches; all that wait if left out.")
    ] = None,
    *,
    to: Annotated[
        int,
        option(
            "The new priority; the highest goes first.",
            metavar="N",
            min=-MAX_PRIORITY,
            max=MAX_PRIORITY,
        ),
    ],
    prefix: Prefix = None,
    output: Output = Output(),
) -> None:
    """Give batches that wait another priority, while workers take from them.

    Works for the batches of a crawl, too. What is leased or sent already is not
    changed, nor what is added later. Where slots are shared fairly, the priority
    orders the batches of one slot only.

    Example: sdist frontier prioritise shop --to 10 --prefix news
    """
    store, whole = find_frontier(context, frontier)
    check_no_strategy(whole)
    if prefix is not None:
        with_prefix(filled_slots(store.backlog(frontier)), frontier, prefix)
    sizes = _sizes_of_waiting(store, frontier, prefix or "", batch)
    others = sorted(set(batch or ()) - sizes.keys())
    if others:
        raise NothingMatched(
            f"Of {frontier}, {', '.join(map(str, others))} do not wait; nothing was done."
        )
    changed = store.prioritise(frontier, list(sizes), to)
    requests = sum(sizes[number] for number in changed)
    document = {"frontier": frontier, "priority": to, "batches": changed, "requests": requests}
    if not output.document(document):
        batches = f"{counted(len(changed), 'batch', 'batches')} with {counted(requests, 'request')}"
        say(f"{batches} of {frontier} have the priority {to} now.")


def _sizes_of_waiting(
    store: Store, frontier: str, prefix: str, numbers: Sequence[int] | None
) -> dict[int, int]:
    """Return how many requests each batch has that waits in slots with this prefix.

    numbers: only these batches; none: all.
    """
    sizes: dict[int, int] = {}
    for row in store.batches(frontier, WAITING):
        number = row.number
        if row.slot.startswith(prefix) and (not numbers or number in numbers):
            sizes[number] = row.size
    return sizes


def requeue(
    context: Context,
    frontier: FrontierName,
    batch: Annotated[
        list[int] | None, argument("BATCH", "Numbers of batches; all of them if left out.")
    ] = None,
    failed_urls: Annotated[
        bool, option("What failed in batches that are done waits again, too.")
    ] = False,
    output: Output = Output(),
) -> None:
    """Let dead batches and URLs wait again, in their slots, with as many attempts as new ones.

    Dead is a batch that no worker could bring to its end, and a request for a
    callback that the spider did not have. `sdist crawls show FRONTIER --misses --kind dead`
    lists them, with the reasons.

    Example: sdist frontier requeue shop 7 9
    """
    kinds = {"dead", "failed"} if failed_urls else {"dead"}
    store, whole = find_frontier(context, frontier)
    check_no_strategy(whole)
    dead = {row.number: row.size for row in store.batches(frontier, {BatchState.DEAD})}
    # A request of a producer has no batch, and cannot wait again.
    missed = {miss.batch for miss in store.misses(frontier) if miss.kind in kinds and miss.batch}
    _check_retriable(frontier, batch or (), missed | dead.keys())
    requeued = _requeue_dead(store, frontier, dead, batch)
    urls = try_again(store, context.root, frontier, kinds, batch or ())
    requests = sum(requeued.values())
    document = {
        "frontier": frontier,
        "batches": list(requeued),
        "requests": requests,
        "urls": urls,
    }
    if not output.document(document):
        _say_requeued(frontier, len(requeued), requests, urls)


def _say_requeued(frontier: str, batches: int, requests: int, urls: int) -> None:
    pieces = []
    if batches:
        numbers = counted(batches, "batch", "batches")
        pieces.append(f"{numbers} with {counted(requests, 'request')}")
    if urls:
        pieces.append(f"{counted(urls, 'request')} of batches that are done")
    say(f"{' and '.join(pieces) or 'Nothing'} waits again in {frontier}.")


def _requeue_dead(
    store: Store, frontier: str, dead: Mapping[int, int], numbers: Sequence[int] | None
) -> dict[int, int]:
    """Let dead batches wait again, and give those that do, with their numbers of requests.

    dead: number of a batch -> its requests; numbers: only these batches, none: all.
    """
    wanted = [number for number in dead if not numbers or number in numbers]
    if not wanted:
        return {}
    requeued = set(store.requeue(frontier, wanted))
    return {number: dead[number] for number in wanted if number in requeued}


def _check_retriable(frontier: str, numbers: Sequence[int], retriable: AbstractSet[int]) -> None:
    """Refuse batches that cannot be tried again, and where there is nothing to try again."""
    others = sorted(set(numbers) - retriable)
    if others:
        raise NothingMatched(
            f"Of {frontier}, {', '.join(map(str, others))} cannot wait again: no such dead batch; "
            f"nothing was done. `sdist crawls show {frontier} --batches --state dead` lists "
            "those that are."
        )
    if not retriable:
        raise NothingMatched(f"No batch of {frontier} is dead, so there is nothing to try again.")


def delete(
    context: Context,
    frontier: FrontierName,
    prefix: Prefix = None,
    all_: Annotated[bool, option("The whole frontier, and all that came home of it.")] = False,
    yes: Yes = False,
    output: Output = Output(),
) -> int:
    """Delete slots of a frontier, with what they remember: their requests can come again.

    What workers have now is left and reported. With --all the frontier itself goes,
    as by `sdist crawls clean`: it must not be in use then. The item files that
    were merged stay.

    Example: sdist frontier delete shop --prefix old-
    """
    if (prefix is None) is not all_:
        raise ConfigError(
            "Name what to delete: --prefix P for slots, or --all for the whole frontier. One of "
            "the two."
        )
    if prefix == "":
        raise ConfigError("An empty --prefix fits every slot. If that is meant, say --all.")
    store, row = find_frontier(context, frontier)
    if prefix is None:
        _check_removable(store, row)
    else:
        check_no_strategy(row)
    counts = filled_slots(store.backlog(frontier))
    if prefix is not None:
        counts = with_prefix(counts, frontier, prefix)
    if not yes:
        _confirm_deletion(frontier, counts)
    document: dict[str, Any] = {
        "frontier": frontier,
        "slots": list(map(slot_document, counts)),
    }
    if prefix is not None:
        return _delete_slots(store, frontier, counts, document, output)
    remove(store, context.root, row)
    document |= {
        "batches": batches_in(counts),
        "requests": sum(total_of(counts).values()),
        "left": [],
        "interrupted": False,
    }
    if not output.document(document):
        say(f"Deleted the frontier {frontier} and all that was kept of it.")
    return 0


def _check_removable(store: Store, row: Crawl) -> None:
    """Refuse a crawl, and a frontier that is in use."""
    if row.kind != "frontier":
        raise ConfigError(
            f"{row.id} is a crawl, and goes as a whole by `sdist crawls clean {row.id}`."
        )
    check_idle(store, row)


def _confirm_deletion(frontier: str, counts: Sequence[SlotCount]) -> None:
    """Ask whether these slots are to be deleted, with all that is in them."""
    slots = f"{counted(len(counts), 'slot')} of {frontier}"
    totals = [f"{number:,} {kind}" for kind, number in total_of(counts).items() if number]
    requests = ", ".join(totals) or "no requests"
    lines = []
    for count in counts:
        batches = counted(batches_in([count]), "batch", "batches")
        lines.append(f"{count.slot}: {batches}")
    confirm(
        f"Delete {slots} for good ({requests})?",
        lines,
        most=SLOTS_SHOWN,
        refusal=f"{slots} would be deleted ({requests})",
    )


def _delete_slots(
    store: Store,
    frontier: str,
    counts: Sequence[SlotCount],
    document: dict[str, Any],
    output: Output,
) -> int:
    """Delete the batches of these slots but those that workers have; gives the exit code."""
    names = {count.slot for count in counts}
    # What was cut has given all it had to its pieces, which may lie elsewhere.
    rows = batches_of(store, frontier, names, set(BatchState) - {BatchState.SPLIT})

    def drop(batch: Batch) -> None:
        """Delete a batch with what it remembers."""
        store.drop_batch(frontier, batch.number, forget=True)

    walked = walk(rows, drop, "deleted")
    requests, batches = walked.words()
    slots = counted(len(counts), "slot")
    return walked.end(
        output, document, f"Deleted {requests} in {batches}, of {slots} of {frontier}."
    )
