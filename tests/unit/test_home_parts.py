"""A worker of a frontier removes the parts that are home from its node, and no other file."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scrapyd_dist.middlewares.worker.batch_acker import sweep

from scrapyd_dist.batches import Batch, BatchState

BATCHES = {
    1: Batch(number=1, size=1, state=BatchState.DONE, attempts=2),
    2: Batch(number=2, size=1, state=BatchState.RUNNING, attempts=1),
    3: Batch(number=3, size=1, state=BatchState.DEAD, attempts=1),
}


def swept(folder: Path, batch: Callable[[int], Awaitable[Batch | None]]) -> int:
    with ThreadPoolExecutor(1) as pool:  # a loop of its own
        return pool.submit(asyncio.run, sweep(folder, "shop", batch)).result(20)


def test_only_parts_of_batches_that_are_done_go(tmp_path: Path) -> None:
    done = {"shop.b1.a1.jl", "shop.b1.a2.jl"}
    kept = {
        "shop.b1.a3.jl", "shop.b2.a1.jl", "shop.b3.a1.jl", "shop.b9.a1.jl", "shop.b1.a2.jl.part", "shop.w1.a1.json",
        "shop-2.b1.a1.jl", "shop.b1.jl", "shop.b1.a1.more.jl",
    }  # fmt: skip
    for name in done | kept:
        (tmp_path / name).touch()

    async def batch(number: int) -> Batch | None:
        return BATCHES.get(number)

    assert swept(tmp_path, batch) == 2
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_folder_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    async def batch(number: int) -> Batch | None:
        raise AssertionError(number)

    assert swept(tmp_path / "none", batch) == 0
