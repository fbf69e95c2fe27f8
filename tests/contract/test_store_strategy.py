"""What a crawling strategy asks of the store, on both engines: the order of its queue, events, and partitions."""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cryptography.fernet import Fernet
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rig.stores import CRAWL, LESSEE, YOU, at_once, fail, lease_next, ready, seal
from rig.strategies import ALL, apply, batch_of, cut, event, heads, hold, link, names, taken

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.errors import NothingMatched, StepRefused, StoreError
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.strategy.links import (
    EventKind,
    FoundLink,
    Link,
    LinkEvent,
    LinkMove,
    States,
    StrategyStep,
    partition_of,
)


@pytest.fixture
def mine(store: Store) -> Store:
    """A store with a crawl whose partitions are all held by `me`."""
    assert hold(store) == list(ALL)
    return store


@dataclass
class QueueModel:
    """What the store has of links, in dicts."""

    known: dict[bytes, tuple[Link, int]] = field(
        default_factory=dict
    )  #: with the place of those in the queue
    later: set[bytes] = field(default_factory=set)
    place: int = 0

    def step(
        self, kind: str, rows: list[tuple[int, int, int, int]], now: float
    ) -> tuple[list[Link], dict[bytes, LinkMove], list[NewBatch]]:
        """What such a step says, which is done here already."""
        rows = list({row[0]: row for row in rows}.values())
        if kind == "links":
            links = [self._link(*row, now) for row in rows]
            for one in links:
                self._keep(one, now)
            return links, {}, []
        prints = [b"%d" % number for number, *_ in rows]
        if kind == "moved":
            moves = {
                one: LinkMove(score=row[1] / 4, due=now + row[2])
                for one, row in zip(prints, rows, strict=True)
            }
            for name, move in moves.items():
                if name in self.known and self.known[name][0].state is States.QUEUED:
                    old, place = self.known[name]
                    self.known[name] = (replace(old, score=move.score, due=move.due or 0.0), place)
                    self._place(name, now)
            return [], moves, []
        cut = [
            self.known[one][0] for one in prints if one in self.known and self.known[one][0].waits
        ]
        for one in cut:
            self.known[one.fingerprint] = (replace(one, waits=False), 0)
            self.later.discard(one.fingerprint)
        return (
            [],
            {},
            [
                batch_of([one for one in cut if one.slot == slot])
                for slot in {one.slot for one in cut}
            ],
        )

    def _link(self, number: int, score: int, due: int, state: int, now: float) -> Link:
        kept = States(state) if 0 < state <= 3 else States.QUEUED
        one = link(
            f"{number}",
            score / 4,
            "ab"[number % 2],
            state=kept,
            due=now + due,
            partition=number % 3,
        )
        return one if kept is States.QUEUED else replace(one, request=None)

    def _keep(self, one: Link, now: float) -> None:
        _, place = self.known.pop(one.fingerprint, (None, 0))
        waits = one.request is not None
        if waits and not place:
            self.place += 1
            place = self.place
        self.known[one.fingerprint] = (
            replace(one, request=None, waits=waits),
            place if waits else 0,
        )
        self._place(one.fingerprint, now)

    def _place(self, name: bytes, now: float) -> None:
        self.later.discard(name)
        if name in self.known and self.known[name][0].waits and self.known[name][0].due > now:
            self.later.add(name)

    def promote(self, now: float) -> None:
        self.later = {one for one in self.later if self.known[one][0].due > now}

    def order(self, slot: str) -> list[bytes]:
        waiting = [
            (-one.score, place, name)
            for name, (one, place) in self.known.items()
            if one.waits and one.slot == slot
        ]
        return [name for _, _, name in sorted(waiting) if name not in self.later]

    def states(self) -> dict[States, int]:
        return dict(Counter(one.state for one, _ in self.known.values()))


#: number, score, seconds until it is due, and state of a link; half of them are queued
ROW = st.tuples(
    st.integers(0, 12), st.integers(0, 4), st.sampled_from([-5, 0, 2, 9]), st.integers(0, 7)
)
STEPS = st.tuples(st.sampled_from(["links", "links", "moved", "cut"]), st.lists(ROW, max_size=8))


# the order of the queue


def test_the_highest_score_comes_first_and_the_oldest_among_equals(mine: Store) -> None:
    apply(
        mine,
        link("e", 0.5),
        link("a", 0.9),
        link("d", 0.5),
        link("b", 0.123456789012345),
        link("f", 1.0),
    )
    apply(mine, link("c", 0.5), link("g", 0.1234567890123451))
    assert names(heads(mine)) == "f a e d c g b"
    assert names(heads(mine, limit=3)) == "f a e"
    (first, *_) = heads(mine)
    assert (first.request, first.waits) == ({"url": "http://a/f", "meta": {"n": "f"}}, True)
    assert names(heads(mine)) == "f a e d c g b"  # a look takes nothing out
    assert cut(mine, limit=2) == ["f a"]
    assert names(heads(mine)) == "e d c g b"


