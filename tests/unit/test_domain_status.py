"""What a domain's rules, a worker's limit and the news of its site make of each other."""

import math
from dataclasses import replace
from typing import Any

import pytest

from scrapyd_dist.throttle.domain_status import (
    LONGEST,
    RECOVERY,
    REFUSED_GAP,
    SLOWEST,
    DomainRules,
    terms_of,
    with_news,
)
from scrapyd_dist.throttle.permits import (
    ALL,
    SECOND,
    Limit,
    PermitReply,
    PermitRequest,
    Rule,
    SiteNews,
    WindowTerms,
)

NOW = 1_800_000_000 * SECOND
LIMIT = Limit(hits=20, window=4.0)
BURST = Limit(hits=20, window=4.0, moderated=False)
HELD, FREE = PermitReply(held=True), PermitReply(free=True)


def terms(
    limit: Limit | None = LIMIT, *, standing: DomainRules | None = None, now: int = NOW, pages: int | None = None,
    moderated: bool = True, **rules: Rule
) -> WindowTerms | PermitReply:  # fmt: skip
    """`own` is the rule of the domain, `all` that of all."""
    named = {{"own": "a.com", "all": ALL}[name]: rule for name, rule in rules.items()}
    ask = PermitRequest(key="a.com", domain="a.com", limit=limit, pages=pages, moderated=moderated)
    return terms_of(ask, named, standing or DomainRules(), now)


def news(**fields: Any) -> SiteNews:
    return SiteNews(domain="a.com", **fields)


