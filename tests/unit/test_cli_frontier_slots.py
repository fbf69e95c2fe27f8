"""`sdist frontier` on a real store: what is shown, what is moved and removed, and what is left alone."""

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from scrapyd_dist.cli import context, main, output
from scrapyd_dist.cli.frontier import frontier_move

from scrapyd_dist.batches import Batch, BatchState, Crawl
from scrapyd_dist.config import state_dir
from scrapyd_dist.frontier.backlog import Lessee, NewBatch
from scrapyd_dist.frontier.slots import SlotRule
from scrapyd_dist.keys import state_key
from scrapyd_dist.payload import encode
from scrapyd_dist.store import Store, open_store

WORKER = Lessee(job="shop.w1.a1", node="one", url="http://one:6800")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current folder."""
    monkeypatch.delenv("SDIST_STORE", raising=False)
    monkeypatch.delenv("SCRAPY_SETTINGS_MODULE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """The project's store with an empty frontier."""
    state_dir(root)
    with closing(open_store(root / ".sdist" / "store.db")) as one:
        one.add_crawl(Crawl(id="shop", project="p", spider="", created=1.0, kind="frontier"))
        yield one


@pytest.fixture
def sdist(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`sdist("count", "shop")`: exit code, standard output, standard error of `sdist frontier count shop`."""

    def run(*arguments: object, group: str = "frontier") -> tuple[int, str, str]:
        code = main._run([*group.split(), *map(str, arguments)], debug=False)
        return code, *capsys.readouterr()

    return run


def put(store: Store, slot: str, *numbers: int, priority: int = 0, key: bytes | None = None, **fields: Any) -> Batch:
    """One batch of pages with these numbers."""
    values = [{"url": f"http://site{number % 3}.com/{number}", **fields} for number in numbers]
    prints = tuple(b"%03d" % number for number in numbers)
    payload = encode(values, key=key)
    new = NewBatch(payload=payload, size=len(values), slot=slot, priority=priority, fingerprints=prints)
    return store.add_batches("shop", [new], now=1.0)[0]


def lease(store: Store, *slots: str, seconds: float = 60.0) -> int:
    """The number of the batch that a worker has leased now."""
    return store.lease_next("shop", WORKER, slots=slots, seconds=seconds, now=1.0)[0].batch.number


def kill(store: Store, number: int) -> None:
    """Let the batch's next attempt be its last one."""
    assert lease(store, store.batch("shop", number).slot) == number
    assert store.fail("shop", number, 1, reason="its worker died", now=2.0, max_attempts=1) is BatchState.DEAD


def waiting(store: Store) -> dict[str, int]:
    """Slot -> requests that wait there."""
    return {count.slot: count.waiting for count in store.slots("shop") if count.waiting}


def urls(sdist: Callable[..., tuple[int, str, str]], *slots: str) -> list[str]:
    lines = [line for slot in slots for line in sdist("dump", "shop", slot)[1].splitlines()]
    return sorted(json.loads(line)["url"] for line in lines)


# looking


def test_what_there_is_is_listed_and_counted(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p0", 1, 2)
    put(store, "p0", 3)
    put(store, "q", 4)
    lease(store, "q")
    store.add_crawl(Crawl(id="a-crawl", project="p", spider="s", created=2.0))
    store.register_producer("shop", "links", 60)

    code, out, _ = sdist("list")
    assert code == 0
    assert out.splitlines()[1].split() == ["shop", "open", "2", "3", "1", "0", "0", "1"]
    assert len(out.splitlines()) == 2, "a crawl is none"
    assert sdist("list", "shop")[1].split() == ["p0", "q"]
    assert [line.split() for line in sdist("list", "--all")[1].splitlines()[1:]] == [
        ["shop", "p0", "3"],
        ["shop", "q", "0"],
    ]
    told = json.loads(sdist("list", "--json")[1])["frontiers"][0]
    assert (told["frontier"], told["producers"], told["requests"]["waiting"]) == ("shop", ["links"], 3)

    code, out, err = sdist("count", "shop")
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows == [["p0", "3", "0", "0", "0"], ["q", "0", "1", "0", "0"], ["total", "3", "1", "0", "0"]]
    assert "1 of 2 slots" in err
    told = json.loads(sdist("count", "shop", "--prefix", "p", "--json")[1])
    assert told["slots"] == [{
        "slot": "p0", "requests": {"waiting": 3, "leased": 0, "done": 0, "dead": 0},
        "batches": {"waiting": 2, "leased": 0, "done": 0, "dead": 0},
    }]  # fmt: skip
    assert json.loads(sdist("count", "shop", "--regex", "[pq]0?", "--json")[1])["not_empty"] == 1


def test_a_number_of_slots_shows_zeros_where_there_is_none(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p1", 1, 2)
    told = json.loads(sdist("count", "shop", "--prefix", "p", "--num-slots", "3", "--json")[1])
    assert [(one["slot"], one["requests"]["waiting"]) for one in told["slots"]] == [("p0", 0), ("p1", 2), ("p2", 0)]
    told = json.loads(sdist("count", "shop", "--prefix", "x", "--num-slots", "2", "--json")[1])
    assert [one["requests"]["waiting"] for one in told["slots"]] == [0, 0]


def test_a_crawl_that_is_pulled_is_a_frontier_as_well(sdist: Callable[..., Any], store: Store) -> None:
    store.add_crawl(Crawl(id="easy-1", project="p", spider="s", created=2.0))
    store.seal("easy-1", encode([{"url": "http://a/1"}]), size=1, fingerprints=[b"1"], now=1.0, counts={})
    assert json.loads(sdist("count", "easy-1", "--json")[1])["requests"]["waiting"] == 1
    assert json.loads(sdist("dump", "easy-1", "")[1]) == {"url": "http://a/1"}
    code, _, err = sdist("delete", "easy-1", "--all", "--yes")
    assert (code, "sdist clean easy-1" in err) == (2, True)


def test_requests_are_shown_in_their_order_and_stay(sdist: Callable[..., Any], store: Store, root: Path) -> None:
    key = state_key(state_dir(root))
    put(store, "p", 1, 2)
    put(store, "p", 3, priority=5, key=key, cookies={"sid": "secret"}, meta={"depth": 2})
    put(store, "p", 4, 5)
    before = store.slots("shop")
    code, out, _ = sdist("dump", "shop", "p", "--num-requests", "2")
    assert code == 0
    first, second = map(json.loads, out.splitlines())
    assert first == {"url": "http://site0.com/3", "cookies": {"sid": "secret"}, "meta": {"depth": 2}}
    assert second["url"] == "http://site1.com/1"
    told = json.loads(sdist("dump", "shop", "p", "--json")[1])
    assert [(one["batch"], one["priority"], len(one["requests"])) for one in told["batches"]] == [
        (2, 5, 1), (1, 0, 2), (3, 0, 2),
    ]  # fmt: skip
    assert store.slots("shop") == before


def test_another_folders_key_reads_nothing_and_says_so(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p", 1, key=Fernet.generate_key(), cookies={"sid": "secret"})
    code, out, err = sdist("dump", "shop", "p")
    assert (code, out) == (2, "")
    assert "Batch 1 of shop cannot be read here" in err
    assert "secret" not in err


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
    sdist: Callable[..., Any], store: Store, line: str, code: int, words: str
) -> None:
    put(store, "p0", 1)
    before = store.batches("shop")
    ended, out, err = sdist(*line.split())
    assert (ended, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1, "one paragraph"
    assert store.batches("shop") == before


def test_without_a_store_none_is_made(sdist: Callable[..., Any], root: Path) -> None:
    assert "no frontiers yet" in sdist("list")[2]
    assert sdist("count", "shop")[0] == 4
    assert not (root / ".sdist").exists()


# moving


def test_slots_are_split_and_joined_and_every_request_is_there_once(sdist: Callable[..., Any], store: Store) -> None:
    for first in range(0, 60, 10):
        put(store, "p0", *range(first, first + 10), priority=first % 20)
    every = urls(sdist, "p0")
    code, _, err = sdist("move", "shop", "p", "q", 4)
    assert code == 0
    assert "60 requests of 6 batches" in err
    assert set(waiting(store)) == {"q0", "q1", "q2", "q3"}
    assert urls(sdist, "q0", "q1", "q2", "q3") == every
    assert sdist("list", "shop")[1].split() == ["q0", "q1", "q2", "q3"], "what was emptied is not listed"
    slot = SlotRule(prefix="q", number=4)
    for number in range(60):
        assert f"http://site{number % 3}.com/{number}" in urls(sdist, slot.of("", b"%03d" % number))
    assert {batch.priority for batch in store.batches("shop", {BatchState.SEALED})} == {0, 10}

    assert json.loads(sdist("move", "shop", "q", "r", 1, "--json")[1])["batches"] > 6
    assert urls(sdist, "r0") == every
    again = NewBatch(payload={}, size=1, fingerprints=(b"007",))
    with pytest.raises(Exception, match="in the frontier already"):
        store.add_batches("shop", [again], now=1.0)


def test_a_site_stays_together_when_it_is_moved_by_domain(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p", *range(30))
    assert sdist("move", "shop", "p", "q", 5, "--by", "domain")[0] == 0
    sites: dict[str, set[str]] = {}
    for slot in waiting(store):
        for url in urls(sdist, slot):
            sites.setdefault(url.split("/")[2], set()).add(slot)
    assert {site: len(slots) for site, slots in sites.items()} == {"site0.com": 1, "site1.com": 1, "site2.com": 1}


def test_whole_batches_are_spread_in_turn(sdist: Callable[..., Any], store: Store) -> None:
    for first in range(4):
        put(store, "p", first)
    assert sdist("move", "shop", "p", "q", 2, "--uniform")[0] == 0
    assert waiting(store) == {"q0": 2, "q1": 2}


def test_moving_within_the_same_slots_moves_only_what_lies_wrong(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p0", *range(20))
    assert sdist("move", "shop", "p", "p", 2)[0] == 0
    after = store.batches("shop")
    assert sdist("move", "shop", "p", "p", 2)[0] == 0
    assert store.batches("shop") == after


def test_what_a_worker_has_is_left_and_told(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p", 1)
    put(store, "p", 2)
    number = lease(store, "p")
    code, out, err = sdist("move", "shop", "p", "q", 2, "--json")
    assert (code, json.loads(out)["left"]) == (3, [number])
    assert f"workers have them now: batch {number}" in err
    assert store.batch("shop", number).slot == "p"
    code, _, err = sdist("move", "shop", "--batch", number, "away")
    assert (code, "shop.w1.a1 on one has it" in err) == (2, True)


def test_what_a_worker_takes_in_the_middle_is_left_as_well(
    sdist: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "p", 1)
    put(store, "p", 2)
    plain = context.requests_in

    def slow(*given: Any) -> Any:
        if store.batch("shop", 1).state is BatchState.SEALED:
            lease(store, "p")
        return plain(*given)

    monkeypatch.setattr(frontier_move, "requests_in", slow)
    code, out, _ = sdist("move", "shop", "p", "q", 1, "--json")
    assert (code, json.loads(out)["left"], json.loads(out)["requests"]) == (3, [1], 1)


def test_interrupted_in_the_middle_it_says_how_far_it_is_and_goes_on(
    sdist: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        put(store, "p", number)
    plain, seen = context.requests_in, []

    def interrupted(*given: Any) -> Any:
        seen.append(1)
        if len(seen) == 3:
            os.kill(os.getpid(), 2)
        return plain(*given)

    monkeypatch.setattr(frontier_move, "requests_in", interrupted)
    code, out, err = sdist("move", "shop", "p", "q", 1, "--json")
    told = json.loads(out)
    assert (code, told["batches"], told["interrupted"]) == (130, 3, True)
    assert "Interrupted after 3 of 5" in err
    assert waiting(store) == {"p": 2, "q0": 3}
    assert sdist("move", "shop", "p", "q", 1)[0] == 0
    assert waiting(store) == {"q0": 5}


def test_a_crawls_own_batches_have_no_fingerprints_and_are_moved_all_the_same() -> None:
    values = [{"url": f"http://a/{number}"} for number in range(20)]
    parts = frontier_move.in_slots(values, (), SlotRule(prefix="q", number=3), 0, b"")
    assert {part.slot for part in parts} == {"q0", "q1", "q2"}
    assert sum(part.size for part in parts) == 20
    assert not any(part.fingerprints for part in parts)


def test_long_work_is_told_about(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontier_move, "TELL", 0.0)
    batches = [put(store, "p", number) for number in range(2)]
    frontier_move.walk(batches, lambda _: None, "moved")
    assert "2 of 2 batches moved" in capsys.readouterr().err


def test_one_batch_is_put_away_alone_also_a_dead_one(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p", 1, 2)
    put(store, "p", 3)
    kill(store, 1)
    code, out, _ = sdist("move", "shop", "--batch", 1, "poison", "--json")
    told = json.loads(out)
    assert (code, told["was"], told["slot"], told["requests"]) == (0, 1, "poison", 2)
    assert waiting(store) == {"p": 1, "poison": 2}
    assert sdist("move", "shop", "--batch", 1, "poison")[0] == 2, "it has been cut"


# giving new attempts


def test_dead_batches_wait_again_in_their_slots(sdist: Callable[..., Any], store: Store) -> None:
    for number in range(3):
        put(store, "p", number)
        kill(store, number + 1)
    assert sdist("requeue", "shop", 2, 9)[0] == 4
    assert json.loads(sdist("requeue", "shop", 2, "--json")[1])["batches"] == [2]
    assert waiting(store) == {"p": 1}
    code, _, err = sdist("requeue", "shop")
    assert (code, "2 batches with 2 requests" in err) == (0, True)
    assert waiting(store) == {"p": 3}


# deleting


def test_slots_go_with_their_memory_and_others_stay(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p0", 1)
    put(store, "p1", 2)
    put(store, "q", 3)
    number = lease(store, "p1")
    code, out, err = sdist("delete", "shop", "--prefix", "p", "--yes", "--json")
    told = json.loads(out)
    assert (code, told["requests"], told["left"]) == (3, 1, [number])
    assert "workers have them now" in err
    assert waiting(store) == {"q": 1}
    put(store, "p0", 1)
    assert store.seen("shop", [b"002", b"003"]) == {b"002", b"003"}


def test_a_slot_that_was_moved_away_takes_no_memory_with_it(sdist: Callable[..., Any], store: Store) -> None:
    put(store, "p0", *range(10))
    sdist("move", "shop", "p", "q", 2)
    put(store, "p0", 77)
    assert sdist("delete", "shop", "--prefix", "p", "--yes")[0] == 0
    assert len(store.seen("shop", [b"%03d" % number for number in range(10)])) == 10


def test_the_whole_frontier_goes_with_what_came_home(sdist: Callable[..., Any], store: Store, root: Path) -> None:
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
        code, _, err = sdist("delete", "shop", "--all", "--yes")
        assert (code, why in err) == (2, True), err
        code, _, err = sdist("shop", "--yes", group="clean")
        assert (code, "removed" in err) == (2, True), err
        end()
    assert sdist("--older-than", "0", "--yes", group="clean")[0] == 0, "a frontier goes by its name only"
    assert sdist("delete", "shop", "--all", "--yes")[0] == 0
    assert store.crawls() == []
    assert not folder.parent.exists()


@pytest.mark.parametrize(("answer", "left"), [("n\n", 2), ("\n", 2), ("y\n", 0)])
def test_before_slots_are_deleted_a_person_is_asked(
    store: Store, sdist: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    put(store, "p0", 1, 2)
    monkeypatch.setattr(output, "can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    _, _, err = sdist("delete", "shop", "--prefix", "p")
    assert "1 slot" in err
    assert "2 waiting" in err
    assert sum(count.waiting for count in store.slots("shop")) == left


def test_slots_are_joined_while_a_worker_has_a_batch_of_one(
    store: Store, sdist: Callable[..., tuple[int, str, str]]
) -> None:
    for slot in range(4):
        put(store, f"p{slot}", slot)
    number = lease(store, "p2")
    code, out, _ = sdist("move", "shop", "p", "p", 1, "--json")
    assert (code, json.loads(out)["left"]) == (3, [number])
    assert {count.slot: count.waiting for count in store.slots("shop") if count.waiting} == {"p0": 3}
    store.fail("shop", number, 1, reason="it died", now=2.0, max_attempts=3)
    assert sdist("move", "shop", "p", "p", 1)[0] == 0
    assert {count.slot: count.waiting for count in store.slots("shop") if count.waiting} == {"p0": 4}