def test_what_is_queued_gets_another_score_and_keeps_its_age(mine: Store) -> None:
    apply(mine, link("a", 0.5), link("b", 0.5), link("c", 0.9))
    apply(mine, link("a", 0.9))
    assert names(heads(mine)) == "a c b"
    apply(mine, link("c", 0.1), link("b", 0.9))
    assert names(heads(mine)) == "a b c"
    apply(mine, link("b", 0.9, slot="x"))
    assert [(one.slot, one.fingerprint) for one in heads(mine)] == [
        ("a", b"a"),
        ("a", b"c"),
        ("x", b"b"),
    ]
    backlog = mine.strategy_backlog("c")
    assert (backlog.states, backlog.queued, backlog.later) == ({States.QUEUED: 3}, 3, 0)


def test_slots_take_turns_and_those_that_are_new_come_first(mine: Store) -> None:
    apply(mine, *(link(f"{slot}{n}", slot=slot) for n in range(3) for slot in "cab"))
    assert names(heads(mine, ahead=1)) == "c0 a0 b0"
    apply(mine, taken(heads(mine)[0]))
    assert names(heads(mine, ahead=1)) == "a0 b0 c1"
    apply(mine, link("d0", slot="d"))
    assert names(heads(mine, ahead=1)) == "a0 b0 d0 c1"
    apply(mine, *map(taken, heads(mine, ahead=1)))
    apply(mine, link("e0", slot="e"), link("d1", slot="d"))
    assert names(heads(mine, ahead=1, limit=3)) == "e0 a1 b1"
    assert names(heads(mine, ahead=1)) == "e0 a1 b1 d1 c2"


def test_no_more_than_ahead_wait_in_the_batches_of_a_slot(mine: Store) -> None:
    apply(mine, *(link(f"a{n}") for n in range(8)), *(link(f"b{n}", slot="b") for n in range(3)))
    assert names(heads(mine, ahead=5)) == "a0 a1 a2 a3 a4 b0 b1 b2"
    front = heads(mine, ahead=3)
    assert names(front) == "a0 a1 a2 b0 b1 b2"
    batches = [batch_of(front[:2]), batch_of(front[2:3]), batch_of(front[3:])]
    apply(mine, new=batches)
    assert heads(mine, ahead=3) == []
    assert names(heads(mine, ahead=4)) == "a3"
    assert heads(mine, ahead=3) == []
    (leased,) = lease_next(mine, "c", LESSEE, slots=["a"])
    assert names(heads(mine, ahead=3)) == "a3 a4"
    mine.give_back("c", leased.batch.number, 1, LESSEE.job, reason="", now=1.0)
    assert heads(mine, ahead=3) == []
    (leased,) = lease_next(mine, "c", LESSEE, slots=["a"])
    mine.ack("c", leased.batch.number, leased.attempt, LESSEE.job, report={}, now=1.0)
    assert names(heads(mine, ahead=3)) == "a3 a4"
    mine.drop_batch("c", 2, forget=False)
    assert names(heads(mine, ahead=3)) == "a3 a4 a5"


def test_a_slot_of_several_sites_is_one_queue(mine: Store) -> None:
    apply(mine, *(link(f"{n}", n / 10, slot="all", partition=n % 3) for n in range(9)))
    assert names(heads(mine)) == "8 7 6 5 4 3 2 1 0"
    assert names(heads(mine, of=[0, 2])) == "8 6 5 3 2 0"
    assert names(heads(mine, ahead=4)) == "8 7 6 5"
    cut(mine, limit=4)
    assert names(heads(mine, ahead=6, of=[1])) == "4 1"
    apply(mine, link("x", slot="x"))
    assert names(heads(mine, ahead=5)) == "x 4"


