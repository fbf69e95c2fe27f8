"""Defines interfaces for sending a Call to a Node, and sends to many nodes.

`requests` blocks, and in threads serves asyncio without a reactor; `treq` runs in a Twisted
reactor. Importing this package loads no HTTP library.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from scrapyd_dist.errors import NodeError, NotFound
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, JobState, listjobs, status

A = TypeVar("A")
T = TypeVar("T")

#: connect timeout in seconds, unless the call's own timeout is shorter
CONNECT_TIMEOUT = 10.0
#: maximum number of concurrent calls to different nodes
MAX_THREADS = 64


class Sender(Protocol):
    """Sends calls and blocks until the reply is read. Thread-safe."""

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """Send a call and return the value that it reads from the reply.

        `timeout` is in total seconds, including connection and body, or, of a call with a sink, in
        seconds without data; None for the call's own. Exceptions of a sink are raised.

        Raises:
            NodeError: its class says what went wrong, and whether the node may have accepted the
                call; the bytes that a sink has got until then are correct.
        """


class AsyncSender(Protocol):
    """Sends calls asynchronously, as `Sender` does."""

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> Awaitable[T]:
        """Send a call, and return the value that it reads from the reply, when awaited."""
        ...

    def close(self) -> None:
        """Release threads and connections."""


@dataclass(frozen=True, kw_only=True)
class NodeAnswer(Generic[A, T]):
    """The result of one call: a value or an error."""

    asked: A  #: the argument that the call was made for
    value: T | None = None
    error: NodeError | None = None


@contextmanager
def thread_pool(size: int) -> Iterator[ThreadPoolExecutor]:
    """Open a pool of 1 to `MAX_THREADS` threads.

    If the block raises, Ctrl-C included, calls that have not begun are cancelled, and the others
    are not awaited.
    """
    pool = ThreadPoolExecutor(max_workers=max(1, min(MAX_THREADS, size)))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def job_state(
    sender: Sender, node: Node, job: str, project: str | None, timeout: float
) -> JobState | None:
    """Ask a node for the state of a job; None if it does not know it (any more).

    Scrapyd 1.4 has no status.json; its list of jobs is read then.
    """
    try:
        return sender.send(node, status(job, project), timeout=timeout)
    except NotFound:
        return sender.send(node, listjobs(project), timeout=timeout).state_of(job)


def sweep(
    whom: Sequence[A], ask: Callable[[A], T], *, threads: int = MAX_THREADS
) -> Iterator[NodeAnswer[A, T]]:
    """Call `ask` for all of `whom`, such as nodes or jobs, and yield each answer when it arrives.

    `ask` returns a value or raises NodeError; any other exception is raised from the generator. The
    calls are concurrent; those that have not begun are cancelled when the generator is closed.
    """
    with thread_pool(min(threads, len(whom))) as pool:
        arguments = {pool.submit(ask, argument): argument for argument in whom}
        for future in as_completed(arguments):
            error = future.exception()
            if isinstance(error, NodeError):
                yield NodeAnswer(asked=arguments[future], error=error)
            else:
                yield NodeAnswer(asked=arguments[future], value=future.result())
