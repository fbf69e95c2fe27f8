"""Proxies before the nodes that spoil answers."""

from collections.abc import Callable

from faults.trial import Trial
from rig import proxy
from rig.proxy import Mishap

#: what a proxy gives in place of the node's answer
ANSWERS = (proxy.FAILED_AFTER, proxy.FAILED_BEFORE, proxy.PAGE_AFTER, proxy.PAGE_BEFORE)


def spoil(*mishaps: Mishap) -> Callable[[Trial], None]:
    """The next calls of schedule.json go wrong, some of each kind."""

    def strike(trial: Trial) -> None:
        for spoilt in trial.proxies:
            for mishap in trial.dice.choices(mishaps, k=2):
                spoilt.spoil("schedule.json", mishap)

    return strike


def spoil_all(trial: Trial) -> None:
    """Some of all calls go wrong, of any page, in any way."""
    trial.wait_moment(0.01, 0.3)  # before it has begun, a crawl is refused, as it should be
    for spoilt in trial.proxies:
        for mishap in trial.dice.choices([proxy.CUT, proxy.RESET, *ANSWERS], k=8):
            spoilt.spoil("*", mishap)


def spoil_parts(mishap: Mishap) -> Callable[[Trial], None]:
    """No part of one node can be had as it is, from the start to the end."""

    def strike(trial: Trial) -> None:
        spoilt = trial.dice.choice(trial.proxies)
        trial.bad_node = spoilt.node.name
        spoilt.spoil_always(".jl", mishap)

    return strike


def move_address(trial: Trial) -> None:
    """The address of one node leads to the other node from a moment on; its workers go on."""
    trial.wait_moment(0.1, 0.6)
    moved, other = trial.dice.sample(trial.proxies, 2)
    moved.forward_to(other.node)