def test_what_is_due_later_waits_for_its_moment_and_what_has_expired_is_told(mine: Store) -> None:
    apply(
        mine,
        link("a", due=1_100.0),
        link("b", 0.5, due=1_050.0, expires=1_060.0),
        link("c", 0.1),
        link("d", due=999.0),
    )
    assert names(heads(mine)) == "d c"
    backlog = mine.strategy_backlog("c")
    assert (backlog.states, backlog.queued, backlog.later) == ({States.QUEUED: 4}, 2, 2)
    assert names(heads(mine, now=1_049.9)) == "d c"
    assert names(heads(mine, now=1_050.0)) == "d b c"
    assert (mine.strategy_backlog("c").queued, mine.strategy_backlog("c").later) == (3, 1)
    assert [one.expires for one in heads(mine, now=1_200.0)] == [0.0, 0.0, 1_060.0, 0.0]
    assert names(heads(mine, now=1_200.0)) == "a d b c"
    apply(mine, link("a", due=1_300.0), now=1_200.0)
    assert names(heads(mine, now=1_200.0)) == "d b c"
    apply(mine, taken(link("a"), state=States.ERROR, reason="expired"), now=1_200.0)
    assert names(heads(mine, now=1_400.0)) == "d b c"
    assert mine.strategy_backlog("c").later == 0


def test_nothing_comes_when_the_strategy_has_ended_or_the_crawl_is_to_rest(mine: Store) -> None:
    apply(mine, link("a"))
    mine.end_strategy("c")
    assert (heads(mine), mine.strategy_backlog("c").ended) == ([], True)
    mine.end_strategy("c", ended=False)
    assert names(heads(mine)) == "a"
    for wanted in ("pause", "cancel"):
        mine.want("c", wanted)
        assert heads(mine) == []
    mine.want("c", "")
    assert names(heads(mine)) == "a"


def test_it_ends_as_empty_when_nothing_is_left_and_no_process_may_add_something(
    mine: Store,
) -> None:
    def ends() -> bool:
        done = mine.end_strategy("c", if_empty=True)
        assert mine.strategy_backlog("c").ended is done
        mine.end_strategy("c", ended=False)
        return done

    mine.register_producer("c", "strategy@me", 60.0)
    assert ends()
    for due in (0.0, 2_000.0):
        apply(mine, link("a", due=due))
        assert not ends(), "it is in the queue"
    apply(mine, link("a"))
    cut(mine)
    assert not ends(), "its batch waits"
    (leased,) = lease_next(mine, "c", LESSEE)
    key = ("c", leased.batch.number, leased.attempt)
    assert not ends(), "its batch is leased"
    mine.ack(*key, LESSEE.job, report={}, now=1.0, events=[event("a")])
    mine.accept(*key, report={}, part="", misses=[], now=1.0)
    assert not ends(), "its event waits"
    apply(
        mine,
        taken(link("a"), state=States.CRAWLED),
        handled=[one.number for one in mine.events("c", ALL, 10)],
    )
    assert ends()
    mine.register_producer("c", "seeds x@me", 60.0)
    assert not ends()
    mine.register_producer("c", "seeds x@me", -1.0)  # lost
    assert not ends()
    mine.sign_off("c", "seeds x@me")
    assert ends()


# links and their states


def test_a_link_is_looked_up_with_all_but_its_request(mine: Store) -> None:
    first = link("a", 0.25, depth=3, due=2_000.0, expires=3_000.0, reason="seed")
    apply(mine, first, link("b", state=States.CRAWLED, request=None), link("c"))
    apply(mine, taken(link("c")))
    found = mine.links("c", [b"a", b"b", b"c", b"none"])
    assert found.keys() == {b"a", b"b", b"c"}
    assert found[b"a"] == replace(first, request=None, waits=True)
    assert [(found[one].state, found[one].waits) for one in (b"b", b"c")] == [
        (States.CRAWLED, False),
        (States.QUEUED, False),
    ]
    assert mine.links("c", []) == {}


def test_ten_thousand_links_are_looked_up_at_once(mine: Store) -> None:
    every = [link(f"{n}", state=States(1 + n % 3), request=None) for n in range(12_000)]
    apply(mine, *every)
    found = mine.links("c", [one.fingerprint for one in every[1_000:11_000]] + [b"no"] * 9)
    assert found == {one.fingerprint: one for one in every[1_000:11_000]}
    every_state = (States.QUEUED, States.CRAWLED, States.ERROR)
    assert mine.strategy_backlog("c").states == dict.fromkeys(every_state, 4_000)


def test_no_link_is_kept_as_not_crawled(mine: Store) -> None:
    with pytest.raises(StoreError, match="not crawled"):
        apply(mine, link("a"), link("b", state=States.NOT_CRAWLED, request=None))
    assert mine.links("c", [b"a", b"b"]) == {}


