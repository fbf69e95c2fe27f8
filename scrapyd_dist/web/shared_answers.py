"""Answers that all viewers share: a question is asked while a page is viewed, and once for all."""

import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any

from scrapyd_dist.errors import DistError

#: seconds between two times that the same question is asked, at least
EVERY = 2.0
#: how many times as long as an answer took, the next one is not asked for
RESTING = 3.0
#: seconds that a viewer waits for an answer, before the last one is shown
PATIENCE = 3.0
#: seconds without a viewer after which an answer is dropped
FORGOTTEN = 60.0
#: questions that are under way at the same time, to nodes, and to the store
_THREADS = 8


#: the times of the answers that the page got which is being made; None where no page is being made
_times: ContextVar[list[float] | None] = ContextVar("times", default=None)


@contextmanager
def note_times() -> Iterator[list[float]]:
    """Collect when the questions were asked whose answers are used meanwhile, by the wall clock."""
    times: list[float] = []
    token = _times.set(times)
    try:
        yield times
    finally:
        _times.reset(token)


class NotAnsweredYet(DistError):
    """The first answer to a question has not come yet."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was answered, and when."""

    at: float  #: when the question was asked, by the clock
    asked: float  #: the same in seconds since the epoch
    took: float  #: seconds
    value: Any = None
    error: Exception | None = None


@dataclass(kw_only=True)
class _Topic:
    """One question, as its viewers have it."""

    viewed: float = 0.0  #: when a viewer asked last, by the monotonic clock
    answer: Answer | None = None
    asking: "Future[None] | None" = None  #: the last time that it was asked

    @property
    def is_asked(self) -> bool:
        """Whether an answer is on its way."""
        return self.asking is not None and not self.asking.done()

    def is_due(self, now: float, every: float) -> bool:
        """Tell whether the question is to be asked again."""
        if self.is_asked:
            return False
        if self.answer is None:
            return True
        return now - self.answer.at >= max(every, RESTING * self.answer.took)


class SharedAnswers:
    """Asks each question once for all who want its answer, in threads of its own.

    No viewer waits longer than `patience` seconds: until there is news, the last answer is shown.
    clock: gives seconds; wall: gives seconds since the epoch.
    """

    def __init__(
        self,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._wall = wall
        self._topics: dict[Hashable, _Topic] = {}
        self._lock = Lock()
        # Nodes that hang keep their own threads alone.
        self._for_nodes = ThreadPoolExecutor(_THREADS, thread_name_prefix="sdist-web-nodes")
        self._for_store = ThreadPoolExecutor(_THREADS, thread_name_prefix="sdist-web-store")

    def ask(
        self,
        key: Hashable,
        gather: Callable[[], Any],
        every: float = EVERY,
        *,
        asks_nodes: bool = False,
    ) -> Any:
        """Return what `gather` has answered last, after asking it again where that is due.

        key: of the question; every: seconds between two times that it is asked, at least;
        asks_nodes: whether nodes are asked, which may hang, and not the store alone.

        Raises:
            NotAnsweredYet: the first answer takes longer than a viewer waits.
            Exception: what `gather` has raised.
        """
        now = self._clock()
        with self._lock:
            self._forget(now)
            topic = self._topics.setdefault(key, _Topic())
            topic.viewed = now
            if topic.is_due(now, every):
                pool = self._for_nodes if asks_nodes else self._for_store
                topic.asking = pool.submit(self._gather, topic, gather)
            asking = topic.asking
        if asking is not None:
            wait_for([asking], self._patience)
        answer = topic.answer
        if answer is None:
            raise NotAnsweredYet("The nodes are being asked. This page shows it when they answer.")
        if answer.error is not None:
            raise answer.error
        times = _times.get()
        if times is not None:
            times.append(answer.asked)
        return answer.value

    def close(self) -> None:
        """Begin nothing new; what is under way ends by itself."""
        for pool in (self._for_nodes, self._for_store):
            pool.shutdown(wait=False, cancel_futures=True)

    def _gather(self, topic: _Topic, gather: Callable[[], Any]) -> None:
        began = self._clock()
        asked = self._wall()
        value = None
        fault = None
        try:
            value = gather()
        except Exception as error:  # noqa: BLE001 - the page says it
            fault = error
        took = self._clock() - began
        topic.answer = Answer(at=began, asked=asked, took=took, value=value, error=fault)

    def _forget(self, now: float) -> None:
        """Drop the answers that no viewer has asked for lately."""
        for key, topic in list(self._topics.items()):
            if not topic.is_asked and now - topic.viewed > FORGOTTEN:
                del self._topics[key]
