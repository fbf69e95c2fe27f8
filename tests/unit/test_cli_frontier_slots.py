"""`sdist frontier` and `sdist frontier consume` on a real store: what is shown, moved, removed and refused."""

import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from rig.commands import Result
from rig.stores import lease_next
from scrapyd_dist.cli import output
from scrapyd_dist.cli.frontier import batch_walk, frontier_moves
from scrapyd_dist.cli.frontier.consume import ConsumeOptions

from scrapyd_dist.batches import Batch, BatchState, Crawl, CrawlState, Miss
from scrapyd_dist.config import state_dir
from scrapyd_dist.fleet import project_store
from scrapyd_dist.frontier.backlog import SPREAD, Lessee, NewBatch
from scrapyd_dist.frontier.intake import open_frontier
from scrapyd_dist.frontier.slots import SlotRule
from scrapyd_dist.keys import state_key
from scrapyd_dist.payload import encode
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.store import Store, open_store

Run = Callable[..., Result]
WORKER = Lessee(job="shop.w1.a1", node="one", url="http://one:6800")


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """The project's store with an empty frontier."""
    with closing(open_store(root / ".sdist" / "store.db", key=state_key(state_dir(root)))) as one:
        one.add_crawl(Crawl(id="shop", project="p", spider="", created=1.0, kind="frontier"))
        yield one


@pytest.fixture
def frontier(sdist: Run) -> Run:
    """`frontier("count", "shop")`: exit code, standard output, standard error of `sdist frontier count shop`."""
    return partial(sdist, "frontier")


def put(
    store: Store,
    slot: str,
    *numbers: int,
    priority: int = 0,
    key: bytes | None = None,
    **fields: Any,
) -> Batch:
    """One batch of pages with these numbers."""
    values = [{"url": f"http://site{number % 3}.com/{number}", **fields} for number in numbers]
    prints = tuple(b"%03d" % number for number in numbers)
    payload = encode(values, key=key)
    new = NewBatch(
        payload=payload, size=len(values), slot=slot, priority=priority, fingerprints=prints
    )
    return store.add_batches("shop", [new])[0]


def lease(store: Store, *slots: str, seconds: float = 60.0) -> int:
    """The number of the batch that a worker has leased now."""
    return lease_next(store, "shop", WORKER, slots=slots, seconds=seconds)[0].batch.number


def kill(store: Store, number: int) -> None:
    """Let the batch's next attempt be its last one."""
    assert lease(store, store.batch("shop", number).slot) == number
    assert (
        store.fail("shop", number, 1, reason="its worker died", now=2.0, max_attempts=1)
        is BatchState.DEAD
    )


def waiting(store: Store) -> dict[str, int]:
    """Slot -> requests that wait there."""
    return {count.slot: count.waiting for count in store.backlog("shop").slots if count.waiting}


def urls(frontier: Run, *slots: str) -> list[str]:
    lines = [line for slot in slots for line in frontier("dump", "shop", slot)[1].splitlines()]
    return sorted(json.loads(line)["url"] for line in lines)


# looking


