"""What every store does with crawls, counts, shards, samples, misses and nodes."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from rig.stores import CRAWL, attempt, bring_to, halves, seal

from scrapyd_dist.batches import BatchState, CrawlState, Miss, Shard, ShardState, WorkerEntry
from scrapyd_dist.errors import NothingMatched, StoreError
from scrapyd_dist.goals import spend
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store import Store


def test_a_crawl_comes_back_as_it_was(store: Store, opened: Callable[[], Store]) -> None:
    assert store.crawl("c") == opened().crawl("c") == CRAWL


def test_a_name_is_taken_once(store: Store) -> None:
    with pytest.raises(StoreError, match="there is a crawl c already"):
        store.add_crawl(replace(CRAWL, spider="other"))
    assert store.crawl("c").spider == "s"


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize(
    "limits", [{}, {"requests": 9}, {"items": 4, "dry_pages": 3}, {"errors": 1, "time": 2.5}]
)
def test_goals_are_counted_and_granted_alike_in_every_store(
    store: Store, opened: Callable[[], Store], limits: dict[str, float], reserve: bool
) -> None:
    counts: Mapping[str, int] = {}
    steps: list[tuple[int, dict[str, int]]] = [
        (4, {}), (3, {"pages": 2}), (0, {"items": 3, "pages": 1}), (5, {"pages": 1}), (2, {"items": 1, "errors": 1}),
        (1, {"time": 3}), (1, {"items": -4, "errors": -1, "time": -3}),
    ]  # fmt: skip
    for requests, told in steps:
        expected = spend(limits, counts, requests, told, reserve=reserve)
        counts = expected.counts
        found = store.spend("c", limits, requests, told, reserve=reserve)
        assert found.granted == expected.granted
        assert +Counter(found.counts) == +Counter(counts)
    store.walk_again("c")
    assert +Counter(opened().spend("c", {}).counts) == +Counter(counts), (
        "they outlive a second walk"
    )
    with pytest.raises(NothingMatched):
        store.spend("x", limits, 1)
    store.forget("c")
    store.add_crawl(CRAWL)
    assert not any(store.spend("c", {}).counts.values())


def test_crawls_come_newest_first(store: Store) -> None:
    for name, created in (("old", 1.0), ("new", 3.0), ("newer", 3.0)):
        store.add_crawl(replace(CRAWL, id=name, created=created))
    assert [crawl.id for crawl in store.crawls()] == ["newer", "new", "c", "old"]


def test_fields_of_a_crawl_change_by_name(store: Store) -> None:
    changes: dict[str, Any] = {
        "state": CrawlState.STOPPED,
        "ended": 2.0,
        "exit_code": 3,
        "pid": None,
    }
    changes["summary"] = {"items": 1}
    store.update_crawl("c", **changes, message="half \ud83d of a pair")
    assert store.crawl("c") == replace(CRAWL, **changes, message="half ? of a pair")
    with pytest.raises(StoreError, match="no colour"):
        store.update_crawl("c", colour="red")


def test_of_two_processes_that_take_a_row_at_once_one_has_it(store: Store) -> None:
    before = store.crawl("c").pid, store.crawl("c").host
    assert store.claim("c", pid=7, host="here", before=before)
    assert not store.claim("c", pid=8, host="there", before=before)
    assert (store.crawl("c").pid, store.crawl("c").host) == (7, "here")
    assert store.claim("c", pid=8, host="there", before=(7, "here"))
    with pytest.raises(NothingMatched):
        store.claim("x", pid=7, host="here", before=(None, ""))


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: s.crawl("x"),
        lambda s: s.batch("c", 9),
        lambda s: s.payload("c", 9),
        lambda s: s.open_attempt("x", attempt()),
        lambda s: s.accept("x", 1, 1, report={}, part="", misses=(), now=1.0),
        lambda s: s.fail("x", 1, 1, reason="", now=1.0, max_attempts=1),
        lambda s: s.split("x", 1, halves(1)),
    ],
)
def test_what_is_not_there_is_told(store: Store, ask: Callable[[Store], object]) -> None:
    with pytest.raises(NothingMatched):
        ask(store)


def test_counts_add_up_and_belong_to_one_crawl(store: Store) -> None:
    store.add_crawl(replace(CRAWL, id="d"))
    store.count("c", {"offsite": 2, "local": 0})
    store.count("c", {"offsite": 3})
    store.count("d", {"offsite": 1})
    seal(store, counts={"sealed": 2, "offsite": 1})
    assert store.counts("c") == {"offsite": 6, "sealed": 2}


def test_shards_are_kept_and_finished_by_number(store: Store) -> None:
    shards = [
        Shard(number=0, url="u", first_page=0, last_page=4),
        Shard(number=1, url="v"),
        Shard(number=2, url="w"),
    ]
    store.add_shards("c", shards)
    store.finish_shards("c", [0, 2])
    assert store.shards("c") == [
        replace(s, state=ShardState.OPEN if s.number == 1 else ShardState.FINISHED) for s in shards
    ]
    with pytest.raises(StoreError):
        store.add_shards("c", [Shard(number=3, url="x"), Shard(number=0, url="y")])
    assert len(store.shards("c")) == 3


def test_misses_keep_their_order_and_any_text(store: Store) -> None:
    misses = [
        Miss(url=f"http://web/{n}", kind="failed", reason="ü\0'\";--", batch=n) for n in (3, 1, 2)
    ]
    store.add_misses("c", misses)
    store.add_misses("c", [Miss(url="x", kind="index", reason="half \udcff of a pair")])
    shown = [replace(one, reason=one.reason.replace("\0", "\ufffd")) for one in misses]
    assert store.misses("c") == [*shown, Miss(url="x", kind="index", reason="half ? of a pair")]


def test_walking_again_forgets_the_producers_own_misses_and_all_counts_but_what_is_sealed(
    store: Store,
) -> None:
    of_batch, own = (
        Miss(url="u", kind="gone", reason="", batch=2),
        Miss(url="v", kind="index", reason=""),
    )
    store.add_misses("c", [own, of_batch])
    store.count("c", {"offsite": 2})
    seal(store, counts={"sealed": 2, "local": 1})
    store.walk_again("c")
    assert (store.misses("c"), store.counts("c")) == ([of_batch], {"sealed": 2})


def test_what_is_known_of_a_node_is_set_by_name_and_outlives_crawls(
    store: Store, opened: Callable[[], Store]
) -> None:
    assert store.nodes() == []
    store.update_node("web2", draining=12.25)
    store.update_node("web1", start_delay=3.5, idle_looks=(1.5, 2.5))
    store.update_node("web2", idle_looks=(9.0,))
    store.forget("c")
    web1 = NodeRecord(name="web1", start_delay=3.5, idle_looks=(1.5, 2.5))
    assert opened().nodes() == [web1, NodeRecord(name="web2", draining=12.25, idle_looks=(9.0,))]
    store.update_node("web2", draining=None, idle_looks=())
    store.update_node("web3")
    assert store.nodes() == [web1, NodeRecord(name="web2"), NodeRecord(name="web3")]
    with pytest.raises(StoreError, match="a node has no colour"):
        store.update_node("web1", colour="red")


def test_a_wish_stays_until_it_is_taken_back_and_others_are_refused(
    store: Store, opened: Callable[[], Store]
) -> None:
    assert store.wanted("c") == ""
    store.want("c", "pause")
    assert opened().crawl("c") == replace(CRAWL, wanted="pause")
    assert opened().wanted("c") == "pause"
    assert store.wanted("x") == ""
    store.want("c", "cancel")
    assert store.wanted("c") == "cancel"
    assert store.crawl("c").wanted == "cancel"
    store.want("c", "")
    with pytest.raises(StoreError, match=r"'stop'.*cancel, close, pause"):
        store.want("c", "stop")
    with pytest.raises(NothingMatched, match="no crawl 'x'"):
        store.want("x", "pause")
    assert store.crawls() == [CRAWL]


def test_samples_come_in_order_of_time_and_belong_to_one_crawl(store: Store) -> None:
    store.add_crawl(replace(CRAWL, id="d"))
    for at in (3.0, 1.25, 2.0):
        store.add_sample("c", at, {"found": int(at), "nodes": {"ü": {"items": 1.5}}})
    store.add_sample("d", 1.0, {})
    assert [(at, values["found"]) for at, values in store.samples("c")] == [
        (1.25, 1),
        (2.0, 2),
        (3.0, 3),
    ]
    assert store.samples("c")[0][1]["nodes"] == {"ü": {"items": 1.5}}
    assert store.samples("d") == [(1.0, {})]


def fill(store: Store, crawl: str) -> None:
    """Some of everything."""
    store.add_shards(crawl, [Shard(number=0, url="u")])
    store.finish_shards(crawl, [0])
    for number in range(3):
        prints = [f"{crawl}.{number}.{n}".encode() for n in range(300)]
        seal(store, crawl=crawl, fingerprints=prints, counts={"sealed": 2, "local": 1})
    store.open_attempt(crawl, replace(attempt(), job=f"{crawl}.b1.a1"))
    store.lease(crawl, 1, 1, "me", 60.0)
    store.add_misses(crawl, [Miss(url="u", kind="gone", reason="", batch=n) for n in (0, 1)])
    store.add_sample(crawl, 1.0, {"found": 1})


def all_of(store: Store, crawl: str) -> list[object]:
    parts = [store.shards(crawl), store.batches(crawl), store.attempts(crawl), store.misses(crawl)]
    return [*parts, store.samples(crawl), store.counts(crawl), sorted(store.fingerprints(crawl))]


def test_a_crawl_is_forgotten_whole_and_no_other_with_it(store: Store) -> None:
    store.add_crawl(replace(CRAWL, id="d"))
    for crawl in ("c", "d"):
        fill(store, crawl)
    before = all_of(store, "d")
    assert all(before)
    store.forget("c")
    assert [crawl.id for crawl in store.crawls()] == ["d"]
    assert all_of(store, "d") == before
    with pytest.raises(NothingMatched):
        store.payload("c", 1)
    store.forget("c")  # again: nothing is there to be forgotten
    store.add_crawl(CRAWL)
    assert not any(all_of(store, "c"))
    assert seal(store) == 1


def worker(number: int, **fields: Any) -> WorkerEntry:
    return WorkerEntry(
        number=number,
        job=f"c.w{number}.a1",
        url="http://one:6800",
        pool="",
        since=float(number),
        **fields,
    )


def test_workers_are_listed_until_they_are_removed_and_their_numbers_never_come_again(
    store: Store,
) -> None:
    assert store.workers("c") == ([], 0)
    store.add_workers(
        "c", [worker(1), worker(2, version="v", project="q", introduces=True)], last=2
    )
    store.add_workers("c", [worker(11)], last=11)
    assert store.workers("c")[0] == [
        worker(1),
        worker(2, version="v", project="q", introduces=True),
        worker(11),
    ]
    for number in (2, 11, 11):
        store.remove_worker("c", f"c.w{number}.a1")
    store.add_workers("c", [worker(1, version="w")], last=1)
    assert store.workers("c") == ([worker(1, version="w")], 11)
    assert store.own_crawl("c").options == CRAWL.options
    store.forget("c")
    store.remove_worker("c", "c.w1.a1")
    with pytest.raises(NothingMatched):
        store.add_workers("c", [worker(1)], last=1)
    assert store.workers("c") == ([], 0)
    store.add_crawl(CRAWL)
    assert store.workers("c") == ([], 0)


def test_forgetting_that_was_broken_off_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "c")
    steps = []

    def broken(verb: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            steps.append(1)
            if len(steps) > 1:
                raise ConnectionError
            return verb(*args, **options)

        return step

    connection = store.connection
    for name in ("step", "query_all"):  # what either engine makes its changes by
        if hasattr(connection, name):
            monkeypatch.setattr(connection, name, broken(getattr(connection, name)))
    with pytest.raises(ConnectionError):
        store.forget("c")
    monkeypatch.undo()
    assert [crawl.id for crawl in store.crawls()] == ["c"]
    store.forget("c")
    assert store.crawls() == []
    store.add_crawl(CRAWL)
    assert not any(all_of(store, "c"))
    assert bring_to(store, BatchState.DONE) == 1
