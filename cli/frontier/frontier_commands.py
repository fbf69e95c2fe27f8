"""`sdist frontier add`, `move`, `prioritise`, `requeue`, `delete`: fill slots, or empty them.

A row of a list that is no request is reported and skipped; a batch that a worker has is left as it
is.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from scrapyd_dist.batches import (
    OUT,
    WAITING,
    AttemptState,
    Batch,
    BatchState,
    Crawl,
    check_crawl_name,
)
from scrapyd_dist.errors import INTERRUPTED, PARTIAL, ConfigError, NothingMatched, StepRefused
from scrapyd_dist.fleet.project_store import key_of, requests_in
from scrapyd_dist.frontier.backlog import (
    MAX_PRIORITY,
    OTHER_SPIDER,
    NewBatch,
    SlotCount,
    check_slot_name,
)
from scrapyd_dist.frontier.intake import FrontierProducer, has_strategy, open_frontier
from scrapyd_dist.frontier.packing import FrontierIntake, move_batch, pack
from scrapyd_dist.frontier.slots import SlotRule
from scrapyd_dist.frontier.worklists import WorklistRow, format_of, rows
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.settings import MOST_SLOTS, find_warnings
from scrapyd_dist.store import Store

from ..context import Context
from ..crawls.stored_crawls import check_idle, remove, try_again
from ..crawls.watcher import interruptible_pause
from ..options import STDIN, FrontierName, Yes, argument, opened_file, option
from ..output import Output, complain, complain_each, confirm, say, waiting
from . import frontier_list
from .frontier_list import (
    Prefix,
    batches_in,
    check_own_slot,
    filled_slots,
    find_frontier,
    slot_document,
    total_of,
    with_prefix,
)

if TYPE_CHECKING:  # they load Scrapy
    from scrapy.settings import Settings
    from scrapyd_dist.middlewares.producer.worklist_import import RowReader, WorklistImport

#: seconds between two lines about how far it is
TELL = 10.0
#: seconds in which none is needed
QUICK = 2.0
#: batches that are named where they were left
BATCHES_NAMED = 5
#: slots that are shown before they are deleted
SLOTS_SHOWN = 20
#: the panel of options about slots in the help
_SLOTS = "Slots"


def add(
    context: Context,
    frontier: FrontierName,
    file: Annotated[
        str, argument("FILE", "The list; - is standard input.", show_default=False)
    ] = STDIN,
    format_: Annotated[
        Literal["urls", "jsonl", "csv"] | None,
        option("urls, jsonl or csv; by the name of the file if left out.", metavar="KIND"),
    ] = None,
    as_: Annotated[
        Literal["requests", "arguments"],
        option("What a row is: requests, or arguments of a spider.", metavar="WHAT"),
    ] = "requests",
    column: Annotated[
        str | None, option("Of a CSV: the column with the URLs, by name or number.", metavar="C")
    ] = None,
    spider_callback: Annotated[
        str | None,
        option("Callback of requests that name none; parse if left out.", metavar="NAME"),
    ] = None,
    priority: Annotated[
        int,
        option(
            "Priority of requests that have none; the highest goes first.",
            metavar="N",
            min=-MAX_PRIORITY,
            max=MAX_PRIORITY,
        ),
    ] = 0,
    slots: Annotated[
        int | None,
        option("Spread over this many slots.", panel=_SLOTS, metavar="N", min=1, max=MOST_SLOTS),
    ] = None,
    prefix: Annotated[
        str | None, option("What the slots' names begin with.", panel=_SLOTS, metavar="P")
    ] = None,
    slot_by: Annotated[
        Literal["fingerprint", "domain", "site"] | None,
        option(
            "fingerprint or domain: what decides; site: a slot for each.",
            panel=_SLOTS,
            metavar="KIND",
        ),
    ] = None,
    standing: Annotated[
        bool | None,
        option(
            "Whether the frontier waits for more for ever, or can finish.",
            "--standing/--no-standing",
        ),
    ] = None,
    output: Output = Output(),
) -> int:
    """Add requests to a frontier, which is made if there is none; what it has seen before is \
