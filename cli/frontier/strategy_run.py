"""`sdist strategy run` and `join`: a crawling strategy, its workers, and more processes of it."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from scrapyd_dist.batches import Crawl, check_crawl_name
from scrapyd_dist.errors import INTERRUPTED, ConfigError, NothingMatched
from scrapyd_dist.fleet.live_crawls import lives
from scrapyd_dist.fleet.missing import missing_rows
from scrapyd_dist.fleet.project_store import SETTING, find_store_address
from scrapyd_dist.frontier.backlog import SPREAD
from scrapyd_dist.frontier.intake import STRATEGY, has_strategy, open_frontier
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.progress.summary_document import summary_of
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.settings import settings_of_options
from scrapyd_dist.store import Store
from scrapyd_dist.strategy.links import States, StrategyBacklog
from scrapyd_dist.strategy.terms import StrategyTerms

from ..context import Context
from ..crawls import wording
from ..crawls.crawl_options import SpiderOptions, pairs, refuse_secrets, settings_in
from ..options import NewLabels, Quiet, argument, checked_labels, frontiers, option, span, spiders
from ..output import Output, put, put_text, say
from .consume import announced, kept_running
from .frontier_list import settings_of
from .seed_streams import open_seeds, source_name

if TYPE_CHECKING:  # they load Scrapy
    from scrapy.settings import Settings
    from scrapyd_dist.middlewares.producer.strategy_process import StrategyRunner

StrategyName = Annotated[
    str, argument("NAME", "Its name, as `sdist strategy` shows it.", frontiers)
]
_Setting = Annotated[
    list[str] | None,
    option(
        "Setting of the project, in this process. Repeatable.", "-s", "--set", metavar="NAME=VALUE"
    ),
]
#: settings that are the strategy's own affair here, or a term of the command
_NOT_SENT = frozenset({"DISTRIBUTED_GOAL_TIME", "DISTRIBUTED_GOAL_DEPTH", "DISTRIBUTED_CRAWL"})
#: the panels of options in the help
_PANEL = "The strategy"
_GOALS = "Goals for the whole crawl"
_option = partial(option, panel=_PANEL)


@dataclass(frozen=True, kw_only=True)
class StrategyOptions(SpiderOptions, Output):
    """What `sdist strategy run` can be asked for; a field is a parameter of the command."""

    path: Annotated[
        str,
        argument("MODULE:CLASS", "The strategy, such as shop.strategies:News.", show_default=False),
    ]
    spider: Annotated[
        str,
        option(
            "The spider that crawls the pages.",
            "--spider",
            metavar="NAME",
            autocompletion=spiders,
            show_default=False,
        ),
    ]
    seeds: Annotated[
        str | None,
        option(
            "What read_seeds() gets, as lines: a file, - for standard input, or an address "
            "(https, s3, gs).",
            metavar="FILE|-|URL",
        ),
    ] = None
    arg: Annotated[
        list[str] | None,
        _option("Argument of the strategy. Repeatable.", "-a", metavar="NAME=VALUE"),
    ] = None
    spider_arg: Annotated[
        list[str] | None,
        option("Argument of the spider. Repeatable.", panel="The spider", metavar="NAME=VALUE"),
    ] = None
    name: Annotated[
        str | None,
        _option("The crawl's name; made from that of the class if left out.", metavar="NAME"),
    ] = None
    standing: Annotated[bool, option("Wait for more when nothing is left.")] = False
    max_depth: Annotated[
        int, _option("No link further from a seed than this; 0: any.", metavar="N", min=0)
    ] = 0
    ahead: Annotated[
        int,
        _option(
            "Requests of a site that are handed out ahead of its queue; 0: 64.", metavar="N", min=0
        ),
    ] = 0
    workers: Annotated[
        int, option("Workers at one time, over all nodes.", panel="Workers", metavar="N", min=1)
    ] = 8
    fair: Annotated[
        str | None,
        option(
            "How workers share the sites: spread, or by-domain (a site stays with one worker). "
            "spread if left out.",
            panel="Workers",
            metavar="KIND",
        ),
    ] = None
    max_time: Annotated[
        float | None, span("--max-time", "Leave after this time (90, 30m, 2h).", panel=_GOALS)
    ] = None
    max_items: Annotated[
        int, option("End once so many items have come since it began.", panel=_GOALS, min=0)
    ] = 0
    max_pages: Annotated[int, option("The same for pages.", panel=_GOALS, metavar="N", min=0)] = 0
    max_requests: Annotated[
        int, option("The same for requests that left.", panel=_GOALS, metavar="N", min=0)
    ] = 0
    max_errors: Annotated[
        int,
        option("The same for exceptions in the spider's code.", panel=_GOALS, metavar="N", min=0),
    ] = 0
    label: NewLabels = None
    quiet: Quiet = False

    def settings(self) -> dict[str, Any]:
        """Return the options as settings; options that are zero set nothing."""
        given = settings_of_options(self)
        own = {name: given[name] for name in given if given[name] and name not in _NOT_SENT}
        return own | self.delivery(Path.cwd())

    def terms(self) -> StrategyTerms:
        """Return what the strategy is and how it crawls, as the store keeps it."""
        return StrategyTerms(
            path=self.path,
            spider=self.spider,
            args=pairs("-a", self.arg),
            standing=self.standing,
            max_depth=self.max_depth,
            ahead=self.ahead,
        )


def name_of(path: str) -> str:
    """Return what a strategy's crawl is called: `BestNews` is `best-news`."""
    class_name = re.split(r"[:.]", path)[-1]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_name).lower()


