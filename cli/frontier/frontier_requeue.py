"""`sdist frontier requeue`: what was given up waits again. Rule: nothing is started by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.batches import BatchState
from scrapyd_dist.config import load
from scrapyd_dist.errors import NothingMatched

from ..crawls.misses import told_doubles, try_again
from ..crawls.wording import counted
from ..output import complain, put_json, say
from ..selectors import Json
from .frontier_names import FrontierName, opened

if TYPE_CHECKING:
    from collections.abc import Collection


def requeue(
    frontier: FrontierName,
    batch: Annotated[
        Optional[list[int]], typer.Argument(metavar="BATCH", help="Numbers of batches; all of them if left out.")
    ] = None,
    failed_urls: Annotated[
        bool, typer.Option("--failed-urls", help="What failed in batches that are done waits again, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let dead batches and URLs wait again, in their slots, with as many attempts as new ones.

    Dead is a batch that no worker could bring to its end, and a request for a
    callback that the spider did not have. `sdist misses FRONTIER --kind dead`
    lists them, with the reasons.

    Example: sdist frontier requeue shop 7 9
    """
    root, kinds = load().root, {"dead", "failed"} if failed_urls else {"dead"}
    with opened(root, frontier) as (store, _):
        dead = store.batches(frontier, {BatchState.DEAD})
        missed = {miss.batch for miss in store.misses(frontier) if miss.kind in kinds}
        _check(frontier, {one.number for one in dead} | missed, batch or [])
        wanted = [one for one in dead if not batch or one.number in batch]
        back = set(store.requeue(frontier, [one.number for one in wanted])) if wanted else set()
        tried = try_again(store, root, frontier, kinds, numbers=batch or ())
    urls = sum(one.requests for one in tried)
    if doubles := told_doubles(tried):
        complain(doubles)
    again = [one for one in wanted if one.number in back]
    requests = sum(one.size for one in again)
    if as_json:
        numbers = [one.number for one in again]
        put_json({"frontier": frontier, "batches": numbers, "requests": requests, "urls": urls})
        return
    told = [f"{counted(len(again), 'batch', 'batches')} with {counted(requests, 'request')}"] if again else []
    told += [f"{counted(urls, 'request')} of batches that are done"] if urls else []
    say(f"{' and '.join(told) or 'Nothing'} waits again in {frontier}.")


def _check(frontier: str, there: Collection[int], numbers: Collection[int]) -> None:
    """Refuse batches that have nothing that was given up.

    Raises:
        NothingMatched: a batch that was named is one of these, or all are.
    """
    others = sorted(set(numbers) - set(there))
    if others:
        raise NothingMatched(
            f"Of {frontier}, {', '.join(map(str, others))} cannot wait again: no such dead batch; nothing was done."
            f" `sdist batches {frontier} --state dead` lists those that are."
        )
    if not there:
        raise NothingMatched(f"No batch of {frontier} is dead, so there is nothing to try again.")
