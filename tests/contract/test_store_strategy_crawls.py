"""Whole crawls of a strategy on a store of each engine: its manager and a worker, which lease and ack as ever."""

import contextlib
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from cryptography.fernet import Fernet
from rig.strategy_memory import Counting, Killed, Page, StrategyRig, events_of, web
from rig.strategy_stores import LESSEE, NAME, StoredStrategy

from scrapyd_dist.batches import BatchState
from scrapyd_dist.frontier.backlog import LeaseRequest
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.strategy import BasicStrategy, Request, Response, Revisit, States
from scrapyd_dist.strategy.links import StrategyStep

SITE = "http://a.example"


def finished(crawl: StoredStrategy, seeds: list[str]) -> StoredStrategy:
    crawl.manager.read_seeds(iter(seeds))
    crawl.crawl()
    assert crawl.manager.over
    return crawl


def test_a_crawl_requests_every_link_once_and_ends(store: Store) -> None:
    pages = web(5, 7, 60)
    calm = StrategyRig(Counting(), pages)
    calm.seed(*list(pages)[:4])
    calm.crawl()
    crawl = finished(StoredStrategy(store, Counting(), pages), list(pages)[:4])
    assert Counter(crawl.made) == Counter(calm.worker.made)
    assert crawl.states() == calm.store.states()
    assert store.domains(NAME, list(calm.store.metadata)) == calm.store.metadata
    backlog = store.strategy_backlog(NAME)
    assert (backlog.ended, backlog.queued, backlog.events, backlog.dead) == (True, 0, 0, 0)
    assert backlog.states == Counter(calm.store.states().values())
    crawl.manager.close()
    assert store.backlog(NAME).finished is True


