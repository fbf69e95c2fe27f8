"""`sdist frontier consume`: keeps workers running at one frontier, in the foreground.

Jobs that it started outlive it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.frontier_listing import filled_slots
from scrapyd_dist.fleet.live_crawls import lives
from scrapyd_dist.fleet.missing import missing_rows
from scrapyd_dist.fleet.project_store import SETTING, find_store_address
from scrapyd_dist.frontier.intake import has_arguments, has_strategy
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.summary_document import count_in, summary_of
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.settings import settings_of_options

from ..context import Context
from ..crawls import wording
from ..crawls.crawl_options import SpiderOptions, pairs, refuse_secrets, settings_in, stdout_for
from ..options import FrontierName, NewLabels, Quiet, SpiderName, checked_labels, option, span
from ..output import Output, complain, put, waiting
from .frontier_list import find_frontier, settings_of, with_prefix

if TYPE_CHECKING:  # it loads Scrapy
    from scrapyd_dist.middlewares.producer.consume_request import ConsumeRequest

#: the panel of these options in the help
_PANEL = "Workers"
_option = partial(option, panel=_PANEL)


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions(SpiderOptions, Output):
    """What `sdist frontier consume` can be asked for; a field is a parameter of the command."""

    spider: SpiderName
    frontier: FrontierName
    slots: Annotated[
        str | None,
        option("Only the slots whose names begin like this.", "--prefix", metavar="PREFIX"),
    ] = None
    max_running: Annotated[
        int, option("Workers at one time, over all nodes.", metavar="N", min=0)
    ] = 8
    per_slot: Annotated[
        int, _option("Workers on one slot; 0 binds none to a slot.", metavar="N", min=0)
    ] = 1
    fair: Annotated[
        str | None,
        _option(
            "Take from the slots in turn: spread, or by-domain (a slot stays with one worker). "
            "Binds no worker to a slot.",
            metavar="KIND",
        ),
    ] = None
    loop: Annotated[
        float | None,
        _option(
            "Start workers every so often only; 0: once, and leave. Without it, whenever there is "
            "work.",
            metavar="TIME",
            min=0,
        ),
    ] = None
    max_time: Annotated[
        float | None,
        span("--max-time", "Start no more after this time (90, 30m, 2h), and leave.", panel=_PANEL),
    ] = None
    max_batches: Annotated[
        int, _option("A worker ends after so many batches; 0: no limit.", metavar="N", min=0)
    ] = 0
    max_requests: Annotated[
        int,
        _option("A worker takes no batch after so many requests; 0: no limit.", metavar="N", min=0),
    ] = 0
    max_items: Annotated[
        int, _option("End once so many items have come since it began.", metavar="N", min=0)
    ] = 0
    max_pages: Annotated[int, _option("The same for pages.", metavar="N", min=0)] = 0
    max_errors: Annotated[
        int, _option("The same for exceptions in the spider's code.", metavar="N", min=0)
    ] = 0
    idle: Annotated[
        float | None,
        span(
            "--idle",
            "At a standing frontier, a worker ends when it had no work for so long.",
            panel=_PANEL,
        ),
    ] = None
    label: NewLabels = None
    quiet: Quiet = False

    def scaling(self) -> ScalingPolicy:
        """Return how many workers are to run, and for how long."""
        return ScalingPolicy(
            most=self.max_running,
            per_slot=self.per_slot,
            prefix=self.slots or "",
            every=self.loop,
            max_time=self.max_time or 0.0,
        )

    def settings(self) -> dict[str, Any]:
        """Return the other options as settings; options that are zero set nothing."""
        given = settings_of_options(self, "frontier consume")
        given.pop("DISTRIBUTED_GOAL_TIME", None)
        return {name: given[name] for name in given if given[name]} | self.delivery(Path.cwd())

    def check_rows(self) -> None:
        """Refuse options for workers at a frontier whose rows are jobs."""
        options = {
            "--prefix": self.slots,
            "--fair": self.fair,
            "--loop": self.loop is not None,
            "--max-batches": self.max_batches,
            "--max-requests": self.max_requests,
            "--idle": self.idle,
        }
        given = [name for name in options if options[name]]
        if given:
            raise ConfigError(
                f"The rows of {self.frontier} are arguments, and each is a job of its own: "
                f"{', '.join(given)} is for workers that lease requests. Leave it out."
            )

    def outputs(self, folder: Path) -> list[dict[str, Any]]:
        """Return the files that the items go to; ConfigError where this command does not wait."""
        outputs = super().outputs(folder)
        if outputs and self.loop == 0:
            raise ConfigError(
                "--loop 0 leaves before any items are home, so there is nothing to write to -o. "
                f"Leave one of the two out; `sdist items merge {self.frontier} -o FILE` makes the "
                "file of what has come home later."
            )
        return outputs


def consume(context: Context, wanted: ConsumeOptions) -> int:
    """Keep workers of a spider running at a frontier until nothing is left, and bring the items \
