"""The port for links, events and domain metadata of crawling strategies."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from scrapyd_dist.batches import Batch
from scrapyd_dist.strategy.links import Link, LinkChange, LinkEvent, StrategyBacklog, StrategyStep


class StrategyStore(ABC):
    """Links, events and domain metadata of crawling strategies; a strategy is stored as a frontier.

    Workers add events in the step that acks their batch. Each partition is held by one strategy
    process for a limited time, by the store's clock; only its holder changes what belongs to it.
    """

    @abstractmethod
    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        """Note that the process lives, and take its share of the partitions; return the share.

        It is the process's for `seconds` from now. The share is an equal part, rounded up, among
        the processes that live; what a process has beyond it is given back, and it takes no
        partition that another one holds. Events of a partition that no process holds wait.
        """

    @abstractmethod
    def leave_partitions(self, crawl: str, process: str) -> None:
        """Free the partitions of a process that ends, at once."""

    @abstractmethod
    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        """Return the oldest events of these partitions that wait, at most so many, by number."""

    @abstractmethod
    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        """Return those of these links that are there, without their requests.

        It is one question, however many they are.
        """

    @abstractmethod
    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of those of these sites that have any."""

    @abstractmethod
    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        """Return the links to be requested next, with their requests.

        They stay in the queue until a step takes them out. Of each slot the highest scores come,
        the oldest first among equals: as many as its batches lack to have `ahead` requests waiting.
        The slots come in turn, first those that had their turn longest ago; `limit` links in all.
        Links that are due later than `now` are left out; those that have expired are not. It costs
        the same however long the queue is. There are none when the strategy has ended, or the crawl
        is to rest or to end.
        """

    @abstractmethod
    def apply(self, step: StrategyStep) -> list[Batch]:
        """Make the step, and return the new batches.

        Raises `StepRefused` when the process does not hold one of the partitions any more, when an
        event that it has handled does not wait any more, when a link of `new` is not in the queue,
        or when a batch that it drops is not DEAD: nothing was done then.
        """

    @abstractmethod
    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        """Return how far the strategy is; it costs the same however much is stored."""

    @abstractmethod
    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        """Close the queue, so that no link is taken from it any more; `ended=False` opens it again.

        `if_empty`: only if `links.is_empty` is true in the same step. Returns whether it was done.
        """

    @abstractmethod
    def changes(self, crawl: str, after: int = 0, limit: int = 10_000) -> list[LinkChange]:
        """Return the changes in the log behind that number, at most so many, in order."""

    @abstractmethod
    def dead_events(self, crawl: str, limit: int = 1_000) -> list[LinkEvent]:
        """Return the dead letters, at most so many, by number."""

    @abstractmethod
    def replay(self, crawl: str, numbers: Collection[int] | None = None) -> int:
        """Let these dead letters wait again, or all, and return how many there were."""

    @abstractmethod
    def reset_strategy(self, crawl: str) -> None:
        """Forget the links, events, metadata and log, and all batches; the crawl's row stays.

        Raises `StepRefused` when a batch is out, or a process holds a partition.
        """
