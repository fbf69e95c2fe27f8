"""A process of a crawling strategy: the class of the project, and the loop in which its manager makes rounds.

The rule it keeps: the class is found and made before anything is started. What a handler raises ends no process; what
`from_crawler` and `read_seeds` raise is told in a paragraph.
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
from typing import TypeGuard

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapyd_dist.errors import ConfigError, DistError, StoreError, fault_of
from scrapyd_dist.frontier.intake import Registration, is_dead, this_process
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
#: seconds for which a store that does not answer is asked again, and those between two tries
_PATIENCE, _AGAIN = 120.0, 1.0
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
        meant = (
            ":".join(path.rsplit(".", 1)) if "." in path and not sign else "shop.strategies:News"
        )
        raise ConfigError(
            f"{path!r} does not name a strategy. Write MODULE:CLASS, such as {meant}."
        )
    try:
        there = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"There is no module {module} for the strategy {path}: the project has no {error.name}. Modules are"
                " looked for in the folder of scrapy.cfg."
            ) from error
        raise ConfigError(
            f"The strategy's module {module} cannot be imported: {fault_of(error)}."
        ) from error
    except Exception as error:
        raise ConfigError(
            f"The strategy's module {module} cannot be imported: {fault_of(error)}."
        ) from error
    found = getattr(there, name, None)
    if _is_strategy(found):
        return found
    names = getattr(
        there, "__all__", vars(there)
    )  # a package may load its names when they are asked for
    kinds = [one for one in (getattr(there, name, None) for name in names) if _is_strategy(one)]
    own = (
        ", ".join(kind.__name__ for kind in kinds if f"{kind.__module__}.".startswith(f"{module}."))
        or "none"
    )
    what = (
        f"The module {module} has no {name}" if found is None else f"{path} is no crawling strategy"
    )
    raise ConfigError(
        f"{what}. Name a class that is made from scrapyd_dist.strategy.CrawlingStrategy; of those, {module} has: {own}."
    )


def _is_strategy(found: object) -> TypeGuard[type[CrawlingStrategy]]:
    return (
        isinstance(found, type)
        and issubclass(found, CrawlingStrategy)
        and found is not CrawlingStrategy
    )


def unstarted_crawler(spider: type[Spider], settings: Settings) -> Crawler:
    """Make a crawler of the spider that crawls nothing, with its settings, stats and fingerprinter."""
    crawler = Crawler(spider, settings)
    crawler.stats = load_object(crawler.settings["STATS_CLASS"])(crawler)
    crawler.request_fingerprinter = build_from_crawler(
        load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"]), crawler
    )
    return crawler


def make_strategy(
    kind: type[CrawlingStrategy], crawler: Crawler, args: Mapping[str, str]
) -> CrawlingStrategy:
    """Let the class make the strategy; ConfigError if it does not take these arguments, or raises."""
    own = getattr(kind.from_crawler, "__func__", None) is not CrawlingStrategy.from_crawler.__func__  # type: ignore[attr-defined]
    try:
        inspect.signature(kind.from_crawler if own else kind).bind(
            *([crawler] if own else []), **args
        )
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
            f"The strategy {kind.__name__} cannot be made, since from_crawler() raised {fault_of(error)}. Nothing was"
            " started; --debug shows the traceback."
        ) from error


class SeedsStopped(DistError):
    """The process is to end before all seeds are read: it does not sign off, and the next one reads them again."""


@dataclass(kw_only=True)
class StrategyRunner:
    """One process of a strategy. `run` is to be called in one thread, which opens a connection of its own."""

    frontier: str
    terms: StrategyTerms
    strategy: CrawlingStrategy
    fingerprint: Callable[[RequestValue], bytes]
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
        """Make what the terms say of the project with these settings; DistError if that cannot be."""
        spider, options = check_known(settings, terms.spider), read_options(settings)
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
        """Register before any worker looks whether there may be more work; take the place of processes that died."""
        reads = self.seeds is not None
        for work in (WORK, seeds_work(self.source)) if reads else (WORK,):
            Registration(
                store=store, frontier=self.frontier, work=work, process=self.process, seconds=HELD
            ).renew()
        if reads:  # what an earlier run had finished goes on with these seeds
            store.end_strategy(self.frontier, ended=False)
        for one in store.strategy_backlog(self.frontier).processes:
            if is_dead(one.name, self.process):
                store.leave_partitions(self.frontier, one.name)

    def run(self) -> None:
        """Make rounds until the strategy has ended, or `stop` is set."""
        with closing(open_store(self.where, key=self.key)) as store:
            manager = self._manager(store)
            try:
                with suppress(SeedsStopped):
                    self._read_seeds(manager)
                while not (self.stop.is_set() or manager.over):
                    if not self._round(manager.work):
                        self.stop.wait(_IDLE)
                # Of the process that the others have joined: one that was killed counts as lost after some seconds.
                while self.seeds is not None and manager.over and manager.others():
                    if self.stop.wait(_IDLE):
                        break
            finally:
                self._close(manager, leave=manager.over)

    def read(self) -> int:
        """Read the seeds, and leave the rest to other processes; how many were new. SeedsStopped if `stop` is set."""
        with closing(open_store(self.where, key=self.key)) as store:
            manager = self._manager(store)
            try:
                return self._read_seeds(manager)
            finally:
                self._close(manager, leave=True)

    def _manager(self, store: Store) -> StrategyManager:
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
        """Read the seeds, if there are any; how many were new."""
        if self.seeds is None:
            return 0
        try:
            lines = self.seeds()
            new = manager.read_seeds(None if lines is None else self._until_stopped(lines, manager))
        except DistError:
            raise
        except Exception as error:
            raise StrategyFault(
                f"read_seeds() of the strategy {self.terms.path} raised {fault_of(error)}. What it had scheduled by"
                " then goes on; the same command reads the seeds again. --debug shows the traceback."
            ) from error
        logger.info("Crawl %s: %d seeds were new", self.frontier, new)
        if not new and not any(manager.store.strategy_backlog(self.frontier).states.values()):
            logger.warning(
                "The strategy has scheduled no seed and knows no link, so there is nothing to request. End it, and give"
                " its read_seeds() some lines with --seeds."
            )
        return new

    def _until_stopped(self, lines: Iterable[str], manager: StrategyManager) -> Iterator[str]:
        """The lines, with rounds between them, as they may come slowly. SeedsStopped once this process is to end."""
        for some in read_ahead(lines):
            for line in some:
                if self.stop.is_set():
                    raise SeedsStopped
                yield line
            if self.stop.is_set():
                raise SeedsStopped
            self._round(manager.work_between_seeds)

    def _round(self, work: Callable[[], bool]) -> bool:
        """Make a round; a store that does not answer is asked again for a while, because nothing is lost meanwhile."""
        since = time.monotonic()
        while True:
            try:
                return work()
            except StoreError:
                if time.monotonic() - since > _PATIENCE:
                    raise
                if self.stop.wait(_AGAIN):
                    return False


class StrategyThread:
    """A strategy process in a thread of a process that has an event loop."""

    def __init__(self, runner: StrategyRunner) -> None:
        self._runner = runner
        self._end: Future[None] = Future()

    def start(self) -> None:
        self._end.set_running_or_notify_cancel()  # no waiting task can cancel it from now on
        # A daemon: nothing ends a read of seeds from a terminal or a pipe.
        threading.Thread(target=self._run, name="sdist-strategy", daemon=True).start()

    def _run(self) -> None:
        try:
            self._runner.run()
        except BaseException as error:
            self._end.set_exception(error)
        else:
            self._end.set_result(None)

    async def ended(self) -> None:
        """Wait for its end; raises what it has failed by."""
        await asyncio.wrap_future(self._end)

    async def stop(self) -> None:
        """Let it close the strategy and leave its partitions; of its error, `ended` tells. Once is enough."""
        if self._runner.stop.is_set():
            return
        self._runner.stop.set()
        with suppress(Exception):
            await asyncio.wait_for(self.ended(), _LAST_ROUND)
        if self._end.running():
            logger.warning(
                "The strategy of %s is still at work, and is left as it is: its partitions are free in %g s.",
                self._runner.frontier,
                HELD,
            )