def test_changes_are_logged_in_their_order(mine: Store) -> None:
    apply(mine, link("a", 0.5, reason="seed"), now=1.0)
    apply(mine, link("a", 0.7), now=2.0)
    apply(mine, taken(link("a", 0.7)), now=3.0)  # no change that is worth a line
    apply(
        mine, taken(link("a", 0.7), state=States.ERROR, reason="TimeoutError"), link("b"), now=4.0
    )
    log = mine.changes("c")
    new, queued, error = States.NOT_CRAWLED, States.QUEUED, States.ERROR
    assert [(one.number, one.at, one.fingerprint, one.before, one.after, one.score, one.reason) for one in log] == [
        (1, 1.0, b"a", new, queued, 0.5, "seed"), (2, 2.0, b"a", queued, queued, 0.7, ""),
        (3, 4.0, b"a", queued, error, 0.7, "TimeoutError"), (4, 4.0, b"b", new, queued, 1.0, ""),
    ]  # fmt: skip
    assert [one.url for one in log] == ["http://a/a"] * 3 + ["http://a/b"]
    assert mine.changes("c", after=2, limit=1) == [log[2]]
    assert mine.changes("c", after=4) == []


def test_a_long_log_is_read_in_pieces(mine: Store) -> None:
    for start in range(0, 12_000, 4_000):
        apply(mine, *(link(f"{n}") for n in range(start, start + 4_000)))
    read: list[int] = []
    while some := mine.changes("c", read[-1] if read else 0, limit=7_000):
        read += [one.number for one in some]
    assert read == list(range(1, 12_001))


def test_links_are_moved_in_the_queue_and_keep_the_rest(mine: Store) -> None:
    apply(
        mine,
        link("a", 0.5),
        link("b", 0.5, due=2_000.0),
        link("c", 0.7),
        link("d", state=States.ERROR, request=None),
    )
    apply(mine, new=[batch_of([link("c")])])
    moves = {
        b"a": LinkMove(score=0.1, due=1_500.0),
        b"b": LinkMove(score=0.9),
        b"c": LinkMove(score=0.2),
    }
    apply(mine, moved={**moves, b"d": LinkMove(score=0.3), b"none": LinkMove(score=0.3)})
    assert heads(mine) == []
    assert (mine.strategy_backlog("c").queued, mine.strategy_backlog("c").later) == (0, 2)
    apply(mine, moved={b"b": LinkMove(score=0.9, due=0.0), b"a": LinkMove(score=0.9, due=0.0)})
    assert names(heads(mine)) == "a b"
    assert heads(mine)[0].request == link("a").request
    found = mine.links("c", [b"a", b"b", b"c", b"d"])
    assert [one.score for one in found.values()] == [0.9, 0.9, 0.2, 1.0]
    assert [one.waits for one in found.values()] == [True, True, False, False]
    assert [(one.fingerprint, one.score) for one in mine.changes("c", after=4)] == [
        (b"a", 0.1), (b"b", 0.9), (b"c", 0.2), (b"a", 0.9),
    ]  # fmt: skip
    assert (mine.strategy_backlog("c").queued, mine.strategy_backlog("c").later) == (2, 0)


def test_a_link_is_cut_out_of_the_queue_once(mine: Store) -> None:
    apply(mine, link("a"), link("b"))
    apply(mine, new=[batch_of([link("a")])])
    for again in ("a", "none"):
        with pytest.raises(StepRefused):
            apply(mine, new=[batch_of([link("b"), link(again)])], counts={"sealed": 2})
    assert (names(heads(mine)), mine.counts("c"), len(mine.batches("c"))) == ("b", {}, 1)


def test_a_step_adds_events_behind_all_others(mine: Store) -> None:
    tell(mine, event("a"))
    apply(mine, events=[event("b", kind=EventKind.SCHEDULED, slot="b"), event("c")])
    assert [one.fingerprint for one in mine.events("c", ALL, 9)] == [b"a", b"b", b"c"]
    assert mine.strategy_backlog("c").events == 3


# metadata


def test_metadata_of_sites_is_kept_and_removed(mine: Store) -> None:
    apply(mine, domains={"a.com": {"pages": 1, "ü": [1, {"x": None}]}, "b.com": {}})
    apply(mine, domains={"a.com": {"pages": 2}, "c.com": None})
    assert mine.domains("c", ["a.com", "b.com", "c.com"]) == {"a.com": {"pages": 2}, "b.com": {}}
    apply(mine, domains={"a.com": None})
    assert mine.domains("c", ["a.com", "b.com"]) == {"b.com": {}}
    assert mine.domains("c", []) == {}


# events


def out(store: Store, slot: str = "a") -> tuple[str, int, int, str]:
    """A batch of one link that a worker has leased, as `ack` wants it."""
    one = link(f"{slot}{random.random()}", slot=slot)
    apply(store, one)
    apply(store, new=[batch_of([one])])
    (leased,) = lease_next(store, "c", LESSEE, slots=[slot])
    return "c", leased.batch.number, leased.attempt, LESSEE.job


