"""A list that `sdist frontier add` brings into a frontier, on every store: slots, batches, and what is known again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from scrapyd_dist.store import Store

Add: TypeAlias = "Callable[..., tuple[int, int]]"


@pytest.fixture
def add(sdist: Callable[..., Any], tmp_path: Path) -> Add:
    """`add(*rows, options=())`: how many of the rows went into the frontier `shop`, and how many had been there."""

    def run(*rows: str | dict[str, Any], options: tuple[object, ...] = ()) -> tuple[int, int]:
        (tmp_path / "rows.jl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
        told = sdist("add", "shop", "rows.jl", *options)
        return told["added"], told["duplicate"]

    return run


def pages(*numbers: int) -> list[str]:
    return [f"http://shop.example/{number}" for number in numbers]


def waiting(sdist: Callable[..., Any]) -> dict[str, int]:
    """Slot -> requests that wait there."""
    return {one["slot"]: one["requests"]["waiting"] for one in sdist("count", "shop")["slots"]}


def test_the_first_write_makes_a_frontier_and_its_slots_and_both_are_listed(
    sdist: Callable[..., Any], opened: Callable[[], Store], add: Add
) -> None:
    assert opened().crawls() == []
    add(*pages(*range(40)), options=("--prefix", "p", "--slots", 2))
    add({"url": "http://shop.example/q", "meta": {"frontier_slot_prefix": "q"}}, options=("--prefix", "p"))
    (listed,) = sdist("list")["frontiers"]
    assert (listed["frontier"], listed["requests"]["waiting"]) == ("shop", 41)
    assert [one["slot"] for one in listed["slots"]] == ["p0", "p1", "q0"]


def test_ten_thousand_pages_are_spread_evenly_over_eight_slots_and_lie_in_no_other(
    sdist: Callable[..., Any], add: Add
) -> None:
    assert add(*pages(*range(10_000)), options=("--prefix", "p", "--slots", 8)) == (10_000, 0)
    found = waiting(sdist)
    assert sorted(found) == [f"p{number}" for number in range(8)]
    assert sum(found.values()) == 10_000
    assert all(1125 <= number <= 1375 for number in found.values()), found


def test_a_batch_has_a_hundred_requests_at_most(opened: Callable[[], Store], add: Add) -> None:
    add(*pages(*range(250)))
    assert [(batch.slot, batch.size) for batch in opened().batches("shop")] == [("0", 100), ("0", 100), ("0", 50)]


def test_what_asks_for_the_same_is_known_again_in_any_slot_until_its_slot_is_deleted(
    sdist: Callable[..., Any], add: Add
) -> None:
    url = "http://shop.example/find"
    post = {"url": url, "method": "POST", "body": "q=1"}
    rows = [f"{url}?a=1&b=2", f"{url}?b=2&a=1", f"{url}?a=1&b=2#top", post, {**post, "body": "q=2"}]
    assert add(*rows, options=("--prefix", "p")) == (3, 2)
    assert add(*rows, options=("--prefix", "q")) == (0, 5)
    assert sdist("delete", "shop", "--prefix", "p", "--yes")["requests"] == 3
    assert add(*rows, options=("--prefix", "q")) == (3, 2)
    assert waiting(sdist) == {"q0": 3}


def test_what_is_not_to_be_filtered_comes_each_time_and_a_fingerprint_of_its_own_counts(add: Add) -> None:
    url = "http://shop.example/1"
    always = {"url": url, "dont_filter": True}
    assert add(always, always, url, url) == (3, 1)
    assert add(always, url) == (1, 1)
    mine = {"meta": {"frontier_fingerprint": "the same"}}
    assert add(*({"url": other, **mine} for other in pages(2, 3))) == (1, 1)
