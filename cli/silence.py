"""Leaves out of the answers what counts for nothing: drained nodes that do not answer."""

from collections.abc import Mapping
from typing import TypeVar

from scrapyd_dist import node_answers
from scrapyd_dist.errors import DistError
from scrapyd_dist.nodes import Node

from .context import Context

E = TypeVar("E", bound=DistError)


def without_drained(context: Context, answers: Mapping[Node, E | None]) -> dict[Node, E | None]:
    """Return what counts of the nodes' errors, or None for each that answered.

    A drained node that does not answer is left out, and named; where no other one was asked, all
    count.
    """
    return node_answers.without_drained(answers, context.drained, context.messenger)