def tell(store: Store, *events: LinkEvent) -> None:
    store.ack(*out(store), report={}, now=1.0, events=events)


def test_events_are_kept_by_the_ack_that_succeeds_once(mine: Store) -> None:
    acked = out(mine)
    found = event("p", "x", "y", kind=EventKind.LINKS, body="<ü>", error="", status=200)
    told = [
        event("p", body="page\n\x00", digest="ab12"),
        found,
        event("q", kind=EventKind.ERROR, error="DNSLookupError", slot="b", status=0),
    ]
    with pytest.raises(StepRefused):
        mine.ack(*acked[:3], YOU.job, report={}, now=1.0, events=told)
    assert (mine.events("c", ALL, 10), mine.strategy_backlog("c").events) == ([], 0)
    mine.ack(*acked, report={}, now=1.0, events=told)
    with pytest.raises(StepRefused):
        mine.ack(*acked, report={}, now=1.0, events=told)
    kept = mine.events("c", ALL, 10)
    assert [replace(one, number=0) for one in kept] == told
    numbers = [one.number for one in kept]
    assert numbers == sorted(set(numbers))
    assert mine.strategy_backlog("c").events == 3
    assert [one.state for one in mine.attempts("c")] == [AttemptState.ACKED]
    assert [one.fingerprint for one in mine.events("c", [partition_of("b")], 10)] == [b"q"]
    assert [one.fingerprint for one in mine.events("c", ALL, 1)] == [b"p"]
    apply(mine, handled=numbers[:1])
    assert [one.number for one in mine.events("c", ALL, 10)] == numbers[1:]
    assert mine.strategy_backlog("c").events == 2


def test_the_oldest_events_come_first_whatever_their_partitions(mine: Store) -> None:
    slots = [f"site{n % 40}" for n in range(400)]
    for start in range(0, 400, 50):
        tell(mine, *(event(f"{n}", slot=slots[n]) for n in range(start, start + 50)))
    read: list[bytes] = []
    while some := mine.events("c", ALL, 70):
        assert len(some) <= 70
        read += [one.fingerprint for one in some]
        apply(mine, handled=[one.number for one in some])
    assert read == [f"{n}".encode() for n in range(400)]


def test_an_event_whose_handler_raised_is_a_dead_letter_until_it_is_replayed(mine: Store) -> None:
    tell(mine, event("a"), event("b", slot="b"), event("c"))
    one, two, three = mine.events("c", ALL, 9)
    apply(
        mine, handled=[one.number], dead={two.number: "ValueError: no\n…", three.number: "KeyError"}
    )
    assert mine.events("c", ALL, 9) == []
    assert mine.dead_events("c") == [
        replace(two, fault="ValueError: no\n…"),
        replace(three, fault="KeyError"),
    ]
    assert mine.dead_events("c", 1) == mine.dead_events("c")[:1]
    backlog = mine.strategy_backlog("c")
    assert (backlog.events, backlog.dead) == (0, 2)
    assert mine.replay("c", [three.number, one.number, 999]) == 1
    assert mine.events("c", ALL, 9) == [three]
    assert mine.replay("c") == 1
    assert mine.events("c", ALL, 9) == [two, three]
    backlog = mine.strategy_backlog("c")
    assert (backlog.events, backlog.dead, mine.dead_events("c")) == (2, 0, [])
    assert mine.replay("c") == 0


def test_an_event_that_was_handled_already_is_not_handled_again(mine: Store) -> None:
    tell(mine, event("a"), event("b"))
    numbers = [one.number for one in mine.events("c", ALL, 9)]
    apply(mine, handled=numbers[:1])
    for again in ({"handled": numbers}, {"handled": numbers[1:], "dead": {numbers[0]: "x"}}):
        with pytest.raises(StepRefused):
            apply(mine, link("x"), counts={"found": 1}, domains={"a": {}}, **again)
    assert [one.number for one in mine.events("c", ALL, 9)] == numbers[1:]
    assert (mine.links("c", [b"x"]), mine.counts("c"), mine.domains("c", ["a"])) == ({}, {}, {})


# steps