left out.

    A list of URLs, one per line; JSON lines, each a URL or an object with url,
    method, headers, body, callback, cb_kwargs, meta, priority and the like; or
    a column of a CSV. What is left out here is decided by the project's settings
    (DISTRIBUTED_SLOTS, ...). Once it was interrupted, the same command adds the
    rest.

    With --as arguments a row is no request, but the arguments of one run of a
    spider: a CSV whose columns are their names, or JSON lines. `sdist frontier consume`
    then starts a job for each.

    Example: sdist frontier add shop urls.txt --slots 8 --spider-callback parse_article
    """  # noqa: D205  # the summary is one line of the help
    arguments = as_ == "arguments"
    slot_settings = _slot_settings(slots, prefix, slot_by)
    _check_rows(spider_callback, slot_settings, arguments=arguments)
    from scrapyd_dist.middlewares.producer.crawl_request import find_project
    from scrapyd_dist.middlewares.producer.producer_options import read_options

    root = context.root
    kind = format_ or format_of(file)
    with ExitStack() as stack:
        listed = rows(opened_file(stack, file), kind=kind, column=column, arguments=arguments)
        settings = frontier_list.settings_of({"DISTRIBUTED_MODE": "pull", **slot_settings})
        complain_each(find_warnings(settings))
        key = key_of(root)
        project = find_project(settings).name
        read = _row_reader(settings, project, key, spider_callback, priority, arguments=arguments)
        store = context.new_store
        producer = FrontierProducer(
            store=store,
            frontier=check_crawl_name(frontier, "frontier"),
            project=project,
            work=f"add {Path(file).name or file}",
            size=1 if arguments else read_options(settings).batch_size,
            key=None if arguments else key,  # a job's arguments can be read on its node anyway
            arguments=arguments,
        )
        _set_standing(store, producer, standing=standing)
        account, interrupted = _fill(producer, read, listed)
    has_target = arguments or spider_callback or kind == "jsonl"
    if account.added and not (has_target or output.as_json):
        say(
            "Pages of bare URLs go to the target that the settings name, else to the spider's only "
            "rule that ends at a page, else to parse(); --spider-callback NAME says which method "
            "it is."
        )
    return _report(frontier, account, interrupted=interrupted, output=output)


def _check_rows(callback: str | None, slot_settings: Mapping[str, Any], *, arguments: bool) -> None:
    """Refuse a callback that is none, and options for requests where rows are arguments."""
    if callback is not None and not callback.isidentifier():
        raise ConfigError(f"--spider-callback {callback!r} cannot be the name of a method.")
    if arguments and (callback is not None or slot_settings):
        raise ConfigError(
            "--as arguments: rows of arguments have no callback and no slots. Leave these options "
            "out."
        )


def _slot_settings(slots: int | None, prefix: str | None, slot_by: str | None) -> dict[str, Any]:
    """Return the options that are given, as settings."""
    settings: dict[str, Any] = {}
    if slots is not None:
        settings["DISTRIBUTED_SLOTS"] = slots
    if prefix is not None:
        settings["DISTRIBUTED_SLOT_PREFIX"] = prefix
    if slot_by is not None:
        settings["DISTRIBUTED_SLOT_BY"] = slot_by
    return settings


def _row_reader(
    settings: "Settings",
    project: str,
    key: bytes,
    callback: str | None,
    priority: int,
    *,
    arguments: bool,
) -> "RowReader":
    """Return what makes a request, or the arguments of a job, of a row."""
    from scrapyd_dist.middlewares.producer.worklist_import import argument_reader, request_reader
    from scrapyd_dist.middlewares.slot_routing import SlotRouting

    if arguments:
        return argument_reader(priority)
    routing = SlotRouting.from_settings(settings, project=project)
    return request_reader(settings, routing, key=key, callback=callback, priority=priority)


def _set_standing(store: Store, producer: FrontierProducer, *, standing: bool | None) -> None:
    """Note whether the frontier waits for more for ever, where that is said.

    The frontier is made if there is none.
    """
    if standing is None:
        return
    row = open_frontier(
        store,
        producer.frontier,
        project=producer.project,
        now=time.time(),
        standing=standing,
        arguments=producer.arguments,
    )
    if row.standing is not standing:
        store.update_crawl(row.id, standing=standing)


def _fill(
    producer: FrontierProducer, read: "RowReader", rows: Iterator[WorklistRow]
) -> tuple["WorklistImport", bool]:
    """Add the rows; returns the counts, and whether Ctrl-C interrupted it."""
    from scrapyd_dist.middlewares.producer.worklist_import import WorklistImport

    account = WorklistImport(producer=producer, read=read)
    with waiting(TELL, first=QUICK) as show, closing(account.fill(rows)) as filling:
        try:
            for _ in filling:
                show(f"{counted(account.added, 'request')} added to {producer.frontier}")
        except KeyboardInterrupt:
            return account, True
    return account, False


def _report(frontier: str, account: "WorklistImport", *, interrupted: bool, output: Output) -> int:
    """Say how many rows were added, and what is wrong with others; gives the exit code."""
    bad_rows = []
    for row in account.bad_rows:
        complain(f"line {row.line}: {row.reason}.")
        bad_rows.append({"line": row.line, "reason": row.reason})
    if account.bad > len(account.bad_rows):
        complain(f"and {account.bad - len(account.bad_rows):,} more rows like these.")
    document = {
        "frontier": frontier,
        "rows": account.rows,
        "added": account.added,
        "duplicate": account.duplicate,
        "bad": account.bad,
        "bad_rows": bad_rows,
        "interrupted": interrupted,
    }
    if not output.document(document):
        say(_summary(frontier, account))
    if interrupted:
        say("Interrupted; the same command adds the rest, and leaves out what is there.")
        return INTERRUPTED
    if not account.bad:
        return 0
    if account.added or account.duplicate:
        return PARTIAL
    return 1


def _summary(frontier: str, account: "WorklistImport") -> str:
    pieces = [f"{counted(account.added, 'request')} added to {frontier}"]
    if account.duplicate:
        pieces.append(f"{account.duplicate:,} there before")
    if account.bad:
        pieces.append(f"{account.bad:,} no requests")
    return f"{', '.join(pieces)}, of {counted(account.rows, 'row')}."


@dataclass(kw_only=True)
class BatchWalk:
    """What became of the batches."""

    total: int  #: batches that no worker had at the beginning
    done: list[Batch] = field(default_factory=list)
    left: list[Batch] = field(default_factory=list)  #: that workers have
    interrupted: bool = False

    @property
    def requests(self) -> int:
        """Return the number of requests in the batches that are done."""
        return sum(batch.size for batch in self.done)

    def words(self) -> tuple[str, str]:
        """Return what is done: so many requests, so many batches."""
        return counted(self.requests, "request"), counted(len(self.done), "batch", "batches")

    def end(self, output: Output, document: dict[str, Any], sentence: str) -> int:
        """Print the document, or this sentence and what was not done; gives the exit code."""
        left = [batch.number for batch in self.left]
        counts = {
            "batches": len(self.done),
            "requests": self.requests,
            "left": left,
            "interrupted": self.interrupted,
        }
        if not output.document({**document, **counts}):
            say(sentence)
        if left:
            named = some_of(list(map(str, left)), BATCHES_NAMED)
            say(
                f"Left as they are, because workers have them now: batch {named}. Say the same "
                "again later."
            )
        if self.interrupted:
            say(
                f"Interrupted after {len(self.done):,} of {self.total:,} batches; the same command "
                "goes on."
            )
            return INTERRUPTED
        if left:
            return PARTIAL
        return 0


def check_no_strategy(row: Crawl) -> None:
    """Refuse to change batches behind a strategy's back: its links would wait for ever."""
    if has_strategy(row):
        raise ConfigError(
            f"{row.id} is a crawling strategy's, which alone decides what is requested, and when. "
            f"`sdist strategy reset {row.id}` forgets all that it knows, and `sdist frontier "
            f"delete {row.id} --all` removes it as a whole."
        )


