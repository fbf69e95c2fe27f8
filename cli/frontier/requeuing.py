"""`sdist frontier requeue`: batches that were given up wait again. Rule: nothing is started by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.batches import BatchState
from scrapyd_dist.errors import NothingMatched

from ..choosing import Json
from .naming import FrontierName, opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.batches import Batch


def requeue(
    frontier: FrontierName,
    batch: Annotated[
        Optional[list[int]], typer.Argument(metavar="BATCH", help="Numbers of dead batches; all of them if left out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let dead batches wait again, in their slots, with as many attempts as new ones.

    Dead is a batch that no worker could bring to its end. `sdist batches
    FRONTIER --state dead` lists them, with the reasons.

    Example: sdist frontier requeue shop 7 9
    """
    from scrapyd_dist.config import load

    from ..crawls.words import counted
    from ..speaking import put_json, say

    with opened(load().root, frontier) as (store, _):
        dead = _dead(store.batches(frontier, {BatchState.DEAD}), frontier, batch or [])
        back = set(store.requeue(frontier, [one.number for one in dead]))
    again = [one for one in dead if one.number in back]
    requests = sum(one.size for one in again)
    if as_json:
        put_json({"frontier": frontier, "batches": [one.number for one in again], "requests": requests})
        return
    say(f"{counted(len(again), 'batch', 'batches')} with {counted(requests, 'request')} wait again in {frontier}.")


def _dead(dead: Sequence[Batch], frontier: str, numbers: Sequence[int]) -> list[Batch]:
    """Those that were named, or all.

    Raises:
        NothingMatched: a batch that was named is not dead, or none is.
    """
    look = f"`sdist batches {frontier} --state dead` lists those that are."
    others = sorted(set(numbers) - {one.number for one in dead})
    if others:
        raise NothingMatched(
            f"Of {frontier}, {', '.join(map(str, others))} cannot wait again: no such dead batch; nothing was done."
            f" {look}"
        )
    if not dead:
        raise NothingMatched(f"No batch of {frontier} is dead, so there is nothing to try again.")
    return [one for one in dead if not numbers or one.number in numbers]
