"""Leaves out of the answers what counts for nothing: drained nodes that do not answer."""

from collections.abc import Mapping
from typing import TypeVar

from scrapyd_dist.errors import DistError, StoreError
from scrapyd_dist.nodes import Node, names_of

from .context import Context
from .output import say

E = TypeVar("E", bound=DistError)


def without_drained(context: Context, answers: Mapping[Node, E | None]) -> dict[Node, E | None]:
    """Return what counts of the nodes' errors, or None for each that answered.

    A drained node that does not answer is left out, and named; where no other one was asked, all
    count.
    """
    silent = [node for node, error in answers.items() if error is not None]
    if not silent:
        return dict(answers)
    try:
        records = context.node_records(silent)
    except StoreError:  # so it is not known which nodes are drained
        return dict(answers)
    counting = dict(answers)
    muted = []
    for node in silent:
        if records[node.name].draining is not None:
            muted.append(node)
            del counting[node]
    if not muted or not counting:
        return dict(answers)
    line = (
        f"Passed over, since drained and without an answer: {names_of(muted)}. What is there is not"
        " known."
    )
    if line not in context.said_once:  # some commands ask again and again
        context.said_once.add(line)
        say(line)
    return counting
