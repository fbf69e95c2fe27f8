"""Run a crawling strategy: find and make its class, and let its manager make rounds.

The rule it keeps: the class is found and made before anything is started. What a handler raises
ends no process; what `from_crawler` and `read_seeds` raise is told in a paragraph.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TypeGuard

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapyd_dist.errors import ConfigError, DistError, StoreError, fault_of
from scrapyd_dist.frontier.intake import Registration, may_live, this_process
from scrapyd_dist.keys import state_key
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.strategy.interface import CrawlingStrategy
from scrapyd_dist.strategy.links import WORK
from scrapyd_dist.strategy.manager import AHEAD, HELD, StrategyManager, seeds_work
from scrapyd_dist.strategy.terms import StrategyTerms

from ..codec import plain_request
from ..slot_routing import SlotPlacement
from .crawl_request import CrawlRequest, find_project
from .process import check_known, project_code
from .producer_options import read_options
from .read_ahead import read_ahead

logger = logging.getLogger(__name__)
#: seconds between two rounds when there was nothing to do
_IDLE = 0.3
#: seconds for which a store that does not answer is asked again
_PATIENCE = 120.0
#: seconds between two tries to reach a store that does not answer
_RETRY_PAUSE = 1.0
#: seconds that a round which is under way gets to come to its end
_LAST_ROUND = 15.0
#: opens the lines of the seeds; None: there are none
SeedOpener = Callable[[], Iterable[str] | None]


class StrategyFault(DistError):
    """The code of a strategy has raised where nothing can go on without it."""


def load_strategy(path: str) -> type[CrawlingStrategy]:
    """Import the class that MODULE:CLASS names, from the project; ConfigError if that is none."""
    module, sign, name = path.partition(":")
    if not (module and name):
        example = "shop.strategies:News"
        if "." in path and not sign:
            example = ":".join(path.rsplit(".", 1))
        raise ConfigError(
            f"{path!r} does not name a strategy. Write MODULE:CLASS, such as {example}."
        )
    loaded = _import_strategies(module, path)
    found = getattr(loaded, name, None)
    if _is_strategy(found):
        return found
    what = f"{path} is no crawling strategy"
    if found is None:
        what = f"The module {module} has no {name}"
    own = ", ".join(_strategies_in(loaded, module)) or "none"
    raise ConfigError(
        f"{what}. Name a class that is made from scrapyd_dist.strategy.CrawlingStrategy; of those,"
        f" {module} has: {own}."
    )


def _import_strategies(module: str, path: str) -> ModuleType:
    """Import the module of the strategy `path`; ConfigError if that fails."""
    try:
        return import_module(module)
    except Exception as error:
        raise ConfigError(_describe_failure(module, path, error)) from error


def _describe_failure(module: str, path: str, error: Exception) -> str:
    """Say why the module of a strategy cannot be imported: it is not there, or its code raises."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        return (
            f"There is no module {module} for the strategy {path}: the project has no {missing}."
            " Modules are looked for in the folder of scrapy.cfg."
        )
    return f"The strategy's module {module} cannot be imported: {fault_of(error)}."


def _strategies_in(loaded: ModuleType, module: str) -> list[str]:
    """Return the names of the strategies that a module or package defines."""
    own = []
    # A package may load its names when they are asked for.
    for name in getattr(loaded, "__all__", vars(loaded)):
        kind = getattr(loaded, name, None)
        if _is_strategy(kind) and f"{kind.__module__}.".startswith(f"{module}."):
            own.append(kind.__name__)
    return own


def _is_strategy(found: object) -> TypeGuard[type[CrawlingStrategy]]:
    return (
        isinstance(found, type)
        and issubclass(found, CrawlingStrategy)
        and found is not CrawlingStrategy
    )


def unstarted_crawler(spider: type[Spider], settings: Settings) -> Crawler:
    """Make a crawler that crawls nothing, with the spider's settings, stats and fingerprinter."""
    crawler = Crawler(spider, settings)
    crawler.stats = load_object(crawler.settings["STATS_CLASS"])(crawler)
    crawler.request_fingerprinter = build_from_crawler(
        load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"]), crawler
    )
    return crawler


