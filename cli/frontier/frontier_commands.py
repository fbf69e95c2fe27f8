"""`sdist frontier add`, `move`, `prioritise`, `requeue`, `delete`: what fills the slots of a frontier, or empties them.

A row of a list that is no request is reported and skipped; a batch that a worker has is left as it is.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
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
from scrapyd_dist.frontier.backlog import MAX_PRIORITY, OTHER_SPIDER, NewBatch, check_slot_name
from scrapyd_dist.frontier.intake import (
    FrontierIntake,
    FrontierProducer,
    has_strategy,
    open_frontier,
    pack,
)
from scrapyd_dist.frontier.slots import SlotRule
from scrapyd_dist.frontier.worklists import WorklistRow, format_of, rows
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.plurals import counted
from scrapyd_dist.settings import MOST_SLOTS, complaints
from scrapyd_dist.store import Store

from ..context import Context, key_of, requests_in
from ..crawls.stored_crawls import check_idle, remove, try_again
from ..crawls.watcher import looked_out_for
from ..options import STDIN, FrontierName, Yes, argument, opened_file, option
from ..output import Output, complain, complain_each, confirm, say, some_of, waiting
from . import frontier_list
from .frontier_list import (
    Prefix,
    batches_in,
    check_own_slot,
    opened,
    slot_document,
    slots_in,
    total_of,
    with_prefix,
)

if TYPE_CHECKING:  # it loads Scrapy
    from scrapyd_dist.middlewares.producer.worklist_import import RowReader, WorklistImport

#: seconds between two lines about how far it is, and in which none is needed
TELL, QUICK = 10.0, 2.0
#: batches that are named where they were left, and slots that are shown before they are deleted
BATCHES_NAMED, SLOTS_SHOWN = 5, 20
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
    """Add requests to a frontier, which is made if there is none; what it has seen before is left out.

    A list of URLs, one per line; JSON lines, each a URL or an object with url,
    method, headers, body, callback, cb_kwargs, meta, priority and the like; or
    a column of a CSV. What is left out here is decided by the project's settings
    (DISTRIBUTED_SLOTS, ...). Once it was interrupted, the same command adds the
    rest.

    With --as arguments a row is no request, but the arguments of one run of a
    spider: a CSV whose columns are their names, or JSON lines. `sdist frontier consume`
    then starts a job for each.

    Example: sdist frontier add shop urls.txt --slots 8 --spider-callback parse_article
    """
    asked = {
        "DISTRIBUTED_SLOTS": slots,
        "DISTRIBUTED_SLOT_PREFIX": prefix,
        "DISTRIBUTED_SLOT_BY": slot_by,
    }
    asked = {name: it for name, it in asked.items() if it is not None}
    if spider_callback is not None and not spider_callback.isidentifier():
        raise ConfigError(f"--spider-callback {spider_callback!r} cannot be the name of a method.")
    arguments = as_ == "arguments"
    if arguments and (spider_callback is not None or asked):
        raise ConfigError(
            "--as arguments: rows of arguments have no callback and no slots. Leave these options out."
        )
    from scrapyd_dist.middlewares.producer.crawl_request import find_project
    from scrapyd_dist.middlewares.producer.producer_options import read_options
    from scrapyd_dist.middlewares.producer.worklist_import import argument_reader, request_reader
    from scrapyd_dist.middlewares.slot_routing import SlotRouting

    root, kind = context.root, format_ or format_of(file)
    with ExitStack() as stack:
        listed = rows(opened_file(stack, file), kind=kind, column=column, arguments=arguments)
        settings = frontier_list.settings_of({"DISTRIBUTED_MODE": "pull", **asked})
        complain_each(complaints(settings))
        key, project = key_of(root), find_project(settings).name
        if arguments:
            read = argument_reader(priority)
        else:
            routing = SlotRouting.from_settings(settings, project=project)
            read = request_reader(
                settings, routing, key=key, callback=spider_callback, priority=priority
            )
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
        if standing is not None:
            row = open_frontier(
                store,
                frontier,
                project=project,
                now=time.time(),
                standing=standing,
                arguments=arguments,
            )
            if row.standing is not standing:
                store.update_crawl(row.id, standing=standing)
        account, interrupted = _fill(producer, read, listed)
    if account.added and not (arguments or spider_callback or kind == "jsonl" or output.as_json):
        say(
            "Pages of bare URLs go to the target that the settings name, else to the spider's only rule that ends at a"
            " page, else to parse(); --spider-callback NAME says which method it is."
        )
    return _tell(frontier, account, interrupted=interrupted, output=output)


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


def _tell(frontier: str, account: "WorklistImport", *, interrupted: bool, output: Output) -> int:
    for row in account.told:
        complain(f"line {row.line}: {row.reason}.")
    if account.bad > len(account.told):
        complain(f"and {account.bad - len(account.told):,} more rows like these.")
    document = {
        "frontier": frontier,
        "rows": account.rows,
        "added": account.added,
        "duplicate": account.duplicate,
        "bad": account.bad,
        "bad_rows": [{"line": row.line, "reason": row.reason} for row in account.told],
        "interrupted": interrupted,
    }
    if not output.document(document):
        asides = {"there before": account.duplicate, "no requests": account.bad}
        told = "".join(f", {number:,} {what}" for what, number in asides.items() if number)
        say(
            f"{counted(account.added, 'request')} added to {frontier}{told}, of {counted(account.rows, 'row')}."
        )
    if interrupted:
        say("Interrupted; the same command adds the rest, and leaves out what is there.")
        return INTERRUPTED
    some = account.added or account.duplicate
    return 0 if not account.bad else 3 if some else 1


@dataclass(kw_only=True)
class BatchWalk:
    """What became of the batches."""

    total: int
    done: list[Batch] = field(default_factory=list)
    left: list[Batch] = field(default_factory=list)  #: that workers have
    interrupted: bool = False

    @property
    def requests(self) -> int:
        """In the batches that are done."""
        return sum(batch.size for batch in self.done)

    def words(self) -> tuple[str, str]:
        """What is done: so many requests, so many batches."""
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
            named = some_of([str(number) for number in left], BATCHES_NAMED)
            say(
                f"Left as they are, because workers have them now: batch {named}. Say the same again later."
            )
        if self.interrupted:
            say(
                f"Interrupted after {len(self.done):,} of {self.total:,} batches; the same command goes on."
            )
        return INTERRUPTED if self.interrupted else PARTIAL if left else 0


def check_no_strategy(row: Crawl) -> None:
    """Refuse to change batches behind the back of a strategy, whose links would wait for ever for what is lost."""
    if has_strategy(row):
        raise ConfigError(
            f"{row.id} is a crawling strategy's, which alone decides what is requested, and when. `sdist strategy reset"
            f" {row.id}` forgets all that it knows, and `sdist frontier delete {row.id} --all` removes it as a whole."
        )


def walk(batches: Sequence[Batch], step: Callable[[Batch], None], doing: str) -> BatchWalk:
    """Do it to each batch that no worker has; doing: as a word, deleted.

    `StepRefused` and `NothingMatched` of a step say that a worker was faster, or has ended the batch meanwhile.
    """
    idle = [batch for batch in batches if batch.state not in OUT]
    made = BatchWalk(total=len(idle))
    with looked_out_for() as pause, waiting(TELL, first=TELL) as show:
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
    made.left += [batch for batch in batches if batch.state in OUT]
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
            "Spread requests by their fingerprint, or keep each site (fingerprint, domain) together."
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
        _put_alone(context, frontier, batch, source, output)
        return 0
    if dest is None or slots is None:
        raise ConfigError(
            "Name the slots to empty, the slots to fill and how many: sdist frontier move FRONTIER PREFIX DEST N."
            " For one batch: sdist frontier move FRONTIER --batch NUMBER DEST."
        )
    check_own_slot(dest)
    goal = SlotRule(prefix=dest, number=slots, by=by)
    return _move_slots(context, frontier, source, goal, uniform=uniform, output=output)


def _move_slots(
    context: Context, frontier: str, prefix: str, goal: SlotRule, *, uniform: bool, output: Output
) -> int:
    root = context.root
    store, whole = opened(context, frontier)
    check_no_strategy(whole)
    found = with_prefix(slots_in(store.backlog(frontier)), frontier, prefix)
    names = {one.slot for one in found if not one.slot.startswith(OTHER_SPIDER)}
    turn = cycle(goal.names())

    def cut(batch: Batch) -> None:
        if uniform:  # each batch as it is into the next slot
            _put(store, frontier, batch, next(turn))
            return
        values, prints = (
            requests_in(store, root, frontier, batch),
            store.batch_fingerprints(frontier, batch.number),
        )
        parts = in_slots(values, prints, goal, batch.priority, key_of(root))
        if [part.slot for part in parts] != [batch.slot]:
            store.split(frontier, batch.number, parts)

    made = walk(
        [one for one in store.batches(frontier, WAITING | OUT) if one.slot in names], cut, "moved"
    )
    filled = f"{goal.prefix}0" + (f" … {goal.prefix}{goal.number - 1}" if goal.number > 1 else "")
    requests, batches = made.words()
    return made.end(
        output,
        {"frontier": frontier, "to": goal.names()},
        f"Moved {requests} of {batches} of {frontier} to {filled}.",
    )


def _put(store: Store, frontier: str, batch: Batch, slot: str) -> Batch:
    """The batch that has taken its place, in that slot."""
    payload = store.payload(frontier, batch.number)
    new = NewBatch(payload=payload, size=batch.size, slot=slot, priority=batch.priority)
    return store.split(frontier, batch.number, [new])[0]


def in_slots(
    values: Sequence[RequestValue],
    prints: Sequence[bytes],
    goal: SlotRule,
    priority: int,
    key: bytes,
) -> list[NewBatch]:
    """Requests of one batch as batches, one for each slot that some of them belong to.

    prints: their fingerprints; none where the batch was sealed by a crawl, which keeps them elsewhere. What stands for
    them then only decides the slot. key: the Fernet key for what must be hidden.
    """
    known = list(prints)
    if len(prints) != len(values):
        known = [json.dumps(value, sort_keys=True).encode() for value in values]
    found = [
        FrontierIntake(
            value=value, fingerprint=one, slot=goal.of(value["url"], one), priority=priority
        )
        for value, one in zip(values, known, strict=True)
    ]
    parts = pack(found, size=len(found), key=key)
    return parts if known == list(prints) else [replace(part, fingerprints=()) for part in parts]


def _put_alone(context: Context, frontier: str, number: int, slot: str, output: Output) -> None:
    """Put one batch, waiting or dead, into a slot under a new number."""
    check_slot_name(slot)
    store, whole = opened(context, frontier)
    check_no_strategy(whole)
    row = next((one for one in store.batches(frontier) if one.number == number), None)
    if row is None:
        raise NothingMatched(
            f"The frontier {frontier} has no batch {number}. `sdist crawls batches {frontier}` lists all."
        )
    check_own_slot(row.slot)
    if row.state in OUT:
        out = {AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACKED}
        jobs = [
            f"the job {one.worker or one.job} on {one.node}"
            for one in store.attempts(frontier, out)
            if one.batch == number
        ]
        raise ConfigError(
            f"Batch {number} of {frontier} cannot be moved now: {jobs[-1] if jobs else 'a worker'} has it. When that"
            " has ended it, or its lease has run out, say the same again."
        )
    if row.state not in {*WAITING, BatchState.DEAD}:
        raise ConfigError(
            f"Batch {number} of {frontier} is {row.state.value}: nothing of it waits any more."
        )
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
    store, whole = opened(context, frontier)
    check_no_strategy(whole)
    if prefix is not None:
        with_prefix(slots_in(store.backlog(frontier)), frontier, prefix)
    there = [one for one in store.batches(frontier, WAITING) if one.slot.startswith(prefix or "")]
    wanted = {one.number: one.size for one in there if not batch or one.number in batch}
    if others := sorted(set(batch or ()) - wanted.keys()):
        raise NothingMatched(
            f"Of {frontier}, {', '.join(map(str, others))} do not wait; nothing was done."
        )
    changed = store.prioritise(frontier, list(wanted), to)
    requests = sum(wanted[number] for number in changed)
    if not output.document(
        {"frontier": frontier, "priority": to, "batches": changed, "requests": requests}
    ):
        told = f"{counted(len(changed), 'batch', 'batches')} with {counted(requests, 'request')}"
        say(f"{told} of {frontier} have the priority {to} now.")


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
    store, whole = opened(context, frontier)
    check_no_strategy(whole)
    dead = store.batches(frontier, {BatchState.DEAD})
    missed = {miss.batch for miss in store.misses(frontier) if miss.kind in kinds}
    there = missed | {one.number for one in dead}
    if others := sorted(set(batch or ()) - there):
        raise NothingMatched(
            f"Of {frontier}, {', '.join(map(str, others))} cannot wait again: no such dead batch; nothing was done."
            f" `sdist crawls batches {frontier} --state dead` lists those that are."
        )
    if not there:
        raise NothingMatched(f"No batch of {frontier} is dead, so there is nothing to try again.")
    wanted = [one for one in dead if not batch or one.number in batch]
    back = set(store.requeue(frontier, [one.number for one in wanted])) if wanted else set()
    urls = try_again(store, context.root, frontier, kinds, batch or ())
    again = [one for one in wanted if one.number in back]
    requests, numbers = sum(one.size for one in again), [one.number for one in again]
    if output.document(
        {"frontier": frontier, "batches": numbers, "requests": requests, "urls": urls}
    ):
        return
    told = (
        [f"{counted(len(again), 'batch', 'batches')} with {counted(requests, 'request')}"]
        if again
        else []
    )
    told += [f"{counted(urls, 'request')} of batches that are done"] if urls else []
    say(f"{' and '.join(told) or 'Nothing'} waits again in {frontier}.")


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
            "Name what to delete: --prefix P for slots, or --all for the whole frontier. One of the two."
        )
    if prefix == "":
        raise ConfigError("An empty --prefix fits every slot. If that is meant, say --all.")
    store, row = opened(context, frontier)
    if all_:
        if row.kind != "frontier":
            raise ConfigError(
                f"{row.id} is a crawl, and goes as a whole by `sdist crawls clean {row.id}`."
            )
        check_idle(store, row)
    else:
        check_no_strategy(row)
    counts = slots_in(store.backlog(frontier))
    if not all_:
        counts = with_prefix(counts, frontier, prefix or "")
    slots, total = counted(len(counts), "slot"), total_of(counts)
    if not yes:
        what = f"{slots} of {frontier}"
        told = (
            ", ".join(f"{number:,} {kind}" for kind, number in total.items() if number)
            or "no requests"
        )
        lines = [f"{one.slot}: {counted(batches_in([one]), 'batch', 'batches')}" for one in counts]
        confirm(
            f"Delete {what} for good ({told})?",
            lines,
            most=SLOTS_SHOWN,
            refusal=f"{what} would be deleted ({told})",
        )
    document = {"frontier": frontier, "slots": [slot_document(one) for one in counts]}
    if all_:
        remove(store, context.root, row)
        made = {
            "batches": batches_in(counts),
            "requests": sum(total.values()),
            "left": [],
            "interrupted": False,
        }
        if not output.document({**document, **made}):
            say(f"Deleted the frontier {frontier} and all that was kept of it.")
        return 0
    names = {one.slot for one in counts}
    # What was cut has given all it had to its pieces, which may lie elsewhere.
    rows = [
        one
        for one in store.batches(frontier, set(BatchState) - {BatchState.SPLIT})
        if one.slot in names
    ]
    walked = walk(rows, lambda one: store.drop_batch(frontier, one.number, forget=True), "deleted")
    requests, batches = walked.words()
    return walked.end(
        output, document, f"Deleted {requests} in {batches}, of {slots} of {frontier}."
    )