def test_what_there_is_is_listed_and_counted(frontier: Run, store: Store) -> None:
    put(store, "p0", 1, 2)
    put(store, "p0", 3)
    put(store, "q", 4)
    lease(store, "q")
    store.add_crawl(Crawl(id="a-crawl", project="p", spider="s", created=2.0))
    store.register_producer("shop", "links", 60)

    out = frontier("list").expect(0).out
    assert out.splitlines()[1].split() == ["shop", "open", "2", "3", "1", "0", "0", "1"]
    assert len(out.splitlines()) == 2, "a crawl is none"
    assert frontier("list", "shop")[1].split() == ["p0", "q"]
    rows = [line.split() for line in frontier("list", "--all").out.splitlines()[1:]]
    assert rows == [["shop", "p0", "3"], ["shop", "q", "0"]]
    told = frontier("list", "--json").json()["frontiers"][0]
    assert (told["frontier"], told["producers"], told["requests"]["waiting"]) == (
        "shop",
        ["links"],
        3,
    )

    _, out, err = frontier("count", "shop").expect(0)
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows == [
        ["p0", "3", "0", "0", "0"],
        ["q", "0", "1", "0", "0"],
        ["total", "3", "1", "0", "0"],
    ]
    assert "1 of 2 slots" in err
    told = frontier("count", "shop", "--prefix", "p", "--json").json()
    assert told["slots"] == [{
        "slot": "p0", "requests": {"waiting": 3, "leased": 0, "done": 0, "dead": 0},
        "batches": {"waiting": 2, "leased": 0, "done": 0, "dead": 0},
    }]  # fmt: skip
    assert frontier("count", "shop", "--regex", "[pq]0?", "--json").json()["not_empty"] == 1


@pytest.mark.parametrize(
    ("prefix", "waiting"), [("p", {"p0": 0, "p1": 2}), ("x", {"x0": 0, "x1": 0})]
)
def test_a_number_of_slots_shows_zeros_where_there_is_none(
    frontier: Run, store: Store, prefix: str, waiting: dict[str, int]
) -> None:
    put(store, "p1", 1, 2)
    told = frontier("count", "shop", "--prefix", prefix, "--num-slots", "2", "--json").json()
    assert {one["slot"]: one["requests"]["waiting"] for one in told["slots"]} == waiting


def test_a_crawl_that_is_pulled_is_a_frontier_as_well(frontier: Run, store: Store) -> None:
    store.add_crawl(Crawl(id="easy-1", project="p", spider="s", created=2.0))
    store.seal("easy-1", NewBatch(payload=encode([{"url": "http://a/1"}]), size=1), [b"1"], {})
    assert frontier("count", "easy-1", "--json").json()["requests"]["waiting"] == 1
    assert frontier("dump", "easy-1", "").json() == {"url": "http://a/1"}
    frontier("delete", "easy-1", "--all", "--yes").expect(2, "sdist crawls clean easy-1")


def test_requests_are_shown_in_their_order_and_stay(
    frontier: Run, store: Store, root: Path
) -> None:
    key = state_key(state_dir(root))
    put(store, "p", 1, 2)
    put(store, "p", 3, priority=5, key=key, cookies={"sid": "secret"}, meta={"depth": 2})
    put(store, "p", 4, 5)
    before = store.backlog("shop").slots
    out = frontier("dump", "shop", "p", "--num-requests", "2").expect(0).out
    first, second = map(json.loads, out.splitlines())
    assert first == {
        "url": "http://site0.com/3",
        "cookies": {"sid": "secret"},
        "meta": {"depth": 2},
    }
    assert second["url"] == "http://site1.com/1"
    told = frontier("dump", "shop", "p", "--json").json()
    assert [(one["batch"], one["priority"], len(one["requests"])) for one in told["batches"]] == [
        (2, 5, 1), (1, 0, 2), (3, 0, 2),
    ]  # fmt: skip
    assert store.backlog("shop").slots == before


def test_another_folders_key_reads_nothing_and_says_so(frontier: Run, store: Store) -> None:
    put(store, "p", 1, key=Fernet.generate_key(), cookies={"sid": "secret"})
    _, out, err = frontier("dump", "shop", "p").expect(2, "Batch 1 of shop cannot be read here")
    assert (out, "secret" in err) == ("", False)