def make_strategy(
    kind: type[CrawlingStrategy], crawler: Crawler, args: Mapping[str, str]
) -> CrawlingStrategy:
    """Let the class make the strategy; ConfigError if it raises, or refuses the arguments."""
    usual = CrawlingStrategy.from_crawler.__func__  # type: ignore[attr-defined]
    has_own = getattr(kind.from_crawler, "__func__", None) is not usual
    try:
        if has_own:
            inspect.signature(kind.from_crawler).bind(crawler, **args)
        else:
            inspect.signature(kind).bind(**args)
    except TypeError as error:
        given = " ".join(f"-a {name}=…" for name in args) or "no -a"
        raise ConfigError(
            f"The strategy {kind.__name__} does not take these arguments ({given}): {error}."
        ) from error
    try:
        return kind.from_crawler(crawler, **args)
    except DistError:
        raise
    except Exception as error:
        raise ConfigError(
            f"The strategy {kind.__name__} cannot be made, since from_crawler() raised"
            f" {fault_of(error)}. Nothing was started; --debug shows the traceback."
        ) from error


class SeedsStopped(DistError):
    """The process is to end before all seeds are read.

    It does not sign off, and the next one reads them again.
    """


@dataclass(kw_only=True)
class StrategyRunner:
    """Runs one process of a strategy.

    `run` is to be called in one thread, which opens a connection of its own.
    """

    frontier: str
    terms: StrategyTerms
    strategy: CrawlingStrategy
    fingerprint: Callable[[RequestValue], bytes]  #: of a request, as the project computes it
    where: str  #: the store's address
    key: bytes  #: of the project's state
    size: int  #: most requests in a batch
    seeds: SeedOpener | None = None  #: None: it joins others, and reads none
    source: str = ""  #: what the seeds are read from, by name
    process: str = field(default_factory=this_process)
    stop: threading.Event = field(default_factory=threading.Event)  #: asks it to end
    over: bool = False  #: the strategy has ended

    @classmethod
    def make(
        cls,
        settings: Settings,
        frontier: str,
        terms: StrategyTerms,
        seeds: SeedOpener | None = None,
        source: str = "",
    ) -> "StrategyRunner":
        """Make the process that the terms describe; DistError if the project cannot do that."""
        spider = check_known(settings, terms.spider)
        options = read_options(settings)
        with project_code():
            crawler = unstarted_crawler(spider, settings)
        request = CrawlRequest(spider=terms.spider, options=options, project=find_project(settings))
        placing = SlotPlacement(crawler.request_fingerprinter.fingerprint, None)
        return cls(
            frontier=frontier,
            terms=terms,
            strategy=make_strategy(load_strategy(terms.path), crawler, terms.args),
            fingerprint=lambda value: placing.place(plain_request(value), "", None)[1],
            where=request.store,
            key=state_key(request.project.state),
            size=options.batch_size,
            seeds=seeds,
            source=source,
        )

    def begin(self, store: Store) -> None:
        """Register before any worker looks whether there may be more work.

        Partitions of processes that died are free then.
        """
        self._register(store, WORK)
        if self.seeds is not None:
            self._register(store, seeds_work(self.source))
            # What an earlier run had finished goes on with these seeds.
            store.end_strategy(self.frontier, ended=False)
        for process in store.strategy_backlog(self.frontier).processes:
            if not may_live(process.name, self.process):
                store.leave_partitions(self.frontier, process.name)

    def _register(self, store: Store, work: str) -> None:
        """Let the frontier know that this process may bring more work of this kind."""
        registration = Registration(
            store=store, frontier=self.frontier, work=work, process=self.process, seconds=HELD
        )
        registration.renew()

    def run(self) -> None:
        """Make rounds until the strategy has ended, or `stop` is set."""
        with closing(open_store(self.where, key=self.key)) as store:
            manager = self._new_manager(store)
            try:
                with suppress(SeedsStopped):
                    self._read_seeds(manager)
                while not (self.stop.is_set() or manager.over):
                    if not self._make_round(manager.work):
                        self.stop.wait(_IDLE)
                # Only the process that the others have joined waits for them: one that was killed
                # counts as lost after some seconds.
                while self.seeds is not None and manager.over and manager.others():
                    if self.stop.wait(_IDLE):
                        break
            finally:
                self._close(manager, leave=manager.over)

    def read(self) -> int:
        """Read the seeds, and leave the rest to other processes.

        Returns how many were new. SeedsStopped if `stop` is set.
        """
        with closing(open_store(self.where, key=self.key)) as store:
            manager = self._new_manager(store)
            try:
                return self._read_seeds(manager)
            finally:
                self._close(manager, leave=True)

    def _new_manager(self, store: Store) -> StrategyManager:
        return StrategyManager(
            store=store,
            crawl=self.frontier,
            process=self.process,
            strategy=self.strategy,
            fingerprint=self.fingerprint,
            key=self.key,
            source=self.source,
            max_depth=self.terms.max_depth,
            standing=self.terms.standing,
            ahead=self.terms.ahead or AHEAD,
            size=self.size,
        )

    def _close(self, manager: StrategyManager, *, leave: bool) -> None:
        self.over = manager.over
        try:
            manager.close(leave=leave)
        except DistError:
            raise
        except Exception:
            logger.exception("close() of the strategy %s raised", self.terms.path)

    def _read_seeds(self, manager: StrategyManager) -> int:
        """Read the seeds, if there are any; return how many were new."""
        if self.seeds is None:
            return 0
        try:
            lines = self.seeds()
            if lines is not None:
                lines = self._until_stopped(lines, manager)
            new = manager.read_seeds(lines)
        except DistError:
            raise
        except Exception as error:
            raise StrategyFault(
                f"read_seeds() of the strategy {self.terms.path} raised {fault_of(error)}. What it"
                " had scheduled by then goes on; the same command reads the seeds again. --debug"
                " shows the traceback."
            ) from error
        logger.info("Crawl %s: %d seeds were new", self.frontier, new)
        if not new and not any(manager.store.strategy_backlog(self.frontier).states.values()):
            logger.warning(
                "The strategy has scheduled no seed and knows no link, so there is nothing to"
                " request. End it, and give its read_seeds() some lines with --seeds."
            )
        return new

    def _until_stopped(self, lines: Iterable[str], manager: StrategyManager) -> Iterator[str]:
        """Yield the lines, with rounds between them, as they may come slowly.

        SeedsStopped once this process is to end.
        """
        for batch in read_ahead(lines):
            for line in batch:
                if self.stop.is_set():
                    raise SeedsStopped
                yield line
            if self.stop.is_set():
                raise SeedsStopped
            self._make_round(manager.work_between_seeds)

    def _make_round(self, work: Callable[[], bool]) -> bool:
        """Make a round; return whether there was work.

        A store that does not answer is asked again for a while: nothing is lost meanwhile.
        """
        since = time.monotonic()
        while True:
            try:
                return work()
            except StoreError:
                if time.monotonic() - since > _PATIENCE:
                    raise
                if self.stop.wait(_RETRY_PAUSE):
                    return False


