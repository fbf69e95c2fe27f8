"""`sdist frontier add`: fills slots with the requests of lists.

A row of a list that is no request is reported and skipped.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from scrapyd_dist.batches import check_crawl_name
from scrapyd_dist.errors import INTERRUPTED, PARTIAL, ConfigError
from scrapyd_dist.fleet.project_store import key_of
from scrapyd_dist.frontier.backlog import MAX_PRIORITY
from scrapyd_dist.frontier.intake import FrontierProducer, open_frontier
from scrapyd_dist.frontier.worklists import WorklistRow, format_of, rows
from scrapyd_dist.plurals import counted
from scrapyd_dist.settings import MOST_SLOTS, find_warnings
from scrapyd_dist.store import Store

from ..context import Context
from ..options import STDIN, FrontierName, argument, opened_file, option
from ..output import Output, complain, complain_each, say, waiting
from . import frontier_list
from .batch_walk import TELL

if TYPE_CHECKING:  # they load Scrapy
    from scrapy.settings import Settings
    from scrapyd_dist.middlewares.producer.worklist_import import RowReader, WorklistImport

#: seconds before the first line about how far it is
QUICK = 2.0
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