home.

    Without -o they go to FRONTIER.jl in this folder. The code is uploaded to nodes
    that lack it. Workers are jobs that lease one batch after the other. They go on
    when this command ends: Ctrl-C ends the managing only, and the same command
    takes it up again. A slot whose workers always fail is given up and named (exit
    code 1). At a standing frontier it runs on until it is ended, or --max-time is
    up (exit code 124).

    Where the rows are arguments (`sdist frontier add --as arguments`), each is
    one job of the spider with these arguments; one that fails is tried again,
    and dead after DISTRIBUTED_MAX_ATTEMPTS.

    Example: sdist frontier consume article shop --prefix p --max-running 8 -o items.jl
    """  # noqa: D205  # the summary is one line of the help
    with stdout_for(wanted.add_to, wanted.overwrite, context, taken=wanted.as_json) as (
        add_to,
        overwrite,
    ):
        return _consume(context, replace(wanted, add_to=add_to, overwrite=overwrite))


def _consume(context: Context, wanted: ConsumeOptions) -> int:
    outputs = wanted.outputs(Path.cwd())
    checked_labels(wanted.label)
    store, row = find_frontier(context, wanted.frontier)
    _check_unmanaged(row)
    own = store.own_crawl(row.id)
    if has_strategy(own):
        raise ConfigError(
            f"{row.id} is a crawling strategy's, and its workers run beside a process of that: "
            f"`sdist strategy run`. `sdist strategy status {row.id}` says how it stands."
        )
    rows = has_arguments(own)
    if rows:
        wanted.check_rows()
    backlog = store.backlog(row.id)
    may_be_filled = backlog.standing or backlog.producers
    if wanted.slots is not None and not may_be_filled:
        with_prefix(filled_slots(backlog), row.id, wanted.slots)
    code = _manage(context.root, wanted, outputs, rows=rows, before=(row.pid, row.host))
    ended = store.crawl(row.id)
    if not wanted.document(summary_of(ended)):
        for line in wording.closing(ended, missing_rows(store, context.root, ended)):
            put(line)
    return code


def _check_unmanaged(row: Crawl) -> None:
    """Refuse a crawl, and a frontier whose workers another process keeps running."""
    if row.kind != "frontier":
        raise ConfigError(
            f"{row.id} is a crawl: its own process keeps its workers running, and `sdist resume "
            f"{row.id}` starts that again."
        )
    if lives(row):
        raise ConfigError(
            f"Process {row.pid} on {row.host} keeps the workers of the frontier {row.id} running "
            f"already; two would start too many. `sdist status {row.id}` says how it stands; "
            f"`kill -INT {row.pid}` there ends it."
        )


def _manage(
    root: Path,
    wanted: ConsumeOptions,
    outputs: list[dict[str, Any]],
    *,
    rows: bool,
    before: tuple[int | None, str],
) -> int:
    """Keep the workers running; gives the exit code.

    rows: the frontier has arguments of jobs; before: process id and machine of the last manager.
    """
    from scrapyd_dist.middlewares.producer.consume_request import ConsumeRequest, frontier_request

    given = settings_in(wanted.setting)
    args = pairs("-a", wanted.arg)
    refuse_secrets(given)
    # A row of arguments is a job of its own, which has no need to reach the store.
    ours = {
        "DISTRIBUTED_MODE": "push" if rows else "pull",
        "DISTRIBUTED_CRAWL": wanted.frontier,
        SETTING: find_store_address(root),
    }
    settings = settings_of({**given, **wanted.settings(), **ours, "DISTRIBUTED_OUTPUTS": outputs})

    request = ConsumeRequest(
        settings=settings,
        crawl=frontier_request(settings, wanted.spider, args, given),
        scaling=wanted.scaling(),
        merge=wanted.loop != 0,
        rows=rows,
        before=before,
        command=f"sdist frontier consume {wanted.spider} {wanted.frontier}",
    )
    return kept_running(request, quiet=wanted.quiet)


def kept_running(request: "ConsumeRequest", *, quiet: bool) -> int:
    """Consume the frontier to the end, and say meanwhile how it stands and what is warned of.

    Gives its exit code.
    """
    import asyncio

    from scrapyd_dist.middlewares.producer.consume_process import ConsumeProcess

    def show_progress(summary: dict[str, Any]) -> None:
        """Show how the frontier stands."""
        if summary["batches"]["total"]:  # it has been looked at
            show(_line(request.frontier, summary))

    process = ConsumeProcess(request, show_progress)
    silence = nullcontext(lambda _: None)
    with announced(), silence if quiet else waiting() as show:
        return asyncio.run(process.run())


@contextmanager
def announced() -> Iterator[None]:
    """Within this, what the program warns of is a line for people."""
    logger = logging.getLogger("scrapyd_dist")
    announcer = _Announcer(level=logging.WARNING)
    propagated = logger.propagate
    logger.propagate = False
    logger.addHandler(announcer)
    try:
        yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(announcer)


def _line(frontier: str, summary: dict[str, Any]) -> str:
    workers = 0
    up = 0
    nodes = summary.get("nodes") or ()
    for node in nodes:
        workers += node.get("running", 0)
        up += node.get("state") in wording.USED
    unsent = count_in(summary, "requests", "total") - count_in(summary, "requests", "sent")
    batches = count_in(summary, "batches", "total")
    pieces = [
        counted(workers, "worker"),
        f"waiting {unsent:,}",
        f"done {count_in(summary, 'requests', 'done'):,}",
        f"batches {count_in(summary, 'batches', 'done'):,}/{batches:,}",
        wording.rated(summary, "items"),
        wording.rated(summary, "failed"),
        f"nodes {up}/{len(nodes)}",
    ]
    return f"{frontier}: {' · '.join(filter(None, pieces))}"


class _Announcer(logging.Handler):
    """Shows a log record as a line for people."""

    def emit(self, record: logging.LogRecord) -> None:
        """Complain of what the record says, and of its exception."""
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage()
        if error is not None and str(error) not in text:
            text += f": {type(error).__name__}: {error}"
        complain(text)
