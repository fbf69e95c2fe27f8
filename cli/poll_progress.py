"""Shows on a terminal how the nodes of a fleet answer, while all are asked at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scrapyd_dist.fleet.node_status import NodeStatus

from .output import NEVER, waiting


@contextmanager
def shown_answers(nodes: int) -> Iterator[Callable[[NodeStatus], None]]:
    """Give a function that shows the status of a node whenever more is known of it.

    nodes: how many are asked.
    """
    names = set[str]()
    with waiting(first=NEVER) as show:

        def note(status: NodeStatus) -> None:
            """Show how many nodes have answered, and how this one is."""
            names.add(status.node.url)
            answered = f"{len(names)} of {nodes} nodes answered"
            latest = f"{status.node.name}: {status.state.value} {status.short}"
            show(f"{answered} … {latest}".rstrip())

        yield note
