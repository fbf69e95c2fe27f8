"""`sdist frontier` on every store: what it adds from lists, moves, puts away and removes is the same on each engine."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from rig.stores import lease_next
from scrapyd_dist.cli import main

from scrapyd_dist.batches import BatchState, Crawl, Miss
from scrapyd_dist.fleet.project_store import key_of
from scrapyd_dist.frontier.backlog import Lessee
from scrapyd_dist.frontier.packing import FrontierIntake, pack
from scrapyd_dist.payload import decode
from scrapyd_dist.store import Store, open_store

Add: TypeAlias = "Callable[..., tuple[int, int]]"
PRINTS = [b"%03d" % number for number in range(40)]


@contextmanager
def shop(where: str, folder: Path, number: int) -> Iterator[Store]:
    """The store with a frontier of so many requests, ten in a batch."""
    found = [
        FrontierIntake(value={"url": f"http://a/{at}"}, fingerprint=PRINTS[at], slot="p0")
        for at in range(number)
    ]
    with closing(open_store(where, key=key_of(folder))) as store:
        store.add_crawl(Crawl(id="shop", project="p", spider="", created=1.0, kind="frontier"))
        store.add_batches("shop", pack(found, size=10, key=None))
        yield store


def test_slots_and_batches_are_moved_and_deleted(
    sdist: Callable[..., Any], where: str, tmp_path: Path
) -> None:
    with shop(where, tmp_path, 40) as store:
        moved = sdist("move", "shop", "p", "q", 2)
        assert (moved["batches"], moved["requests"], moved["to"]) == (4, 40, ["q0", "q1"])
        slots = waiting(sdist)
        assert slots.keys() == {"q0", "q1"}
        assert sum(slots.values()) == 40
        assert set(store.fingerprints("shop")) == set(PRINTS)

        number = store.peek("shop", "q0", 1)[0].number
        alone = sdist("move", "shop", "--batch", number, "alone")
        leased = lease_next(
            store, "shop", Lessee(job="shop.w1.a1", node="n", url="http://n"), slots=("alone",)
        )
        assert [one.batch.number for one in leased] == [alone["batch"]]
        assert sdist("delete", "shop", "--prefix", "alone", "--yes", code=3)["left"] == [
            alone["batch"]
        ]
        assert (
            store.fail("shop", alone["batch"], 1, reason="x", now=2.0, max_attempts=1)
            is BatchState.DEAD
        )
        assert sdist("requeue", "shop")["requests"] == alone["requests"]

        gone = sdist("dump", "shop", "alone", "--num-requests", 100)["batches"]
        assert (
            sdist("delete", "shop", "--prefix", "alone", "--yes")["requests"] == alone["requests"]
        )
        urls = {value["url"] for batch in gone for value in batch["requests"]}
        forgotten = {PRINTS[int(url.rpartition("/")[2])] for url in urls}
        assert set(store.fingerprints("shop")) == set(PRINTS) - forgotten
        assert sdist("count", "shop")["requests"]["waiting"] == 40 - alone["requests"]

        assert sdist("delete", "shop", "--all", "--yes")["requests"] == 40 - alone["requests"]
        assert store.crawls() == []


def test_what_no_spider_could_make_is_listed_with_the_reason_and_waits_again(
    sdist: Callable[..., Any], where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [f"http://a/{at}" for at in range(3)]
    dead = Miss(url=urls[1], kind="dead", reason="the spider has no method 'parse_ol'", batch=1)
    failed = Miss(url=urls[2], kind="failed", reason="HTTP 500", batch=1)
    elsewhere = Miss(url="http://a/9", kind="dead", reason="there is no spider 'nobody'", batch=1)
    with shop(where, tmp_path, 3) as store:
        (leased,) = lease_next(store, "shop", Lessee(job="w", node="n", url="http://n"))
        store.ack("shop", 1, leased.attempt, "w", report={}, now=1.0)
        store.accept("shop", 1, 1, report={}, part="", misses=[dead, failed, elsewhere], now=1.0)

        show_dead = ["crawls", "show", "shop", "--misses", "--kind", "dead", "--json"]
        assert main._run(show_dead, debug=False) == 0
        assert json.loads(capsys.readouterr().out)["misses"] == [vars(dead), vars(elsewhere)]
        assert main._run(["crawls", "show", "--misses"], debug=False) == 4
        assert "no crawls yet" in capsys.readouterr().err, (
            "without a name, the newest crawl is meant"
        )
        told = sdist("requeue", "shop", 1)
        assert (told["batches"], told["requests"], told["urls"]) == ([], 0, 1)
        assert store.misses("shop") == [failed, elsewhere]
        assert main._run(["frontier", "requeue", "shop", "2"], debug=False) == 4
        assert "no such dead batch" in capsys.readouterr().err
        assert sdist("requeue", "shop", "--failed-urls")["urls"] == 1
        assert store.misses("shop") == [elsewhere]
        again = [decode(store.payload("shop", number).get, key=None) for number in (2, 3)]
        assert again == [[{"url": urls[at], "replaces": [1, at]}] for at in (1, 2)]
        assert {batch.slot for batch in store.batches("shop")} == {"p0"}


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
    add(
        {"url": "http://shop.example/q", "meta": {"frontier_slot_prefix": "q"}},
        options=("--prefix", "p"),
    )
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
    assert [(batch.slot, batch.size) for batch in opened().batches("shop")] == [
        ("0", 100),
        ("0", 100),
        ("0", 50),
    ]


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


def test_what_is_not_to_be_filtered_comes_each_time_and_a_fingerprint_of_its_own_counts(
    add: Add,
) -> None:
    url = "http://shop.example/1"
    always = {"url": url, "dont_filter": True}
    assert add(always, always, url, url) == (3, 1)
    assert add(always, url) == (1, 1)
    mine = {"meta": {"frontier_fingerprint": "the same"}}
    assert add(*({"url": other, **mine} for other in pages(2, 3))) == (1, 1)