ONE, TWO = Rule(hits=1, window=1.0), Rule(hits=2, window=1.0)
LIMITS: dict[str, tuple[Limit | None, dict[str, Any], WindowTerms | PermitReply]] = {
    "a moderated limit is a gap": (LIMIT, {}, WindowTerms(window=4 * SECOND, gap=200_000)),
    "one that is not moderated is hits and a window": (BURST, {}, WindowTerms(hits=20, window=4 * SECOND)),
    "a gap is never rounded down": (Limit(hits=3, window=1.0), {}, WindowTerms(window=SECOND, gap=333_334)),
    "where nothing limits, no permit is needed": (None, {}, FREE),
    "nor where rules have no hits": (None, {"own": Rule(), "all": Rule()}, FREE),
    "a budget of pages is counted where nothing else limits": (None, {"pages": 3}, WindowTerms()),
    "a rule of the domain goes before that of all": (
        LIMIT, {"own": ONE, "all": TWO}, WindowTerms(window=SECOND, gap=SECOND),
    ),
    "a rule goes before the worker's limit": (LIMIT, {"all": TWO}, WindowTerms(window=SECOND, gap=SECOND // 2)),
    "and holds without one": (None, {"own": ONE}, WindowTerms(window=SECOND, gap=SECOND)),
    "the worker's limit says how hits are spread": (BURST, {"own": TWO}, WindowTerms(hits=2, window=SECOND)),
    "and else its setting": (None, {"own": TWO, "moderated": False}, WindowTerms(hits=2, window=SECOND)),
    "a rule without hits scales the limit behind it": (
        LIMIT, {"own": Rule(scale=0.5)}, WindowTerms(window=4 * SECOND, gap=400_000),
    ),
    "which may be that of all": (
        BURST, {"own": Rule(scale=0.5), "all": Rule(hits=10, window=1.0)}, WindowTerms(hits=5, window=SECOND),
    ),
    "the scale of all is not for a domain with a rule": (
        LIMIT, {"own": Rule(), "all": Rule(scale=0.5)}, WindowTerms(window=4 * SECOND, gap=200_000),
    ),
    "a pause of all holds those with a rule as well": (LIMIT, {"own": ONE, "all": Rule(paused=True)}, HELD),
    "a domain without a limit can be paused": (None, {"own": Rule(paused=True)}, HELD),
}  # fmt: skip


@pytest.mark.parametrize(("limit", "given", "expected"), LIMITS.values(), ids=LIMITS)
def test_what_limits(
    limit: Limit | None, given: dict[str, Any], expected: WindowTerms | PermitReply
) -> None:
    assert terms(limit, **given) == expected


@pytest.mark.parametrize(
    ("hits", "scale", "used"), [(100, 0.29, 29), (10, 0.3, 3), (7, 0.99, 6), (1, 1.0, 1)]
)
def test_hits_are_rounded_down_after_scaling(hits: int, scale: float, used: int) -> None:
    found = terms(Limit(hits=hits, window=1.0, moderated=False), own=Rule(scale=scale))
    assert isinstance(found, WindowTerms)
    assert found.hits == used


@pytest.mark.parametrize(
    "rule",
    [Rule(blocked=True), Rule(paused=True), Rule(scale=0.0), Rule(hits=5, window=1.0, scale=0.1)],
)
def test_what_is_blocked_or_paused_or_scaled_to_nothing_is_held(rule: Rule) -> None:
    assert terms(own=rule) == terms(all=rule) == HELD


def refused(old: DomainRules | None = None, at: int = NOW) -> DomainRules:
    new, slower = with_news(old or DomainRules(), news(refused_at=(at - SECOND) / SECOND), at)
    assert slower
    return new


def test_a_refusal_halves_the_rate_and_a_domain_without_a_limit_gets_one_for_a_while() -> None:
    assert terms(standing=refused()) == WindowTerms(window=4 * SECOND, gap=400_000)
    assert terms(BURST, standing=refused()) == WindowTerms(hits=10, window=4 * SECOND)
    one = Limit(hits=1, window=2.0, moderated=False)
    assert terms(one, standing=refused()) == WindowTerms(hits=1, window=4 * SECOND)
    assert terms(None, standing=refused()) == WindowTerms(
        gap=2 * REFUSED_GAP, apart=2 * REFUSED_GAP
    )
    assert terms(None, standing=refused(), now=NOW + RECOVERY) == FREE


def test_another_one_halves_it_again_down_to_a_floor_but_not_one_from_before() -> None:
    slow = refused()
    assert with_news(slow, news(refused_at=(NOW - 1) / SECOND), NOW + SECOND) == (slow, False)
    slower, _ = with_news(slow, news(refused_at=NOW / SECOND + 1), NOW + 2 * SECOND)
    assert (slower.pace, slower.slowed_at) == (0.25, NOW + 2 * SECOND)
    slow, now = DomainRules(), NOW
    for _ in range(20):
        now += 2 * SECOND
        slow = refused(slow, now)
    assert slow.pace == SLOWEST
    assert terms(BURST, standing=slow, now=now) == WindowTerms(
        hits=1, window=math.ceil(4 * SECOND / (20 * SLOWEST))
    )


def test_the_rate_comes_back_by_itself() -> None:
    slow = DomainRules(pace=0.25, slowed_at=NOW)
    paces = [slow.pace_at(NOW + seconds * SECOND) for seconds in (0, 29, 30, 59, 60, 90, 10**8)]
    assert paces == [0.25, 0.25, 0.5, 0.5, 1.0, 1.0, 1.0]
    assert refused(slow, NOW + RECOVERY + SECOND).pace == 0.25  # half of what has come back


def test_a_site_that_asks_to_be_left_alone_is() -> None:
    resting, slower = with_news(DomainRules(), news(retry_after=5.0), NOW)
    assert (resting.rest_until, slower) == (NOW + 5 * SECOND, True)
    assert with_news(resting, news(retry_after=3.0), NOW) == (resting, False)
    assert terms(None, standing=resting) == WindowTerms()
    assert terms(None, standing=resting, now=resting.rest_until) == FREE


def test_it_cannot_ask_for_ever_and_what_makes_no_sense_is_not_heeded() -> None:
    assert with_news(DomainRules(), news(retry_after=math.inf), NOW)[0].rest_until == NOW + LONGEST
    for seconds in (math.nan, -5.0, -math.inf):
        told = news(retry_after=seconds, crawl_delay=seconds, target_gap=seconds)
        standing, slower = with_news(DomainRules(), told, NOW)
        assert (slower, standing.rest_until, terms(standing=standing)) == (False, NOW, terms())


def test_a_crawl_delay_goes_before_a_faster_limit_only() -> None:
    asked, slower = with_news(DomainRules(), news(crawl_delay=1.0), NOW)
    assert slower
    delayed = WindowTerms(gap=SECOND, apart=SECOND)
    assert terms(None, standing=asked) == delayed
    assert terms(standing=asked) == replace(delayed, window=4 * SECOND)
    assert terms(BURST, standing=asked) == replace(delayed, hits=20, window=4 * SECOND)
    assert terms(Limit(hits=1, window=9.0), standing=asked) == replace(
        delayed, window=9 * SECOND, gap=9 * SECOND
    )


def test_of_two_hosts_of_a_domain_the_slower_one_is_heeded_as_long_as_it_says_so() -> None:
    asked, _ = with_news(DomainRules(), news(crawl_delay=5.0), NOW)
    assert with_news(asked, news(crawl_delay=1.0), NOW + 1800 * SECOND) == (asked, False)
    later, slower = with_news(asked, news(crawl_delay=1.0), NOW + 3601 * SECOND)
    assert (later.delay, slower) == (SECOND, False)


def test_the_gap_goes_up_at_once_and_down_by_halves_but_not_by_bad_answers_and_it_has_a_ceiling() -> (
    None
):
    up, slower = with_news(DomainRules(), news(target_gap=0.5), NOW)
    assert (up.gap, slower) == (SECOND // 2, True)
    down, slower = with_news(up, news(target_gap=0.1), NOW)
    assert (down.gap, slower) == (300_000, False)
    old = DomainRules(gap=SECOND)
    assert with_news(old, news(target_gap=0.1, answered=False), NOW)[0].gap == SECOND
    assert with_news(old, news(target_gap=3.0, answered=False), NOW)[0].gap == 3 * SECOND
    assert with_news(old, news(target_gap=90.0, longest_delay=7.0), NOW)[0].gap == 7 * SECOND


def test_the_news_of_many_workers_settle_between_what_they_say() -> None:
    standing = DomainRules(gap=10 * SECOND)
    gaps = []
    for number in range(80):  # eight workers, ten times each: 0.9 to 1.1 s
        told = news(target_gap=0.45 + number % 8 * 0.1 / 7)
        standing, _ = with_news(standing, told, NOW)
        gaps.append(standing.gap / SECOND)
    assert all(0.45 <= gap <= 0.55 for gap in gaps[16:])