def found_strategy(context: Context, name: str) -> tuple[Store, Crawl, StrategyTerms]:
    """Return the store, the row and the terms of a strategy.

    NothingMatched where there is none of that name.
    """
    check_crawl_name(name, "strategy")
    store = context.store_if_any
    names = []
    if store is not None:
        for listed in store.crawls():
            if listed.id == name:
                row = store.own_crawl(name)
                return store, row, StrategyTerms.from_row(row)
            if has_strategy(listed):
                names.append(listed.id)
    raise NothingMatched(
        f"There is no strategy {name}.{did_you_mean(name, names)} The strategies are: "
        f"{some_of(names) or 'none'}. `sdist strategy run MODULE:CLASS --spider SPIDER` starts one."
    )


def run(context: Context, wanted: StrategyOptions) -> int:
    """Crawl as a strategy decides: keep it and its workers running until nothing is left, and \
bring the items home.

    The strategy is a class of the project (scrapyd_dist.strategy.CrawlingStrategy).
    The spider needs no change: the links that its callbacks yield are offered to
    the strategy. After an interruption the same command goes on where it was, and
    leaves out seeds that are known. `sdist strategy join` adds a process of the
    strategy, here or on another machine.

    It ends when nothing is left to be requested, when finished() of the strategy
    says so in all of its processes, or at a goal. Workers go on when this command
    is interrupted.

    Example: sdist strategy run shop.strategies:News --spider page --seeds seeds.txt -o items.jl
    """  # noqa: D205  # the summary is one line of the help
    outputs = wanted.outputs(Path.cwd())
    checked_labels(wanted.label)
    name = check_crawl_name(wanted.name or name_of(wanted.path), "strategy")
    with ExitStack() as stack:
        seeds: Callable[[], Iterable[str] | None] = _no_seeds
        if wanted.seeds is not None:
            seeds = open_seeds(stack, wanted.seeds)
        code = _manage(context, wanted, name, outputs, seeds)
    ended = context.new_store.crawl(name)
    backlog = context.new_store.strategy_backlog(name)
    if not wanted.document({**summary_of(ended), "strategy": backlog.to_document()}):
        for line in wording.closing(ended, missing_rows(context.new_store, context.root, ended)):
            put_text(line)
        put(counts_line(backlog))
    return code


def _no_seeds() -> None:
    """Read no seeds, where none are given."""


def _manage(
    context: Context,
    wanted: StrategyOptions,
    name: str,
    outputs: list[dict[str, Any]],
    seeds: Callable[[], Iterable[str] | None],
) -> int:
    """Run the strategy and keep its workers running; gives the exit code."""
    from scrapyd_dist.middlewares.producer.consume_request import ConsumeRequest, frontier_request
    from scrapyd_dist.middlewares.producer.crawl_request import find_project
    from scrapyd_dist.middlewares.producer.strategy_process import StrategyRunner

    given = settings_in(wanted.setting)
    terms = wanted.terms()
    settings = _settings(
        context, name, terms, {**given, **wanted.settings(), "DISTRIBUTED_OUTPUTS": outputs}
    )
    runner = StrategyRunner.make(settings, name, terms, seeds, source_name(wanted.seeds or ""))
    row = _opened(context.new_store, name, find_project(settings).name, terms)
    args = pairs("--spider-arg", wanted.spider_arg)
    request = ConsumeRequest(
        settings=settings,
        crawl=frontier_request(settings, wanted.spider, args, given),
        scaling=ScalingPolicy(most=wanted.workers, per_slot=0, max_time=wanted.max_time or 0.0),
        before=(row.pid, row.host),
        strategy=runner,
        command=f"sdist strategy run {wanted.path} --spider {wanted.spider} …",
    )
    return kept_running(request, quiet=wanted.quiet)


def _settings(
    context: Context, name: str, terms: StrategyTerms, given: Mapping[str, Any]
) -> "Settings":
    """Return the project's settings for a process of a strategy, with those that were given."""
    from scrapyd_dist.middlewares.assignment import STRATEGY as CLASS

    refuse_secrets(given)
    ours = {
        "DISTRIBUTED_MODE": "pull",
        "DISTRIBUTED_CRAWL": name,
        SETTING: find_store_address(context.root),
        CLASS: terms.path,
    }
    settings = settings_of({**given, **ours})
    if settings.getpriority("DISTRIBUTED_FAIR") is None:  # batches as large in all processes
        settings.set("DISTRIBUTED_FAIR", SPREAD, priority="cmdline")
    return settings