class StrategyThread:
    """Runs a strategy process in a thread of a process that has an event loop."""

    def __init__(self, runner: StrategyRunner) -> None:
        self._runner = runner
        self._end: Future[None] = Future()

    def start(self) -> None:
        """Start the thread."""
        self._end.set_running_or_notify_cancel()  # no waiting task can cancel it from now on
        # A daemon: nothing ends a read of seeds from a terminal or a pipe.
        threading.Thread(target=self._run, name="sdist-strategy", daemon=True).start()

    def _run(self) -> None:
        try:
            self._runner.run()
        except BaseException as error:  # noqa: BLE001  (`ended` raises it)
            self._end.set_exception(error)
        else:
            self._end.set_result(None)

    async def ended(self) -> None:
        """Wait for the end of the process; raises what it has failed by."""
        await asyncio.wrap_future(self._end)

    async def stop(self) -> None:
        """Let the process close the strategy and leave its partitions.

        Of its error `ended` tells. A second call does nothing.
        """
        if self._runner.stop.is_set():
            return
        self._runner.stop.set()
        with suppress(Exception):
            await asyncio.wait_for(self.ended(), _LAST_ROUND)
        if self._end.running():
            logger.warning(
                "The strategy of %s is still at work, and is left as it is: its partitions are free"
                " in %g s.",
                self._runner.frontier,
                HELD,
            )