def test_a_step_is_made_as_a_whole_or_not_at_all(mine: Store) -> None:
    tell(mine, event("a"))
    (told,) = mine.events("c", ALL, 9)
    before = mine.batches("c")
    apply(mine, link("b"))
    whole: dict[str, Any] = {
        "handled": [told.number], "domains": {"a": {}}, "counts": {"found": 2}, "new": [batch_of([link("b")])],
        "events": [event("later")],
    }  # fmt: skip
    hold(mine, "me", seconds=-1.0)
    assert hold(mine, "you") == list(ALL)
    with pytest.raises(StepRefused):
        apply(mine, link("a"), **whole)
    assert (mine.links("c", [b"a"]), mine.domains("c", ["a"]), mine.counts("c")) == ({}, {}, {})
    assert (mine.batches("c"), mine.events("c", ALL, 9)) == (before, [told])
    (number,) = apply(mine, link("a"), process="you", **whole)
    assert (set(mine.links("c", [b"a"])), mine.domains("c", ["a"]), mine.counts("c")) == (
        {b"a"},
        {"a": {}},
        {"found": 2},
    )
    assert (mine.batch("c", number).size, mine.batch_fingerprints("c", number)) == (1, [b"b"])
    assert mine.payload("c", number) == {"A": "b"}
    assert [one.fingerprint for one in mine.events("c", ALL, 9)] == [b"later"]


def test_a_link_can_be_in_batches_again_and_again(mine: Store) -> None:
    for _ in range(3):
        apply(mine, link("a"))
        assert cut(mine) == ["a"]
        assert heads(mine) == []
    assert list(mine.fingerprints("c")) == []


def test_a_dead_batch_goes_in_the_step_that_tells_of_it(mine: Store) -> None:
    seal(mine)
    lease_next(mine, "c", LESSEE)
    with pytest.raises(StepRefused):
        apply(mine, link("a"), dropped=[1])
    fail(mine, most=1)
    (number,) = apply(mine, link("a"), dropped=[1], new=[batch_of([link("a")])])
    assert [one.number for one in mine.batches("c")] == [number]
    for gone in (1, 99):
        with pytest.raises(StepRefused):
            apply(mine, link("z"), dropped=[gone])
    assert mine.links("c", [b"z"]) == {}


def test_a_crawl_that_is_not_there_is_said(store: Store) -> None:
    step = StrategyStep(crawl="none", process="me", partitions=[])
    verbs: list[Callable[[], object]] = [
        lambda: store.hold_partitions("none", "me", 1.0), lambda: store.apply(step), lambda: store.end_strategy("none"),
        lambda: store.strategy_backlog("none"), lambda: store.reset_strategy("none"), lambda: store.replay("none"),
    ]  # fmt: skip
    for verb in verbs:
        with pytest.raises(NothingMatched):
            verb()


def test_a_crawl_without_a_strategy_has_nothing(store: Store) -> None:
    backlog = store.strategy_backlog("c")
    assert (backlog.states, backlog.queued, backlog.events, len(backlog.processes), backlog.ended) == (
        {}, 0, 0, 0, False,
    )  # fmt: skip
    assert (
        store.events("c", ALL, 9),
        store.links("c", [b"a"]),
        store.domains("c", ["a"]),
        heads(store),
    ) == (
        [],
        {},
        {},
        [],
    )
    assert (store.changes("c"), store.dead_events("c"), store.replay("c")) == ([], [], 0)
    store.leave_partitions("c", "me")


# partitions


def test_processes_share_the_partitions(store: Store) -> None:
    assert hold(store, "one") == list(ALL)
    assert hold(store, "two") == []
    assert len(hold(store, "one", finished=True)) == 32
    assert len(hold(store, "two")) == 32
    assert hold(store, "three") == []
    shares = [len(hold(store, name)) for name in ("one", "two", "three", "one", "two", "three")]
    assert shares == [22, 22, 20, 22, 22, 20]
    processes = store.strategy_backlog("c").processes
    told = sorted((one.name, len(one.partitions), one.finished) for one in processes)
    assert told == [("one", 22, False), ("three", 20, False), ("two", 22, False)]
    assert sorted(partition for one in processes for partition in one.partitions) == list(ALL)
    store.leave_partitions("c", "two")
    assert [len(hold(store, name)) for name in ("one", "three")] == [32, 32]
    hold(store, "one", finished=True)
    assert {one.name: one.finished for one in store.strategy_backlog("c").processes} == {
        "one": True,
        "three": False,
    }


def test_a_process_that_dies_loses_its_partitions_when_its_time_runs_out(store: Store) -> None:
    hold(store, "one", seconds=-1.0)
    assert hold(store, "two") == list(ALL)
    assert [one.name for one in store.strategy_backlog("c").processes] == ["two"]
    with pytest.raises(StepRefused):
        apply(store, link("a"), process="one")
    assert hold(store, "one") == []
    with pytest.raises(StepRefused):
        apply(store, link("a"), process="one", partitions=[0])
    apply(store, link("a"), process="two")


def test_a_process_that_is_late_and_was_not_replaced_goes_on(store: Store) -> None:
    hold(store, "one", seconds=-5.0)
    apply(store, link("a"), process="one")
    assert names(heads(store)) == "a"


