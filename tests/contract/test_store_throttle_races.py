"""A limit with many hands on it: exact whatever the order; and both engines compute what throttle/ says."""

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rig.stores import at_once

from scrapyd_dist.store import Store
from scrapyd_dist.store.ports.throttle_rows import micros
from scrapyd_dist.throttle.domain_status import DomainRules, terms_of, with_news
from scrapyd_dist.throttle.permits import (
    ALL,
    DomainLook,
    DomainState,
    Limit,
    Permit,
    PermitReply,
    PermitRequest,
    Rule,
    SiteNews,
    TakenPermits,
    WindowTerms,
    moments,
)

#: who takes permits at the same time, and how often each of them does
HANDS, TIMES = 8, 40


def take(store: Store, count: int, key: str = "a.com", **fields: Any) -> tuple[Permit, ...]:
    return (
        store.take_permits([PermitRequest(key=key, domain="a.com", count=count, **fields)])
        .answers[0]
        .permits
    )


def in_micros(permits: list[Permit]) -> list[int]:
    return sorted(micros(permit.at) for permit in permits)


@pytest.mark.parametrize("moderated", [True, False])
def test_many_eager_workers_get_all_that_the_limit_has_and_no_more(
    opened: Callable[[], Store], moderated: bool
) -> None:
    limit, got = Limit(hits=20, window=400.0, moderated=moderated), list[Permit]()

    def work(_: int, store: Store) -> None:
        for count in itertools.islice(itertools.cycle([1, 3]), TIMES):
            got.extend(take(store, count, limit=limit))

    at_once(opened, [partial(work, number) for number in range(HANDS)])
    given = in_micros(got)
    assert len(given) == HANDS * TIMES * 2
    if moderated:
        assert [at - given[0] for at in given] == [
            number * 20_000_000 for number in range(len(given))
        ]
    else:
        assert all(
            later - earlier >= 400_000_000
            for earlier, later in zip(given, given[20:], strict=False)
        )
        assert (
            given[-1] - given[0] < (len(given) // 20) * 400_000_000
        )  # and each window has its twenty


def test_what_many_workers_hand_back_is_given_out_again(opened: Callable[[], Store]) -> None:
    limit, kept = Limit(hits=20, window=400.0), list[Permit]()

    def work(number: int, store: Store) -> None:
        for _ in range(TIMES):
            permits = take(store, 3, limit=limit)
            store.return_permits(permits[number % 3 :])
            kept.extend(permits[: number % 3])

    at_once(opened, [partial(work, number) for number in range(HANDS)])
    given = in_micros([*kept, *take(opened(), HANDS * TIMES * 3, limit=limit)])
    gaps = [later - earlier for earlier, later in itertools.pairwise(given)]
    assert min(gaps) >= 20_000_000
    # Where one that was handed back has passed meanwhile, the next may come later: but none waits for a whole one.
    assert max(gaps) < 40_000_000


def test_a_budget_of_pages_is_exact(opened: Callable[[], Store]) -> None:
    got = list[Permit]()

    def work(number: int, store: Store) -> None:
        for _ in range(TIMES):
            permits = take(store, 3, f"{number}|a.com", pages=100, budget="c")
            store.return_permits(permits[1:])
            got.extend(permits[:1])

    at_once(opened, [partial(work, number) for number in range(HANDS)])
    store = opened()
    # Those who came while others held the last ones went without them.
    got += take(store, 99, pages=100, budget="c")
    assert len(got) == 100
    assert store.domain_states()[0].pages == {"c": 100}


# the same as throttle/ says


class Model:
    """All that the engine knows, kept in the plainest way, by the moments that the engine tells."""

    def __init__(self, store: Store, mark: str) -> None:
        self.store, self.domains = store, [f"{mark}.com", f"{mark}.de"]
        self.rules: dict[str, Rule] = {}
        self.standing: dict[str, DomainRules] = defaultdict(DomainRules)
        self.grants: dict[str, list[int]] = {}
        self.terms: dict[str, WindowTerms] = {}
        self.version = self.begun = store.change_rules(dict.fromkeys(store.rules().rules))
        self.changed: set[str] = set()

    def take(self, domain: str, key: str, count: int, limit: Limit | None) -> None:
        asked = PermitRequest(key=key, domain=domain, count=count, limit=limit)
        taken = self.store.take_permits([asked], self.begun)
        assert (taken.version, taken.changed) == (self.version, frozenset(self.changed))
        assert taken.answers[0] == self.answer(asked, taken)

    def answer(self, asked: PermitRequest, taken: TakenPermits) -> PermitReply:
        now, standing = micros(taken.now), self.standing[asked.domain]
        terms = terms_of(asked, self.rules, standing, now)
        if isinstance(terms, PermitReply):
            return terms
        self.terms[asked.key] = terms
        grants, start = self.grants.setdefault(asked.key, []), max(now, standing.rest_until)
        others = [
            at
            for key in self.grants
            for at in self.grants[key]
            if key != asked.key and asked.domain in key
        ]
        given = moments(asked.count, start, grants, terms, sorted(others) if terms.apart else ())
        grants[:] = sorted([*grants, *given])
        return PermitReply(permits=tuple(Permit(key=asked.key, at=at / 1e6) for at in given))

    def give_back(self, key: str, place: int) -> None:
        grants = self.grants.get(key)
        if grants:
            at, now = grants.pop(place % len(grants)), micros(self.store.take_permits([]).now)
            self.store.return_permits([Permit(key=key, at=at / 1e6)])
            if grants and self.terms[key].is_freed_by(at, grants[-1], now):
                self.version += 1
                self.changed.add(key.rpartition("|")[2])

    def change(self, domain: str, rule: Rule | None) -> None:
        after = {name: one for name, one in {**self.rules, domain: rule}.items() if one}
        if after != self.rules:
            self.version += 1
            self.changed.add(domain)
        self.rules = after
        assert self.store.change_rules({domain: rule}) == self.version

    def tell(self, *news: SiteNews) -> None:
        """Each of another domain."""
        before = micros(self.store.take_permits([]).now)
        look = self.store.tell_sites(news, self.begun)
        after = micros(self.store.take_permits([]).now)
        known = {one.domain: one for one in self.store.domain_states()}
        slower = {
            one.domain for one in news if self.told(one, known.get(one.domain), before, after)
        }
        self.version += bool(slower)
        self.changed |= slower
        assert look == DomainLook(version=self.version, changed=frozenset(self.changed))

    def told(self, news: SiteNews, known: DomainState | None, before: int, after: int) -> bool:
        old = self.standing[news.domain]
        (first, slower), (last, _) = with_news(old, news, before), with_news(old, news, after)
        if known is None:
            assert first == DomainRules()
            return slower
        assert (known.pace, micros(known.delay), micros(known.gap)) == (
            first.pace,
            first.delay,
            first.gap,
        )
        rest_until = micros(known.rest_until)
        assert first.rest_until <= rest_until <= last.rest_until
        self.standing[news.domain] = replace(first, rest_until=rest_until)
        return slower


#: such that nothing passes, or is forgotten, while an example runs, however slow the machine is
LIMITS = [Limit(hits=hits, window=window, moderated=even) for hits, window, even in (
    (20, 400.0, True), (7, 333.3, True), (3, 500.0, False), (20, 400.0, False), (1, 600.0, False),
)]  # fmt: skip
RULES = [
    None, Rule(hits=2, window=700.0), Rule(hits=10, window=900.7, scale=0.35), Rule(scale=0.5), Rule(scale=0.04),
    Rule(blocked=True), Rule(),
]  # fmt: skip
NEWS: list[dict[str, Any]] = [
    {"refused_at": 1e9}, {"refused_at": 4e9}, {"retry_after": 100.5}, {"crawl_delay": 70.25}, {"crawl_delay": 300.0},
    {"target_gap": 266.77, "longest_delay": 500.0}, {"target_gap": 100.0}, {},
    {"target_gap": 100.0, "answered": False, "longest_delay": 150.0},
]  # fmt: skip

step = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 6), st.sampled_from(LIMITS)),
    st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 6), st.sampled_from(LIMITS)),
    st.tuples(st.just("give back"), st.integers(0, 2), st.integers(0, 30), st.none()),
    st.tuples(st.just("change"), st.integers(0, 2), st.integers(0, 0), st.sampled_from(RULES)),
    st.tuples(st.just("tell"), st.integers(0, 1), st.integers(0, 0), st.sampled_from(NEWS)),
)
_marks = itertools.count()


