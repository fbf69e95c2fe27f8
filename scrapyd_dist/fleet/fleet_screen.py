"""Lists of many nodes on one screen: trouble first, then work; the rest is only counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from scrapyd_dist.fleet.node_status import NodeHealth
from scrapyd_dist.plurals import counted, some_of

#: rows of nodes that fit on a screen
ROWS = 40
#: names of nodes in a line about several
NAMES = 8
#: the states of nodes, those first that an operator has to see
_BY_URGENCY = (
    NodeHealth.WEDGED,
    NodeHealth.REFUSED,
    NodeHealth.DOWN,
    NodeHealth.BUSY,
    NodeHealth.DRAINING,
    NodeHealth.DRAINED,
    NodeHealth.UP,
)
T = TypeVar("T")


def sort_by_urgency(
    nodes: Iterable[T], state: Callable[[T], str], running: Callable[[T], int | None]
) -> list[T]:
    """Return the nodes with trouble first, then those with most jobs; else in their order."""
    places = _places()
    return sorted(nodes, key=lambda node: (places.get(state(node), 0), -(running(node) or 0)))


def describe_states(states: Iterable[str]) -> str:
    """Return how many nodes are in which state, as in `3 down, 297 up`."""
    counts = Counter(states)
    places = _places()
    ordered = sorted(counts, key=lambda state: places.get(state, -1))
    return ", ".join([f"{counts[state]:,} {state}" for state in ordered])


def _places() -> dict[str, int]:
    return {health.value: place for place, health in enumerate(_BY_URGENCY)}


def describe_rest(states: Sequence[str]) -> str:
    """Return what is said of the nodes that have no row; empty when each has one."""
    if not states:
        return ""
    return f"and {counted(len(states), 'more node')}: {describe_states(states)}"


def shorten_names(names: Sequence[str]) -> str:
    """Return the names of the nodes that have a thing in common; of many, how many they are."""
    if len(names) <= NAMES:
        return ", ".join(names)
    return f"{some_of(names, NAMES)} ({len(names):,} nodes)"