def test_no_partition_is_ever_held_by_two(store: Store, opened: Callable[[], Store]) -> None:
    """Three processes come and go at once; each says which partitions it took, and proves that it has them."""
    proved: list[tuple[str, int]] = []

    def work(name: str) -> Callable[[Store], None]:
        def run(own: Store) -> None:
            dice = random.Random(name)
            for _ in range(40):
                seconds = dice.choice([60.0, 60.0, -1.0])
                held = own.hold_partitions("c", name, seconds)
                for one in dice.sample(held, min(3, len(held))):
                    step = StrategyStep(
                        crawl="c", process=name, partitions=[one], counts={"steps": 1}
                    )
                    try:
                        own.apply(step)
                    except StepRefused:
                        continue
                    proved.append((name, one))
                if dice.random() < 0.2:
                    own.leave_partitions("c", name)

        return run

    at_once(opened, [work(name) for name in ("one", "two", "three")])
    assert store.counts("c")["steps"] == len(proved) > 50
    # Leases end while their holder looks away, and only then does another one count on: the last look is of one moment.
    # One round makes all three known, in the second each gives what is above its share, in the third the rest is taken.
    for name in ("one", "two", "three") * 3:
        hold(store, name)
    held = Counter(
        one for process in store.strategy_backlog("c").processes for one in process.partitions
    )
    assert held == Counter(ALL)


SHARER = """
import sys
from scrapyd_dist.store import open_store
from scrapyd_dist.strategy.links import StrategyStep
where, name = sys.argv[1:]
store = open_store(where)
print("ready", flush=True)
for line in sys.stdin:
    if line.startswith("hold"):
        print(*store.hold_partitions("c", name, float(line.split()[1])), flush=True)
    else:
        try:
            store.apply(StrategyStep(crawl="c", process=name, partitions=[int(line)], counts={name: 1}))
            print("made", flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
"""


def test_two_processes_share_a_third_joins_and_one_dies(where: str, store: Store) -> None:
    sharers = {name: ready(SHARER, where, name) for name in ("one", "two", "three")}

    def ask(name: str, line: str) -> str:
        process = sharers[name]
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    def held(*names: str, seconds: float = 60.0) -> list[int]:
        """How many each of them has, when all have asked often enough; all partitions are held, none by two."""
        for name in names * 3:
            ask(name, f"hold {seconds}")
        shares = {name: ask(name, f"hold {seconds}").split() for name in names}
        assert sorted(int(one) for share in shares.values() for one in share) == list(ALL)
        for name, share in shares.items():
            assert ask(name, share[0]) == "made"
            assert {ask(other, share[0]) for other in shares if other != name} <= {"StepRefused"}
        return sorted(map(len, shares.values()))

    try:
        assert held("one", "two") == [32, 32]
        assert held("one", "two", "three") == [20, 22, 22]
        ask("two", "hold -1")  # the last that is heard of it: its time is over
        sharers["two"].kill()
        assert held("one", "three") == [32, 32]
    finally:
        for process in sharers.values():
            process.kill()
            process.communicate()


def test_counts_and_order_are_exact_whatever_happens(
    where: str, opened: Callable[[], Store]
) -> None:
    """Random steps, beside the same in dicts."""
    store, numbers = opened(), itertools.count()

    @settings(
        max_examples=15,
        suppress_health_check=list(HealthCheck),
        deadline=None,
        phases=[Phase.generate],
    )
    @given(steps=st.lists(STEPS, min_size=5, max_size=25))
    def check(steps: list[tuple[str, list[tuple[int, int, int, int]]]]) -> None:
        crawl = f"r{next(numbers)}"
        store.add_crawl(replace(CRAWL, id=crawl))
        store.hold_partitions(crawl, "me", 60.0)
        model = QueueModel()
        for at, (kind, rows) in enumerate(steps):
            now = 1_000.0 + at
            links, moved, new = model.step(kind, rows, now)
            apply(store, *links, crawl=crawl, moved=moved, new=new, now=now)
            front = store.queue_heads(crawl, ALL, ahead=1_000, limit=1_000, now=now)
            model.promote(now)
            for slot in "ab":
                assert [one.fingerprint for one in front if one.slot == slot] == model.order(slot)
            backlog = store.strategy_backlog(crawl)
            assert backlog.states == model.states()
            assert (backlog.queued, backlog.later) == (
                len(model.order("a") + model.order("b")),
                len(model.later),
            )
        assert store.links(crawl, model.known) == {
            name: one for name, (one, _) in model.known.items()
        }

    check()


# the end of it