def test_every_engine_answers_as_the_arithmetic_says(store: Store) -> None:
    # The fixture stays out of hypothesis' hands: pytest-twisted cannot hand it over.
    @settings(max_examples=25)
    @given(steps=st.lists(step, min_size=5, max_size=25))
    def check(steps: list[tuple[str, int, int, Any]]) -> None:
        model = Model(store, f"m{next(_marks)}")
        one, other = model.domains
        keys = [one, f"s|{one}", other]
        for what, which, number, value in steps:
            if what == "take":
                model.take(keys[which].rpartition("|")[2], keys[which], number, value)
            elif what == "give back":
                model.give_back(keys[which], number)
            elif what == "change":
                model.change([one, other, ALL][which], value)
            else:
                model.tell(SiteNews(domain=model.domains[which], **value))

    check()


def test_every_engine_heeds_news_as_the_arithmetic_says(store: Store) -> None:
    pairs = {
        f"p{number}.com": pair for number, pair in enumerate(itertools.product(NEWS, repeat=2))
    }
    model = Model(store, "p")
    for which in (0, 1):
        model.tell(*(SiteNews(domain=domain, **pair[which]) for domain, pair in pairs.items()))
    for domain in pairs:
        model.take(domain, domain, 2, LIMITS[0])


def test_the_keys_of_a_domain_keep_apart_as_the_arithmetic_says(store: Store) -> None:
    model, even = Model(store, "d"), Limit(hits=10, window=1000.0)
    model.tell(SiteNews(domain="d.com", crawl_delay=40.0))
    model.take("d.com", "s|d.com", 3, even)
    model.give_back("s|d.com", 1)
    model.take("d.com", "t|d.com", 3, None)
    model.take("d.com", "s|d.com", 2, even)
    model.give_back("t|d.com", 0)
    model.give_back("s|d.com", 1)
    model.take("d.com", "s|d.com", 1, even)
    model.take("d.com", "t|d.com", 1, None)
    model.take("d.com", "u|d.com", 9, None)


def test_the_slowest_pace_is_the_same_everywhere(store: Store) -> None:
    model = Model(store, "slow")
    for _ in range(9):
        model.tell(SiteNews(domain="slow.com", refused_at=4e9))
    for number, limit in enumerate(LIMITS):
        model.take("slow.com", f"{number}|slow.com", 2, limit)


@pytest.mark.parametrize(
    ("hits", "scale"), [(100, 0.29), (10, 0.3), (7, 0.99), (1000, 0.001), (999, 0.001)]
)
def test_hits_are_scaled_alike_everywhere(store: Store, hits: int, scale: float) -> None:
    model = Model(store, "scaled")
    model.change("scaled.com", Rule(scale=scale))
    for even in (True, False):
        model.take(
            "scaled.com", f"{even}|scaled.com", 40, Limit(hits=hits, window=1000.0, moderated=even)
        )
