"""The throttle's verbs, on every engine: permits, pages, rules, news of sites, and what is told of all that."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count as counting
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rig.redis import RedisServer
from rig.stores import CRAWL
from rig.waiting import wait_for

from scrapyd_dist.errors import StoreError
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.ports.throttle_rows import CHANGES
from scrapyd_dist.throttle.permits import (
    ALL,
    DomainLook,
    DomainState,
    Limit,
    Permit,
    PermitReply,
    PermitRequest,
    Rule,
    Rules,
    SiteNews,
    TakenPermits,
)

#: long enough for a test to stand in the middle of it
LIMIT = Limit(hits=10, window=1000.0)
BURST = Limit(hits=3, window=1000.0, moderated=False)
FREE, HELD = PermitReply(free=True), PermitReply(held=True)


def ask(
    key: str = "a.com", count: int = 1, limit: Limit | None = LIMIT, **fields: Any
) -> PermitRequest:
    return PermitRequest(key=key, domain=key.rpartition("|")[2], count=count, limit=limit, **fields)


def take(
    store: Store, key: str = "a.com", count: int = 1, limit: Limit | None = LIMIT, **fields: Any
) -> PermitReply:
    return store.take_permits([ask(key, count, limit, **fields)]).answers[0]


def gaps(permits: tuple[Permit, ...]) -> list[float]:
    return [round(later.at - earlier.at, 5) for earlier, later in pairwise(permits)]


def offsets(taken: TakenPermits, answer: int = 0) -> list[float]:
    """How far each permit is away, in seconds."""
    return [round(permit.at - taken.now, 5) for permit in taken.answers[answer].permits]


def state(store: Store, domain: str = "a.com") -> DomainState:
    (found,) = [one for one in store.domain_states() if one.domain == domain]
    return found


# permits


def test_a_limit_that_is_not_moderated_gives_them_all_and_then_rests(store: Store) -> None:
    assert offsets(store.take_permits([ask(count=7, limit=BURST)])) == [
        0.0,
        0.0,
        0.0,
        1000.0,
        1000.0,
        1000.0,
        2000.0,
    ]


def test_asks_of_several_keys_are_one_step_of_one_moment(store: Store) -> None:
    taken = store.take_permits(
        [ask("a.com"), ask("s|b.com", 2), ask("c.com", limit=None), ask("a.com")]
    )
    assert [offsets(taken, at) for at in range(4)] == [[0.0], [0.0, 100.0], [], [100.0]]
    assert taken.answers[2] == FREE


def test_nothing_asked_is_nothing_charged(store: Store) -> None:
    assert store.take_permits([]).answers == ()
    assert take(store, count=0).permits == ()
    assert offsets(store.take_permits([ask()])) == [0.0]


def test_names_may_have_anything_in_them(store: Store) -> None:
    keys = ["ein spider|ä.de", "a|::1|[::1]", "x y\n|b.com"]
    taken = store.take_permits([ask(key, 2, pages=9, budget="my crawl") for key in keys])
    assert [[permit.key for permit in answer.permits] for answer in taken.answers] == [
        [key] * 2 for key in keys
    ]
    store.return_permits([permit for answer in taken.answers for permit in answer.permits[1:]])
    taken = store.take_permits([ask(key) for key in keys])
    assert [offsets(taken, at)[0] <= 100 for at in range(3)] == [True] * 3
    assert {one.domain: one.pages for one in store.domain_states()}["ä.de"] == {"my crawl": 1}


def test_a_permit_that_was_handed_back_is_given_to_the_next(store: Store) -> None:
    first = take(store, count=5).permits
    store.return_permits([first[3], first[1]])
    assert take(store, count=3).permits[:2] == (first[1], first[3])
    assert gaps((first[4], take(store).permits[0])) == [200.0]  # the one between was the third


def test_handing_back_twice_makes_no_second_one(store: Store) -> None:
    first = take(store, count=3).permits
    store.return_permits([first[2], first[2]])
    store.return_permits([first[2], Permit(key="unknown.com", at=5.0, page_of="c")])
    assert gaps((first[1], *take(store, count=2).permits)) == [100.0, 100.0]


def test_a_place_that_is_free_again_in_a_window_is_told_to_those_that_wait_for_the_next(
    store: Store, opened: Callable[[], Store]
) -> None:
    other = opened()
    burst = take(store, count=3, limit=BURST).permits
    waiting = other.take_permits([ask(limit=BURST)], 0)
    assert (offsets(waiting)[0] > 900, waiting.changed) == (True, frozenset())
    store.return_permits(burst[1:2])
    look = other.tell_sites([], waiting.version)
    assert look.changed == {"a.com"}
    other.return_permits(
        waiting.answers[0].permits
    )  # as each worker does when it sees a new version
    assert offsets(other.take_permits([ask(limit=BURST)])) == [0.0]
    assert (
        other.tell_sites([]).version == look.version
    )  # what is returned before its moment is no news


def test_many_are_taken_in_one_step(store: Store) -> None:
    taken = store.take_permits([ask(count=5000, limit=Limit(hits=1000, window=10.0))])
    assert offsets(taken) == [round(number * 0.01, 5) for number in range(5000)]
    taken = store.take_permits(
        [ask("b.com", count=5000, limit=Limit(hits=2000, window=10.0, moderated=False))]
    )
    assert [round(at) for at in offsets(taken)] == [number // 2000 * 10 for number in range(5000)]


def test_what_does_not_count_any_more_is_forgotten(opened: Callable[[], Store], where: str) -> None:
    store, short = opened(), Limit(hits=1, window=0.001)
    long_ago = round((take(store, limit=short).permits[0].at - 200) * 1e6)
    server: Any = store.connection
    if where.startswith("sqlite"):
        server.db.execute("INSERT INTO grants SELECT number, ? FROM throttle_keys", (long_ago,))
        take(store, limit=short)
        kept = server.db.execute("SELECT count(*) FROM grants").fetchone()[0]
    else:
        grants, client = f"{server.prefix}t:g:a.com", server.client
        client.zadd(grants, {str(long_ago): long_ago})
        take(store, limit=short)
        kept = client.zcard(grants)
    assert kept == 2


# rules


def test_rules_are_kept_as_they_were_said_and_each_change_has_its_version(
    store: Store, opened: Callable[[], Store]
) -> None:
    said = {
        "a.com": Rule(hits=5, window=0.5, scale=0.25),
        ALL: Rule(paused=True),
        "ä.de": Rule(blocked=True),
    }
    assert (store.rules(), store.tell_sites([]).version) == (Rules(version=0, rules={}), 0)
    assert store.change_rules(said) == 1
    other = opened()
    assert other.rules() == Rules(version=1, rules=said)
    assert other.change_rules({"a.com": None, "b.com": Rule()}) == 2
    assert store.rules() == Rules(
        version=2, rules={ALL: said[ALL], "ä.de": said["ä.de"], "b.com": Rule()}
    )
    assert store.change_rules({ALL: None}) == 3
    assert (store.tell_sites([]).version, take(store, limit=None)) == (3, FREE)


def test_a_change_that_changes_nothing_has_no_version(store: Store) -> None:
    said = {"a.com": Rule(hits=5, window=0.5), "b.com": None}
    assert [store.change_rules(said), store.change_rules(said), store.change_rules({})] == [1, 1, 1]


def test_what_has_changed_since_a_version_is_told_by_domain(
    store: Store, opened: Callable[[], Store]
) -> None:
    store.change_rules({"a.com": Rule(blocked=True), "ä.de": Rule(paused=True)})
    told = store.tell_sites(
        [SiteNews(domain="b.com", crawl_delay=1.0), SiteNews(domain="c.com", answered=True)], 1
    )
    assert told == DomainLook(version=2, changed=frozenset({"b.com"}))
    store.change_rules({"ä.de": None})
    other = opened()
    wanted: list[tuple[int | None, set[str]]] = [
        (None, set()), (3, set()), (2, {"ä.de"}), (1, {"ä.de", "b.com"}), (0, {"ä.de", "b.com", "a.com"})
    ]  # fmt: skip
    for known, changed in wanted:
        assert other.tell_sites([], known) == DomainLook(version=3, changed=frozenset(changed))
        taken = other.take_permits([ask("d.com")], known)
        assert (taken.version, set(taken.changed), len(taken.answers[0].permits)) == (3, changed, 1)
    store.change_rules({ALL: Rule(paused=True)})
    assert ALL in other.tell_sites([], 3).changed


def test_who_knows_too_old_a_version_or_none_of_this_store_is_told_that_all_have_changed(
    store: Store,
) -> None:
    half = CHANGES // 2 + 1
    for version, first in enumerate((0, 1000, 2000), 1):
        assert (
            store.change_rules({f"site{first + at}.com": Rule(paused=True) for at in range(half)})
            == version
        )
    assert store.tell_sites([], 2).changed == {f"site{2000 + at}.com" for at in range(half)}
    for known in (0, 1, 99):
        assert store.tell_sites([], known) == DomainLook(version=3, changed=frozenset({ALL}))
    store.change_rules({f"more{at}.com": Rule(paused=True) for at in range(CHANGES + 1)})
    assert store.take_permits([], 3).changed == {ALL}
    store.change_rules({"a.com": Rule(paused=True)})
    assert store.take_permits([], 4).changed == {"a.com"}


def test_a_change_by_an_older_version_of_this_program_is_one_of_all(on_redis: Any) -> None:
    """It shares a Redis store, and counts the versions only."""
    on_redis.change_rules({"a.com": Rule(paused=True)})
    on_redis.connection.client.incr("{throttle}:t:version")  # as it does
    on_redis.change_rules({"b.com": Rule(paused=True)})
    assert [on_redis.tell_sites([], known).changed for known in (0, 1, 2)] == [
        {ALL},
        {ALL},
        {"b.com"},
    ]


def test_a_name_that_no_domain_has_is_noted_as_all_of_them(on_redis: Any) -> None:
    """The words of an answer are told apart by what is between them."""
    on_redis.change_rules({"a b": Rule(paused=True)})
    assert on_redis.tell_sites([], 0) == DomainLook(version=1, changed=frozenset({ALL}))


@pytest.mark.parametrize("wrong", [
    {"hits": 5}, {"window": 1.0}, {"hits": 0, "window": 1.0}, {"hits": 1, "window": 0.0}, {"scale": 1.5}, {"scale": -1},
])  # fmt: skip
def test_of_rules_that_cannot_be_none_is_kept(store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        store.change_rules({"a.com": Rule(blocked=True), "b.com": Rule(**wrong)})
    assert store.rules() == Rules(version=0, rules={})


def test_a_rule_holds_at_once_for_all(store: Store, opened: Callable[[], Store]) -> None:
    other = opened()
    assert take(other, limit=None) == FREE
    store.change_rules({"a.com": Rule(hits=2, window=10.0)})
    assert offsets(other.take_permits([ask(count=2, limit=None)])) == [0.0, 5.0]
    store.change_rules({ALL: Rule(paused=True)})
    assert (take(other), take(other, "b.com", limit=None)) == (HELD, HELD)
    store.change_rules({"a.com": None, ALL: None})
    assert (take(other, limit=None), other.tell_sites([]).version) == (FREE, 3)


# pages


def test_pages_are_counted_and_end(store: Store) -> None:
    first = take(store, count=2, pages=3, budget="c")
    assert ([permit.page_of for permit in first.permits], first.used_up) == (["c", "c"], False)
    last = take(store, count=5, pages=3, budget="c")
    assert (len(last.permits), last.used_up) == (1, True)
    assert take(store, pages=3, budget="c") == PermitReply(used_up=True)
    assert (state(store).pages, len(take(store, pages=3, budget="d").permits)) == ({"c": 3}, 1)
    assert len(take(store, "b.com", 9, pages=3, budget="c").permits) == 3


def test_a_page_that_is_handed_back_makes_room(store: Store) -> None:
    permits = take(store, count=2, limit=None, pages=2, budget="c").permits
    store.return_permits(permits[:1])
    store.return_permits(permits[:1])  # again, as when no answer has come
    assert len(take(store, count=2, limit=None, pages=2, budget="c").permits) == 1
    assert take(store, limit=None, pages=2, budget="c").used_up


def test_without_a_limit_pages_leave_at_once(store: Store) -> None:
    assert offsets(store.take_permits([ask(count=3, limit=None, pages=9, budget="c")])) == [0.0] * 3


def test_what_has_no_limit_leaves_nothing_behind_and_no_page_is_charged_to_a_domain_that_is_held(
    store: Store,
) -> None:
    take(store, limit=None)
    assert store.domain_states() == []
    store.change_rules({"a.com": Rule(paused=True)})
    assert take(store, count=3, pages=9, budget="c") == HELD
    assert store.domain_states() == []


# news


def test_a_refusal_slows_all_workers(store: Store, opened: Callable[[], Store]) -> None:
    first = opened().take_permits([ask()])
    assert store.tell_sites([SiteNews(domain="a.com", refused_at=first.now)]).version == 1
    assert state(store).pace == 0.5
    assert gaps((first.answers[0].permits[0], *take(store, count=2).permits)) == [200.0, 200.0]
    assert (
        store.tell_sites([SiteNews(domain="a.com", refused_at=first.now)]).version == 1
    )  # from before
    assert store.tell_sites([SiteNews(domain="a.com", refused_at=first.now + 900)]).version == 2
    assert state(store).pace == 0.25


# looking and forgetting


def test_a_domain_tells_how_it_stands(store: Store) -> None:
    last = take(store, "s|a.com", 3, pages=9, budget="c").permits[-1]
    found = state(store)
    assert (found.keys, found.next_at, found.pages) == ({"s|a.com": 1}, last.at, {"c": 3})
    assert (found.rest_until, found.pace, found.delay, found.gap) == (0.0, 1.0, 0.0, 0.0)


def test_what_nobody_asks_for_is_forgotten_unless_it_counts_still(store: Store) -> None:
    now = take(store).permits[0].at
    short = Limit(hits=1, window=0.001)
    take(store, "short.com", limit=short, pages=9, budget="c")
    store.tell_sites([SiteNews(domain="rests.com", retry_after=1000.0)])
    store.forget_permits(now - 1000)
    assert [one.domain for one in store.domain_states()] == ["a.com", "rests.com", "short.com"]

    later = counting(
        now + 1000
    )  # what counts still waits for a later moment than the one of this look

    def only_what_counts() -> bool:
        store.forget_permits(next(later))
        return [one.domain for one in store.domain_states()] == ["a.com", "rests.com"]

    wait_for(only_what_counts, 20)
    assert take(store, "short.com", 9, limit=short, pages=9, budget="c").used_up


def two_hours_later(store: Any) -> None:
    """Each domain was asked for two hours before."""
    server = store.connection
    if hasattr(server, "db"):
        server.db.execute("UPDATE throttle_domains SET asked = asked - 7200000000")
        return
    if hasattr(server, "data"):
        for one in server.data.domains.values():
            one.asked -= 7_200_000_000
        return
    key = f"{server.prefix}t:domains"
    ages = {
        name: asked - 7_200_000_000
        for name, asked in store.connection.client.zrange(key, 0, -1, withscores=True)
    }
    store.connection.client.zadd(key, ages)


def test_what_a_broad_crawl_has_left_behind_goes_while_others_come_unless_it_counts_still(
    store: Store,
) -> None:
    """C5: it needs no cleaning. What was given out within a window stays, a rest, a delay, and pages of a crawl."""
    short = Limit(hits=1, window=0.001)
    left = [ask(f"left{number}.com", limit=short) for number in range(200)]
    store.take_permits(
        [*left, ask("window.com"), ask("pages.com", limit=short, pages=9, budget="c")]
    )
    store.tell_sites(
        [
            SiteNews(domain="rests.com", retry_after=1000.0),
            SiteNews(domain="delay.com", crawl_delay=1.0),
        ]
    )
    two_hours_later(store)
    store.take_permits([ask("left7.com", limit=short)])
    store.take_permits([ask(f"new{number}.com", limit=short) for number in range(100)])
    stay = {"left7.com", "window.com", "pages.com", "rests.com", "delay.com"}
    new = {f"new{number}.com" for number in range(100)}
    assert {one.domain for one in store.domain_states()} == stay | new
    assert state(store, "pages.com").pages == {"c": 1}
    assert gaps((*take(store, "window.com", 2).permits,)) == [100.0]


def test_of_a_domain_that_has_gone_no_key_stays(on_redis: Any) -> None:
    on_redis.take_permits(
        [ask(f"left{number}.com", limit=Limit(hits=1, window=0.001)) for number in range(200)]
    )
    two_hours_later(on_redis)
    on_redis.take_permits([ask(f"new{number}.com") for number in range(100)])
    keys = {key.decode() for key in on_redis.connection.client.scan_iter("{throttle}:t:*")}
    assert not {key for key in keys if ":left" in key}
    assert {f"{{throttle}}:t:{kind}:new0.com" for kind in "gk"} <= keys


def test_the_pages_of_a_budget_can_be_forgotten_and_those_of_others_stay(store: Store) -> None:
    for budget in ("one", "two", "three"):
        store.take_permits(
            [ask(f"site{number}.com", pages=2, budget=budget) for number in range(20)]
        )
    store.forget_pages(["one", "three", "never"])
    store.forget_pages([])
    assert [one.pages for one in store.domain_states()] == [{"two": 1}] * 20
    assert len(take(store, "site0.com", 9, pages=2, budget="one").permits) == 2


def test_a_page_that_is_handed_back_too_late_makes_a_budget_that_was_forgotten_no_larger(
    store: Store,
) -> None:
    """Its name may come again, as that of a frontier does."""
    late = take(store, pages=1, budget="one").permits
    store.forget_pages(["one"])
    store.return_permits(late)
    assert state(store).pages == {}
    assert len(take(store, count=9, pages=1, budget="one").permits) == 1


def test_processes_that_ask_for_few_domains_look_at_all_of_them_together(
    opened: Callable[[], Store],
) -> None:
    """Each begins elsewhere: what stays, and comes first by its name, keeps no process from the rest."""
    short = Limit(hits=1, window=0.001)
    with closing(opened()) as store:
        store.tell_sites(
            [SiteNews(domain=f"a{number}.com", crawl_delay=1.0) for number in range(9)]
        )
        store.take_permits([ask(f"left{number}.com", limit=short) for number in range(9)])
        two_hours_later(store)
    for number in range(9):
        with closing(opened()) as store:
            store.take_permits(
                [ask(f"later{number}.com", limit=short), ask(f"kept{number}.com", limit=short)]
            )
    with closing(opened()) as store:
        names = {one.domain for one in store.domain_states()}
    assert names == {
        f"{name}{number}.com" for name in ("a", "later", "kept") for number in range(9)
    }


def test_forgetting_a_crawl_leaves_the_throttle_alone(store: Store) -> None:
    take(store)
    store.forget(CRAWL.id)
    assert gaps((*take(store, count=2).permits,)) == [100.0]
    assert state(store).keys == {"a.com": 1}


def test_a_clock_that_was_set_back_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(tmp_path / "store.db")) as store:
        take(store, count=5)
        now = store.take_permits([]).now
        monkeypatch.setattr(
            "scrapyd_dist.store.sqlite.sqlite_throttle.SqliteThrottle._now",
            lambda _: round((now - 86_400) * 1e6),
        )
        assert offsets(store.take_permits([ask(count=2)])) == [0.0, 100.0]


# Redis


@pytest.fixture
def on_redis(redis_server: RedisServer) -> Iterator[Any]:
    with closing(open_store(f"{redis_server.url}?prefix=throttle:")) as store:
        yield store
        for key in store.connection.client.scan_iter("{throttle}:*"):  # type: ignore[attr-defined]  # as above
            store.connection.client.delete(key)  # type: ignore[attr-defined]  # as above


def test_a_step_is_one_command_however_many_permits(on_redis: Any) -> None:
    on_redis.take_permits([ask()])
    on_redis.connection.client.config_resetstat()
    on_redis.take_permits([ask(count=50), ask("b.com", 50), ask("c.com", 50, limit=None)])
    on_redis.return_permits(on_redis.take_permits([ask(count=50)]).answers[0].permits)
    stats = on_redis.connection.client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 3
    assert "cmdstat_eval" not in stats


def test_a_look_at_rules_that_have_not_changed_is_one_plain_read(on_redis: Any) -> None:
    version = on_redis.change_rules({"a.com": Rule(paused=True)})
    on_redis.connection.client.config_resetstat()
    for _ in range(10):
        assert on_redis.tell_sites([], version) == DomainLook(version=version)
    stats = on_redis.connection.client.info("commandstats")
    assert stats["cmdstat_get"]["calls"] == 10
    assert not {"cmdstat_evalsha", "cmdstat_zrangebyscore"} & set(stats)


def test_every_key_but_rules_and_version_goes_by_itself(on_redis: Any) -> None:
    on_redis.change_rules({"b.com": Rule(hits=1, window=1.0)})
    on_redis.take_permits([ask(count=3, pages=9, budget="c")])
    on_redis.tell_sites([SiteNews(domain="a.com", crawl_delay=1.0)])
    on_redis.take_permits([ask()])
    client = on_redis.connection.client
    stay = {key.decode() for key in client.scan_iter("{throttle}:*") if client.ttl(key) == -1}
    assert stay == {
        "{throttle}:" + name for name in ("layout", "t:rules", "t:version", "t:domains")
    }