# names


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("count shp", 4, "Did you mean shop?"),
        ("count a/b", 2, "cannot name a frontier"),
        ("dump shop p", 4, "Did you mean p0?"),
        ("count shop --prefix x", 4, "no slot whose name begins with 'x'"),
        ("count shop --regex (", 2, "no regular expression"),
        ("count shop --regex x --prefix p", 2, "--regex stands alone"),
        ("delete shop", 2, "--prefix P for slots, or --all"),
        ("delete shop --prefix p --all", 2, "One of the two"),
        ("delete shop --prefix=", 2, "say --all"),
        ("delete shop --prefix p", 2, "Add --yes"),
        ("delete shop --prefix x --yes", 4, "no slot whose name begins with 'x'"),
        ("move shop x y 2", 4, "no slot whose name begins with 'x'"),
        ("move shop p a/b 2", 2, "cannot name a slot"),
        ("move shop @login p 2", 2, "slots of other spiders"),
        ("move shop p @login 2", 2, "slots of other spiders"),
        ("move shop --batch 9 poison", 4, "no batch 9"),
        ("move shop --batch 1 a/b", 2, "cannot name a slot"),
        ("move shop --batch 1 p q 2", 2, "--batch NUMBER DEST"),
        ("move shop p q", 2, "PREFIX DEST N"),
        ("move shop --batch 1 @login", 2, "slots of other spiders"),
        ("requeue shop", 4, "nothing to try again"),
        ("requeue shop 1", 4, "no such dead batch"),
        ("list shop --all", 2, "one of the two"),
        ("add shop no.txt", 4, "no file no.txt"),
        ("add shop . --format urls", 2, "cannot be read"),
        ("add shop no.txt --format xml", 2, "'xml'"),
        ("add shop no.txt --spider-callback a-b", 2, "cannot be the name of a method"),
        ("add shop no.txt --slots 0", 2, "--slots"),
    ],
)
def test_bad_input_is_told_and_changes_nothing(
    frontier: Run, store: Store, line: str, code: int, words: str
) -> None:
    put(store, "p0", 1)
    before = store.batches("shop")
    _, out, err = frontier(*line.split()).expect(code, words)
    assert (out, err.count("\n")) == ("", 1), "one paragraph"
    assert store.batches("shop") == before


def test_without_a_store_none_is_made(frontier: Run, root: Path) -> None:
    assert "no frontiers yet" in frontier("list")[2]
    assert frontier("count", "shop")[0] == 4
    assert not (root / ".sdist").exists()


# moving


def test_slots_are_split_and_joined_and_every_request_is_there_once(
    frontier: Run, store: Store
) -> None:
    for first in range(0, 60, 10):
        put(store, "p0", *range(first, first + 10), priority=first % 20)
    every = urls(frontier, "p0")
    frontier("move", "shop", "p", "q", 4).expect(0, "60 requests of 6 batches")
    assert set(waiting(store)) == {"q0", "q1", "q2", "q3"}
    assert urls(frontier, "q0", "q1", "q2", "q3") == every
    assert frontier("list", "shop")[1].split() == ["q0", "q1", "q2", "q3"], (
        "what was emptied is not listed"
    )
    slot = SlotRule(prefix="q", number=4)
    for number in range(60):
        assert f"http://site{number % 3}.com/{number}" in urls(
            frontier, slot.slot_for("", b"%03d" % number)
        )
    assert {batch.priority for batch in store.batches("shop", {BatchState.SEALED})} == {0, 10}

    assert frontier("move", "shop", "q", "r", 1, "--json").json()["batches"] > 6
    assert urls(frontier, "r0") == every
    again = NewBatch(payload={}, size=1, fingerprints=(b"007",))
    with pytest.raises(Exception, match="in the frontier already"):
        store.add_batches("shop", [again])


def test_a_site_stays_together_when_it_is_moved_by_domain(frontier: Run, store: Store) -> None:
    put(store, "p", *range(30))
    assert frontier("move", "shop", "p", "q", 5, "--by", "domain").code == 0
    slots = [(url.split("/")[2], slot) for slot in waiting(store) for url in urls(frontier, slot)]
    assert sorted(site for site, _ in set(slots)) == ["site0.com", "site1.com", "site2.com"]


