"""`sdist frontier add`: a list goes into a frontier. A row that is no request is reported and skipped."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from scrapyd_dist.batches import check_crawl_name
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import MAX_PRIORITY
from scrapyd_dist.frontier.intake import FrontierProducer, open_frontier
from scrapyd_dist.frontier.worklists import WorklistRow, format_of, rows
from scrapyd_dist.settings import complaints

from ..context import Context, key_of
from ..crawls.wording import counted
from ..options import STDIN, FrontierName, argument, opened_file, option
from ..output import Output, complain, complain_each, say, waiting
from .frontier_list import settings_of

if TYPE_CHECKING:  # it loads Scrapy
    from scrapyd_dist.middlewares.producer.worklist_import import RowReader, WorklistImport

#: seconds between two lines about how far it is, and in which none is needed
TELL, QUICK = 10.0, 2.0
_SLOTS = "Slots"


def add(
    context: Context,
    frontier: FrontierName,
    file: Annotated[str, argument("FILE", "The list; - is standard input.", show_default=False)] = STDIN,
    format_: Annotated[
        Literal["urls", "jsonl", "csv"] | None,
        option("urls, jsonl or csv; by the name of the file if left out.", metavar="KIND"),
    ] = None,
    as_: Annotated[
        Literal["requests", "arguments"], option("What a row is: requests, or arguments of a spider.", metavar="WHAT")
    ] = "requests",
    column: Annotated[str | None, option("Of a CSV: the column with the URLs, by name or number.", metavar="C")] = None,
    spider_callback: Annotated[
        str | None, option("Callback of requests that name none; parse if left out.", metavar="NAME")
    ] = None,
    priority: Annotated[int, option("Priority of requests that have none; the highest goes first.", metavar="N")] = 0,
    slots: Annotated[int | None, option("Spread over this many slots.", panel=_SLOTS, metavar="N", min=1)] = None,
    prefix: Annotated[str | None, option("What the slots' names begin with.", panel=_SLOTS, metavar="P")] = None,
    slot_by: Annotated[
        Literal["fingerprint", "domain", "site"] | None,
        option("fingerprint or domain: what decides; site: a slot for each.", panel=_SLOTS, metavar="KIND"),
    ] = None,
    standing: Annotated[
        bool | None, option("Whether the frontier waits for more for ever, or can finish.", "--standing/--no-standing")
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
    spider: a CSV whose columns are their names, or JSON lines. `sdist consume`
    then starts a job for each.

    Example: sdist frontier add shop urls.txt --slots 8 --spider-callback parse_article
    """
    asked = {"DISTRIBUTED_SLOTS": slots, "DISTRIBUTED_SLOT_PREFIX": prefix, "DISTRIBUTED_SLOT_BY": slot_by}
    asked = {name: it for name, it in asked.items() if it is not None}
    if spider_callback is not None and not spider_callback.isidentifier():
        raise ConfigError(f"--spider-callback {spider_callback!r} cannot be the name of a method.")
    arguments = as_ == "arguments"
    if arguments and (spider_callback is not None or asked):
        raise ConfigError("--as arguments: rows of arguments have no callback and no slots. Leave these options out.")
    if abs(priority) > MAX_PRIORITY:
        raise ConfigError(f"--priority {priority}: it must be between -{MAX_PRIORITY} and {MAX_PRIORITY}.")
    from scrapyd_dist.middlewares.producer.crawl_request import find_project
    from scrapyd_dist.middlewares.producer.producer_options import read_options
    from scrapyd_dist.middlewares.producer.worklist_import import argument_reader, request_reader
    from scrapyd_dist.middlewares.slot_routing import SlotRouting

    root = context.root
    with ExitStack() as stack:
        listed = rows(opened_file(stack, file), kind=format_ or format_of(file), column=column, arguments=arguments)
        settings = settings_of({"DISTRIBUTED_MODE": "pull", **asked})
        complain_each(complaints(settings))
        key, project = key_of(root), find_project(settings).name
        if arguments:
            read = argument_reader(priority)
        else:
            routing = SlotRouting.from_settings(settings, project=project)
            read = request_reader(settings, routing, key=key, callback=spider_callback, priority=priority)
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
                store, frontier, project=project, now=time.time(), standing=standing, arguments=arguments
            )
            if row.standing is not standing:
                store.update_crawl(row.id, standing=standing)
        account, interrupted = _fill(producer, read, listed)
    return _tell(frontier, account, interrupted=interrupted, output=output)


def _fill(producer: FrontierProducer, read: "RowReader", rows: Iterator[WorklistRow]) -> tuple["WorklistImport", bool]:
    """Add the rows; returns the counts, and whether Ctrl-C interrupted it."""
    from scrapyd_dist.middlewares.producer.worklist_import import WorklistImport

    account = WorklistImport(producer=producer, read=read)
    with waiting(TELL, first=QUICK) as show, closing(account.fill(rows)) as filling:
        try:
            for _ in filling:
                show(f"{account.added:,} requests added to {producer.frontier}")
        except KeyboardInterrupt:
            return account, True
    return account, False


def _tell(frontier: str, account: "WorklistImport", *, interrupted: bool, output: Output) -> int:
    for row in account.told:
        complain(f"line {row.line}: {row.reason}.")
    if account.bad > len(account.told):
        complain(f"and {account.bad - len(account.told):,} more rows like these.")
    document = {
        "frontier": frontier, "rows": account.rows, "added": account.added, "duplicate": account.duplicate,
        "bad": account.bad, "bad_rows": [{"line": row.line, "reason": row.reason} for row in account.told],
        "interrupted": interrupted,
    }  # fmt: skip
    if not output.document(document):
        asides = {"there before": account.duplicate, "no requests": account.bad}
        told = "".join(f", {number:,} {what}" for what, number in asides.items() if number)
        say(f"{counted(account.added, 'request')} added to {frontier}{told}, of {counted(account.rows, 'row')}.")
    if interrupted:
        say("Interrupted; the same command adds the rest, and leaves out what is there.")
        return 130
    some = account.added or account.duplicate
    return 0 if not account.bad else 3 if some else 1