def walk(batches: Sequence[Batch], step: Callable[[Batch], None], doing: str) -> BatchWalk:
    """Take the step with each batch that no worker has; doing: as a word, deleted.

    `StepRefused` and `NothingMatched` of a step say that a worker was faster, or has ended the
    batch meanwhile.
    """
    idle = []
    leased = []
    for batch in batches:
        if batch.state in OUT:
            leased.append(batch)
        else:
            idle.append(batch)
    made = BatchWalk(total=len(idle))
    with interruptible_pause() as pause, waiting(TELL, first=TELL) as show:
        for batch in idle:
            try:
                pause(0)
            except KeyboardInterrupt:
                made.interrupted = True
                break
            try:
                step(batch)
            except (StepRefused, NothingMatched):
                made.left.append(batch)
            else:
                made.done.append(batch)
            show(f"{len(made.done):,} of {made.total:,} batches {doing}")
    made.left += leased
    return made


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
            "together."
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

    made = walk(_batches_of(store, frontier, names, WAITING | OUT), cut, "moved")
    filled = f"{goal.prefix}0"
    if goal.number > 1:
        filled += f" … {goal.prefix}{goal.number - 1}"
    requests, batches = made.words()
    return made.end(
        output,
        {"frontier": frontier, "to": goal.names()},
        f"Moved {requests} of {batches} of {frontier} to {filled}.",
    )


def _batches_of(
    store: Store, frontier: str, slots: Collection[str], states: AbstractSet[BatchState]
) -> list[Batch]:
    """Return the batches in these slots that are in one of these states."""
    return [batch for batch in store.batches(frontier, states) if batch.slot in slots]


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
            f"The frontier {frontier} has no batch {number}. `sdist crawls batches {frontier}` "
            "lists all."
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
    callback that the spider did not have. `sdist crawls misses FRONTIER --kind dead`
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
            f"nothing was done. `sdist crawls batches {frontier} --state dead` lists those that "
            "are."
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

    What workers have now is left, and told. With --all the frontier itself goes,
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
    rows = _batches_of(store, frontier, names, set(BatchState) - {BatchState.SPLIT})

    def drop(batch: Batch) -> None:
        """Delete a batch with what it remembers."""
        store.drop_batch(frontier, batch.number, forget=True)

    walked = walk(rows, drop, "deleted")
    requests, batches = walked.words()
    slots = counted(len(counts), "slot")
    return walked.end(
        output, document, f"Deleted {requests} in {batches}, of {slots} of {frontier}."
    )