def fill(store: Store, crawl: str = "c") -> None:
    """All that there is of a strategy."""
    store.hold_partitions(crawl, "me", 60.0)
    apply(
        store,
        link("a"),
        link("b", slot="b", due=5_000.0),
        link("d", state=States.ERROR, request=None),
        crawl=crawl,
    )
    apply(store, link("x"), crawl=crawl, domains={"a": {"n": 1}})
    apply(store, crawl=crawl, new=[batch_of([link("x")])])
    (leased,) = lease_next(store, crawl, LESSEE)
    events = [event("x"), event("y", slot="b")]
    store.ack(
        crawl, leased.batch.number, leased.attempt, LESSEE.job, report={}, now=1.0, events=events
    )
    first, _ = store.events(crawl, ALL, 9)
    store.apply(
        StrategyStep(
            crawl=crawl, process="me", partitions=ALL, dead={first.number: "x"}, counts={"found": 1}
        )
    )
    store.queue_heads(crawl, ALL, ahead=0, limit=5, now=1.0)


def nothing(store: Store, crawl: str = "c") -> bool:
    backlog = store.strategy_backlog(crawl)
    return not (
        backlog.states or backlog.queued or backlog.later or backlog.events or backlog.dead or store.changes(crawl)
        or store.links(crawl, [b"a", b"b", b"d"]) or store.domains(crawl, ["a"]) or store.dead_events(crawl)
        or store.events(crawl, ALL, 9) or store.batches(crawl) or store.counts(crawl) or store.attempts(crawl)
        or store.queue_heads(crawl, ALL, ahead=9, limit=9, now=9_999.0)
    )  # fmt: skip


def test_a_strategy_is_reset_when_nothing_works_on_it_and_others_are_left_alone(
    store: Store,
) -> None:
    for crawl in ("other", "c"):
        if crawl != "c":
            store.add_crawl(replace(CRAWL, id=crawl))
        fill(store, crawl)
    with pytest.raises(StepRefused, match="out"):
        store.reset_strategy("c")  # its batch is acked, and its part still to be fetched
    store.accept("c", 1, 1, report={}, part="p", misses=(), now=2.0)
    with pytest.raises(StepRefused, match="me works"):
        store.reset_strategy("c")
    assert not nothing(store)
    store.leave_partitions("c", "me")
    seal(store)
    store.end_strategy("c")
    store.reset_strategy("c")
    assert nothing(store)
    assert (store.crawl("c").id, store.strategy_backlog("c").ended) == ("c", False)
    assert not nothing(store, "other")
    assert store.strategy_backlog("other").states == {States.QUEUED: 3, States.ERROR: 1}
    assert [one.number for one in store.batches("other")] == [1]
    assert hold(store) == list(ALL)
    apply(store, link("a"))
    assert cut(store) == ["a"]
    assert [one.number for one in store.batches("c")] == [3]  # numbers never come again


def test_a_forgotten_crawl_leaves_nothing_of_its_strategy(store: Store) -> None:
    store.add_crawl(replace(CRAWL, id="other"))
    fill(store)
    fill(store, "other")
    store.forget("c")
    with pytest.raises(NothingMatched):
        store.strategy_backlog("c")
    store.add_crawl(CRAWL)
    assert nothing(store)
    assert not nothing(store, "other")


# what foreign programs wrote, and what must not be read


def test_requests_with_private_fields_are_encrypted(where: str) -> None:
    key = Fernet.generate_key()
    secret = {"url": "http://a/x", "cookies": {"session": "s3cret"}, "meta": {"n": 1}}
    told = event("p", links=[FoundLink(fingerprint=b"x", request=secret, slot="a")])
    for one_key in (key, None):
        store = open_store(where, key=one_key)
        try:
            store.add_crawl(replace(CRAWL, id="c" if one_key else "d"))
            crawl = "c" if one_key else "d"
            store.hold_partitions(crawl, "me", 60.0)
            if one_key is None and where.startswith("redis"):
                with pytest.raises(StoreError, match="cookies"):
                    apply(store, link("x", request=secret), crawl=crawl)
                continue
            apply(store, link("x", request=secret), link("y"), crawl=crawl)
            apply(store, new=[batch_of([link("y")])], crawl=crawl)
            (leased,) = lease_next(store, crawl, LESSEE)
            store.ack(
                crawl,
                leased.batch.number,
                leased.attempt,
                LESSEE.job,
                report={},
                now=1.0,
                events=[told],
            )
            (head,) = store.queue_heads(crawl, ALL, ahead=9, limit=9, now=1.0)
            assert head.request == secret
            (kept,) = store.events(crawl, ALL, 9)
            assert kept.links[0].request == secret
        finally:
            store.close()