def _opened(store: Store, name: str, project: str, terms: StrategyTerms) -> Crawl:
    """Return the row of the strategy's frontier, with these terms.

    ConfigError if it is another one's, or in use.
    """
    row = open_frontier(store, name, project=project, now=time.time(), strategy=terms.to_option())
    before = StrategyTerms.from_row(row)
    if before.path != terms.path:
        raise ConfigError(
            f"{name} is the crawl of another strategy, {before.path}. Give this one a name of its "
            f"own: --name NAME; or forget what that one knows: sdist frontier delete {name} --all"
        )
    if lives(row):
        raise ConfigError(
            f"Process {row.pid} on {row.host} runs the strategy {name} already. `sdist strategy "
            f"status {name}` says how it stands; `sdist strategy join {name}` adds a process to it."
        )
    if before != terms:
        store.update_crawl(name, options={**row.options, STRATEGY: terms.to_option()})
    return row


def counts_line(backlog: StrategyBacklog) -> str:
    """Return how far a strategy is, in a line."""
    states = backlog.states
    queued = f"{states.get(States.QUEUED, 0):,} queued"
    if backlog.later:
        queued += f" ({backlog.later:,} of them for later)"
    pieces = [
        f"{states.get(States.CRAWLED, 0):,} crawled",
        f"{states.get(States.ERROR, 0):,} failed",
        queued,
    ]
    if backlog.events:
        pieces.append(f"{counted(backlog.events, 'event')} to be handled")
    if backlog.dead:
        pieces.append(counted(backlog.dead, "dead letter"))
    return f"links: {' · '.join(pieces)}"


def join(
    context: Context,
    name: StrategyName,
    setting: _Setting = None,
    quiet: Quiet = False,
) -> int:
    """Add a process to a strategy, until the strategy has ended; here, or on another machine \
with the same store.

    The processes share the sites among them. Class and arguments are those of
    `sdist strategy run`; seeds are not read. Ctrl-C ends this process: its sites go
    to the others.

    Example: sdist strategy join news
    """  # noqa: D205  # the summary is one line of the help
    store, row, terms = found_strategy(context, name)
    from scrapyd_dist.middlewares.producer.strategy_process import StrategyRunner

    settings = _settings(context, row.id, terms, settings_in(setting))
    runner = StrategyRunner.make(settings, row.id, terms)
    runner.begin(store)
    if not quiet:
        say(
            f"This is one more process of the strategy {name}, until that has ended. Ctrl-C takes "
            "it out."
        )
    with announced(), _stopped_by_signals(runner):
        runner.run()
    if not quiet:
        put(counts_line(store.strategy_backlog(name)))
    if runner.over:
        return 0
    return INTERRUPTED


def add(
    context: Context,
    name: StrategyName,
    source: Annotated[
        str, argument("FILE|-|URL", "The seeds, as for `sdist strategy run --seeds`.")
    ],
    setting: _Setting = None,
    output: Output = Output(),
) -> int:
    """Add seeds to a strategy: its read_seeds() gets them, line by line, in this process.

    A strategy that runs takes them up at once, another one with the next `sdist
    strategy run`. Seeds that are known are left out.

    Example: sdist strategy add news more-seeds.txt
    """
    store, row, terms = found_strategy(context, name)
    from scrapyd_dist.middlewares.producer.strategy_process import SeedsStopped, StrategyRunner

    settings = _settings(context, row.id, terms, settings_in(setting))
    with ExitStack() as stack:
        seeds = open_seeds(stack, source)
        runner = StrategyRunner.make(settings, row.id, terms, seeds, source_name(source))
        runner.begin(store)
        try:
            with announced(), _stopped_by_signals(runner):
                new = runner.read()
        except SeedsStopped:
            say(
                "Not all of the seeds were read, and the strategy does not end without them: give "
                "them again."
            )
            return INTERRUPTED
    if not output.document({"strategy": name, "seeds": new}):
        waits = ""
        if not lives(row):
            waits = f" They wait for the next `sdist strategy run {terms.path} …`."
        seeds_read = f"{counted(new, 'seed')} of {source_name(source)}"
        say(f"{seeds_read} were new to the strategy {name}.{waits}")
    return 0


@contextmanager
def _stopped_by_signals(runner: "StrategyRunner") -> Iterator[None]:
    """Within this, a signal asks the process to end, and a second one ends it as it stands."""

    def stop(*_: object) -> None:
        """Ask the process to end; the second time, end it."""
        if runner.stop.is_set():
            os._exit(INTERRUPTED)
        runner.stop.set()

    before_interrupt = signal.signal(signal.SIGINT, stop)
    before_term = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before_interrupt)
        signal.signal(signal.SIGTERM, before_term)