def test_whole_batches_are_spread_in_turn_and_what_lies_right_stays(
    frontier: Run, store: Store
) -> None:
    for first in range(4):
        put(store, "p", first)
    assert frontier("move", "shop", "p", "q", 2, "--uniform").code == 0
    assert waiting(store) == {"q0": 2, "q1": 2}
    assert frontier("move", "shop", "q", "q", 2).code == 0
    after = store.batches("shop")
    assert frontier("move", "shop", "q", "q", 2).code == 0
    assert store.batches("shop") == after


def test_what_a_worker_has_is_left_and_told(frontier: Run, store: Store) -> None:
    put(store, "p", 1)
    put(store, "p", 2)
    number = lease(store, "p")
    moved = frontier("move", "shop", "p", "q", 2, "--json").expect(
        3, f"workers have them now: batch {number}"
    )
    assert moved.json()["left"] == [number]
    assert store.batch("shop", number).slot == "p"
    frontier("move", "shop", "--batch", number, "away").expect(2, "shop.w1.a1 on one has it")


def between(monkeypatch: pytest.MonkeyPatch, number: int, then: Callable[[], object]) -> None:
    """While the batch with this number is read for a move, something else happens."""
    plain = project_store.requests_in

    def read(*given: Any) -> Any:
        if given[-1].number == number:
            then()
        return plain(*given)

    monkeypatch.setattr(frontier_moves, "requests_in", read)


def test_what_a_worker_takes_in_the_middle_is_left_as_well(
    frontier: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "p", 1)
    put(store, "p", 2)
    between(monkeypatch, 1, lambda: lease(store, "p"))
    told = frontier("move", "shop", "p", "q", 1, "--json").expect(3).json()
    assert (told["left"], told["requests"]) == ([1], 1)