@pytest.mark.parametrize("seed", range(3))
def test_whatever_call_a_process_is_killed_at_the_outcome_is_the_same(
    opened: Callable[[], Store], seed: int
) -> None:
    pages = web(seed, 6, 40)
    seeds = list(pages)[:5]
    calm = StrategyRig(Counting(), pages)
    calm.seed(*seeds)
    calm.crawl()
    store = opened()
    crawl = StoredStrategy(store, Counting(), pages, size=4)
    left = 0

    def kill(verb: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    for calls in range(1, 40, 2):
        name = f"killed{calls}"
        manager, left = crawl.another(name), calls
        crawl.store.before = kill
        with contextlib.suppress(Killed):
            manager.read_seeds(iter(seeds))
            for _ in range(20):
                crawl.clock.time += 1
                manager.work()
                crawl.work(2)
        crawl.store.before = lambda _: None
        store.leave_partitions(NAME, name)  # in place of the seconds after which it counts as dead
        for role in ("strategy@", "seeds@"):
            store.sign_off(NAME, f"{role}{name}")
    store.end_strategy(NAME, ended=False)
    finished(crawl, seeds)
    assert Counter(crawl.made) == Counter(calm.worker.made)
    assert crawl.states() == calm.store.states()
    assert store.domains(NAME, list(calm.store.metadata)) == calm.store.metadata


def test_a_process_that_is_killed_as_it_ends_the_crawl_has_not_ended_what_is_under_way(
    store: Store,
) -> None:
    crawl = StoredStrategy(store, Counting(), {})
    pages = {f"{SITE}/": Page(links=[f"{SITE}/a"])}
    value = {"url": f"{SITE}/", "meta": {"distributed_link": {"fingerprint": "00", "read": "page"}}}

    def kill(_: str) -> None:
        raise Killed

    def ack(verb: str) -> None:  # between the last look and the end
        if verb == "end_strategy":
            crawl.store.before = kill
            store.apply(
                StrategyStep(
                    crawl=NAME, process="a worker", partitions=(), events=events_of(value, pages)
                )
            )

    crawl.store.before = ack
    with pytest.raises(Killed):
        finished(crawl, [f"{SITE}/"])
    crawl.store.before = lambda _: None
    assert store.strategy_backlog(NAME).ended is False
    store.leave_partitions(NAME, "one")
    other = crawl.another("two")
    crawl.crawl(other)
    assert other.over
    assert crawl.made == [f"{SITE}/", f"{SITE}/a"]


def test_what_the_store_cannot_keep_is_a_dead_letter_of_its_own_event(store: Store) -> None:
    class Deep(BasicStrategy):
        def links_extracted(self, request: Request, links: list[Request]) -> None:
            for link in links:
                link.meta["depth"] = 1 << 70 if link.url.endswith("/bad") else 1
            super().links_extracted(request, links)

    leaves = [f"{SITE}/{number}" for number in range(40)]
    pages = {
        f"{SITE}/": Page(links=leaves),
        leaves[17]: Page(links=[f"{SITE}/good", f"{SITE}/bad"]),
    }
    crawl = finished(StoredStrategy(store, Deep(), pages), [f"{SITE}/"])
    assert sorted(crawl.made) == sorted([f"{SITE}/", *leaves])
    (letter,) = store.dead_events(NAME)
    assert (letter.url, letter.kind.value) == (leaves[17], "links")
    assert "the depth of" in letter.fault
    assert store.counts(NAME)["handler_errors"] == 1


def test_two_processes_share_the_work(store: Store) -> None:
    pages = web(9, 12, 60)
    crawl = StoredStrategy(store, Counting(), pages)
    other = crawl.another("two")
    other.work()
    crawl.manager.read_seeds(iter(list(pages)[:4]))
    crawl.crawl(crawl.manager, other)
    assert crawl.manager.over
    assert other.over
    assert {len(one.partitions) for one in store.strategy_backlog(NAME).processes} == {32}
    calm = StrategyRig(Counting(), pages)
    calm.seed(*list(pages)[:4])
    calm.crawl()
    assert Counter(crawl.made) == Counter(calm.worker.made)
    assert store.domains(NAME, list(calm.store.metadata)) == calm.store.metadata


def test_the_order_at_a_site_is_that_of_the_scores(store: Store) -> None:
    class Numbered(BasicStrategy):
        def score(self, link: Request) -> float:
            return int(link.url.rpartition("/")[2]) / 1_000

    crawl = StoredStrategy(store, Numbered(), {}, ahead=20, size=5)
    finished(crawl, [f"{SITE}/{number * 377 % 1_000}" for number in range(300)])
    numbers = [int(url.rpartition("/")[2]) for url in crawl.made]
    assert len(numbers) == 300
    assert numbers == sorted(numbers, reverse=True)
    assert [value["priority"] for value in crawl.values] == [number * 1_000 for number in numbers]


def test_a_batch_that_is_dead_is_told_of_and_dropped(store: Store) -> None:
    crawl = StoredStrategy(store, Counting(), {f"{SITE}/": Page()})
    crawl.manager.read_seeds(iter([f"{SITE}/"]))
    [batch] = store.batches(NAME)
    for _ in range(3):
        [leased] = store.lease_next(LeaseRequest(crawl=NAME, lessee=LESSEE, seconds=60.0, now=1.0))
        store.fail(NAME, batch.number, leased.attempt, reason="killed", now=2.0, max_attempts=3)
    assert store.batch(NAME, batch.number).state is BatchState.DEAD
    crawl.crawl()
    assert crawl.made == [f"{SITE}/"]  # its second try
    assert store.domains(NAME, ["a.example"]) == {"a.example": {"WorkerDied": 1, "pages": 1}}
    assert crawl.states() == {f"{SITE}/": States.CRAWLED}
    assert crawl.manager.over


def test_pages_are_requested_again_at_their_moment(store: Store) -> None:
    crawl = StoredStrategy(
        store, Revisit(interval=100, shortest=100, longest=100), {f"{SITE}/": Page(body="x")}
    )
    crawl.manager.read_seeds(iter([f"{SITE}/"]))
    moments: list[float] = []
    for _ in range(450):
        crawl.clock.time += 1
        crawl.manager.work()
        if crawl.work():
            moments.append(crawl.clock.time)
    assert len(moments) == 5
    assert {later - earlier for earlier, later in pairwise(moments)} <= {100.0, 101.0}
    assert store.strategy_backlog(NAME).later == 1


class Posting(BasicStrategy):
    """Has a request that must be kept secret follow from a page."""

    def page_crawled(self, response: Response) -> None:
        if response.url.endswith("/1"):
            self.schedule(
                self.create_request(f"{SITE}/form", "POST", cookies={"a": "b"}, body="secret")
            )


@pytest.mark.parametrize("key", [None, Fernet.generate_key()], ids=["no key", "a key"])
def test_private_requests_need_a_key(where: str, key: bytes | None) -> None:
    with contextlib.closing(open_store(where, key=key)) as store:
        crawl = StoredStrategy(store, Posting(), {}, key=key)
        finished(crawl, [f"{SITE}/1", f"{SITE}/2"])
        assert sorted(crawl.made) == [f"{SITE}/1", f"{SITE}/2", *([f"{SITE}/form"] if key else [])]
        letters = [letter.fault for letter in store.dead_events(NAME)]
        assert [("no key to encrypt it with" in fault) for fault in letters] == (
            [] if key else [True]
        )