def test_interrupted_in_the_middle_it_says_how_far_it_is_and_goes_on(
    frontier: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        put(store, "p", number)
    between(monkeypatch, 3, lambda: os.kill(os.getpid(), 2))
    told = (
        frontier("move", "shop", "p", "q", 1, "--json")
        .expect(130, "Interrupted after 3 of 5")
        .json()
    )
    assert (told["batches"], told["interrupted"]) == (3, True)
    assert waiting(store) == {"p": 2, "q0": 3}
    assert frontier("move", "shop", "p", "q", 1).code == 0
    assert waiting(store) == {"q0": 5}


def test_a_crawls_own_batches_have_no_fingerprints_and_are_moved_all_the_same() -> None:
    values = [{"url": f"http://a/{number}"} for number in range(20)]
    parts = frontier_moves.spread_over_slots(values, (), SlotRule(prefix="q", number=3), 0, b"")
    assert {part.slot for part in parts} == {"q0", "q1", "q2"}
    assert sum(part.size for part in parts) == 20
    assert not any(part.fingerprints for part in parts)


def test_long_work_is_told_about(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_walk, "TELL", 0.0)
    batch_walk.walk([put(store, "p", 1), put(store, "p", 2)], lambda _: None, "moved")
    assert "2 of 2 batches moved" in capsys.readouterr().err


def test_one_batch_is_put_away_alone_also_a_dead_one(frontier: Run, store: Store) -> None:
    put(store, "p", 1, 2)
    put(store, "p", 3)
    kill(store, 1)
    told = frontier("move", "shop", "--batch", 1, "poison", "--json").expect(0).json()
    assert (told["was"], told["slot"], told["requests"]) == (1, "poison", 2)
    assert waiting(store) == {"p": 1, "poison": 2}
    assert frontier("move", "shop", "--batch", 1, "poison")[0] == 2, "it has been cut"


# giving new attempts


def test_dead_batches_wait_again_in_their_slots(frontier: Run, store: Store) -> None:
    for number in range(3):
        put(store, "p", number)
        kill(store, number + 1)
    assert frontier("requeue", "shop", 2, 9)[0] == 4
    assert frontier("requeue", "shop", 2, "--json").json()["batches"] == [2]
    assert waiting(store) == {"p": 1}
    frontier("requeue", "shop").expect(0, "2 batches with 2 requests")
    assert waiting(store) == {"p": 3}


def test_what_producers_could_not_ask_for_cannot_wait_again(frontier: Run, store: Store) -> None:
    put(store, "p", 1)
    store.add_misses("shop", [Miss(url="http://x/1", kind="dead", reason="it was refused")])
    frontier("requeue", "shop").expect(4, "nothing to try again")


# another priority


def test_what_waits_can_go_first(frontier: Run, store: Store) -> None:
    for number, slot in enumerate(("p", "p", "q")):
        put(store, slot, number)
    told = frontier("prioritise", "shop", "--to", 5, "--prefix", "q", "--json").expect(0).json()
    assert (told["batches"], told["requests"], told["priority"]) == ([3], 1, 5)
    assert lease(store) == 3
    frontier("prioritise", "shop", 2, "--to", 1).expect(0, "1 batch with 1 request of shop")
    assert lease(store) == 2
    assert frontier("prioritise", "shop", 2, 1, "--to", 1)[0] == 4, "it is leased"
    assert frontier("prioritise", "shop", "--to", 1, "--prefix", "no")[0] == 4


# deleting


def test_a_slot_that_was_moved_away_takes_no_memory_with_it(frontier: Run, store: Store) -> None:
    put(store, "p0", *range(10))
    frontier("move", "shop", "p", "q", 2)
    put(store, "p0", 77)
    assert frontier("delete", "shop", "--prefix", "p", "--yes")[0] == 0
    assert set(store.fingerprints("shop")) >= {b"%03d" % number for number in range(10)}


def test_the_whole_frontier_goes_with_what_came_home(
    frontier: Run, sdist: Run, store: Store, root: Path
) -> None:
    put(store, "p", 1)
    folder = root / ".sdist" / "crawls" / "shop" / "parts"
    folder.mkdir(parents=True)
    (folder / "1.jl").write_text("{}\n", "utf-8")
    for why, begin, end in (
        ("producers are filling it (links)", lambda: store.register_producer("shop", "links", 60),
         lambda: store.sign_off("shop", "links")),
        ("workers have 1 of its batches", lambda: lease(store, "p"),
         lambda: store.fail("shop", 1, 1, reason="", now=1.0, max_attempts=4)),
        (f"process {os.getpid()}", lambda: store.update_crawl("shop", pid=os.getpid(), beat=time.time()),
         lambda: store.update_crawl("shop", pid=None)),
    ):  # fmt: skip
        begin()
        frontier("delete", "shop", "--all", "--yes").expect(2, why)
        sdist("crawls", "clean", "shop", "--yes").expect(2, "removed")
        end()
    assert sdist("crawls", "clean", "--older-than", "0", "--yes").code == 0, (
        "a frontier goes by its name only"
    )
    assert frontier("delete", "shop", "--all", "--yes")[0] == 0
    assert store.crawls() == []
    assert not folder.parent.exists()


@pytest.mark.parametrize(("answer", "left"), [("n\n", 2), ("\n", 2), ("y\n", 0)])
def test_before_slots_are_deleted_a_person_is_asked(
    store: Store, frontier: Run, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    put(store, "p0", 1, 2)
    monkeypatch.setattr(output, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    frontier("delete", "shop", "--prefix", "p").expect(None, "1 slot", "2 waiting")
    assert sum(count.waiting for count in store.backlog("shop").slots) == left


# consuming


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("article shp", 4, "Did you mean shop?"),
        ("article a/b", 2, "cannot name a frontier"),
        ("article shop --prefix x", 4, "no slot whose name begins with 'x'"),
        ("article shop -o items.jl --loop 0", 2, "--loop 0 leaves before any items are home"),
        ("article shop -o there.json", 2, "nothing can be added to a JSON list"),
        ("article shop --max-time soon", 2, "a number of seconds, or a time such as 30m"),
        ("article shop --max-running=-1", 2, "--max-running"),
        ("article shop -a nothing", 2, "not of the form NAME=VALUE"),
        ("article shop -s DISTRIBUTED_STORE=x.db", 2, "show the store's address"),
        ("article easy-1", 2, "sdist resume easy-1"),
        ("article shop --label a,b", 2, "has a comma"),
        ("article shop --label =1", 2, "NAME=VALUE"),
        ("article shop --units 3", 2, "--units"),
        ("article words --fair spread", 2, "--fair is for workers"),
        ("article words --prefix p --idle 3", 2, "--prefix, --idle is for workers"),
    ],
)
def test_bad_input_is_told_in_a_paragraph(
    sdist: Run, store: Store, tmp_path: Path, line: str, code: int, words: str
) -> None:
    (tmp_path / "there.json").touch()
    store.add_crawl(Crawl(id="easy-1", project="p", spider="easy", created=2.0))
    open_frontier(store, "words", project="p", now=3.0, arguments=True)
    before = store.crawl("shop")
    _, out, err = sdist("frontier", "consume", *line.split()).expect(code, words)
    assert (out, err.count("\n")) == ("", 1)
    assert store.crawl("shop") == before


def test_help_names_all_that_a_crawl_manager_can_be_asked_for(sdist: Run) -> None:
    told = set(re.findall(r"[\w-]+", sdist("help", "--all", "frontier", "consume").expect(0).out))
    options = "--prefix --max-running --per-slot --loop --max-time --label -a -s --max-batches --max-requests --idle -o"
    assert {"SPIDER", "FRONTIER", *options.split()} - told == set()


def test_a_second_manager_is_refused_and_told_who_has_it(sdist: Run, store: Store) -> None:
    store.update_crawl("shop", pid=os.getpid(), beat=time.time())
    sdist("frontier", "consume", "article", "shop").expect(2, f"Process {os.getpid()}")
    assert store.crawl("shop").pid == os.getpid()
    store.update_crawl("shop", pid=4_000_000, host="elsewhere", beat=time.time())
    sdist("frontier", "consume", "article", "shop").expect(2, "Process 4000000 on elsewhere")


def test_what_is_asked_for_reaches_manager_and_workers() -> None:
    wanted = ConsumeOptions(
        spider="s", frontier="f", slots="p", max_running=3, per_slot=2, loop=60.0, max_time=7200.0, max_batches=50,
        max_requests=150, idle=30.0, node=["web1"], fair=SPREAD,
    )  # fmt: skip
    assert wanted.scaling() == ScalingPolicy(
        most=3, per_slot=2, prefix="p", every=60.0, max_time=7200.0
    )
    assert wanted.settings() == {
        "DISTRIBUTED_MAX_BATCHES": 50, "DISTRIBUTED_MAX_REQUESTS": 150, "DISTRIBUTED_IDLE": 30.0,
        "DISTRIBUTED_NODES": ["web1"], "DISTRIBUTED_FAIR": SPREAD,
    }  # fmt: skip
    assert ConsumeOptions(spider="s", frontier="f").settings() == {}, "then settings.py decides"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("resume shop", 2, "sdist frontier consume SPIDER shop"),
        ("retry shop", 2, "sdist frontier consume SPIDER shop"),
        ("status", 4, "There are no crawls yet"),
        ("crawls", 0, "There are no crawls yet"),
        ("status easy-7", 4, "and `sdist jobs` jobs."),
        ("status shop", 0, "No workers are kept running here"),
    ],
)
def test_a_frontier_is_no_crawl(
    sdist: Run, store: Store, command: str, code: int, words: str
) -> None:
    store.update_crawl("shop", state=CrawlState.STOPPED)
    ended, out, err = sdist(*command.split())
    assert (ended, words in out + err) == (code, True), err
