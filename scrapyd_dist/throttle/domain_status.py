"""Computes the limits in force for a domain from its rules, the worker's settings and news from the site. No IO.

Invariant: news from a site only make requests slower than the limit, and a slow-down fades by itself. Part of the
worker half: imports the standard library only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

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

#: microseconds after which a slowed-down domain doubles its pace
RECOVERY = 30 * SECOND
#: lower bound of the pace
SLOWEST = 1 / 64
#: microseconds between requests to a domain without a limit that has refused one, divided by its pace
REFUSED_GAP = SECOND // 10
#: microseconds for which a longer crawl delay of one host overrides a shorter one of another host of the domain
DELAY_HOLDS = 3600 * SECOND
#: maximum microseconds of any delay that a site asks for
LONGEST = 86_400 * SECOND
#: corrects float rounding, so that 29 % of 100 are 29
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class DomainRules:
    """The state of a domain besides its grants; all times in microseconds."""

    rest_until: int = 0
    pace: float = 1.0  #: the fraction of the limit in use at `slowed_at`
    slowed_at: int = 0
    delay: int = 0  #: between two requests, by robots.txt
    delayed_at: int = 0  #: when that delay was last reported
    gap: int = 0  #: between two requests, for the target concurrency

    def pace_at(self, now: int) -> float:
        """Return the fraction of the limit in use at this time."""
        doublings = min(64, max(0, now - self.slowed_at) // RECOVERY)
        return min(1.0, self.pace * 2.0**doublings)


def terms_of(
    ask: PermitRequest, rules: Mapping[str, Rule], standing: DomainRules, now: int
) -> WindowTerms | PermitReply:
    """Return the terms for the ask's key, or an answer if no permit is needed or none is granted."""
    own, general = rules.get(ask.domain), rules.get(ALL)
    there = [rule for rule in (own, general) if rule]
    limit, scale = _limit(there, ask), there[0].scale if there else 1.0
    if scale <= 0 or any(rule.blocked or rule.paused for rule in there):
        return PermitReply(held=True)
    pace, gap = standing.pace_at(now), max(standing.delay, standing.gap)
    if limit is None:
        gap = gap or (REFUSED_GAP if pace < 1 else 0)
        if not gap and standing.rest_until <= now and ask.pages is None:
            return PermitReply(free=True)
        apart = math.ceil(gap / pace)
        return WindowTerms(gap=max(1, apart), apart=apart)
    hits = int(limit.hits * scale + _ROUNDING)
    return _terms(limit, hits * pace, math.ceil(gap / pace)) if hits else PermitReply(held=True)


def _limit(there: list[Rule], ask: PermitRequest) -> Limit | None:
    """Return the limit of the first rule that has one, else the worker's; the worker chooses how it is spread."""
    for rule in there:
        if rule.hits is not None and rule.window is not None:
            moderated = ask.limit.moderated if ask.limit else ask.moderated
            return Limit(hits=rule.hits, window=rule.window, moderated=moderated)
    return ask.limit


def _terms(limit: Limit, hits: float, apart: int) -> WindowTerms:
    """Return terms for `hits` per window of the limit; `hits` may be less than one."""
    window, gap = max(1, round(limit.window * SECOND)), max(1, apart)
    if limit.moderated:
        return WindowTerms(window=window, gap=max(gap, math.ceil(window / hits)), apart=apart)
    if hits < 1:
        return WindowTerms(hits=1, window=math.ceil(window / hits), gap=gap, apart=apart)
    return WindowTerms(hits=int(hits), window=window, gap=gap, apart=apart)


def heeded(old: DomainRules, news: SiteNews, now: int) -> tuple[DomainRules, bool]:
    """Apply news from a site; returns the new state, and whether permits already granted must be revised."""
    new = old
    if news.refused_at is not None and news.refused_at * SECOND > old.slowed_at:
        new = replace(new, pace=max(SLOWEST, old.pace_at(now) / 2), slowed_at=now)
    if news.retry_after is not None:
        new = replace(new, rest_until=max(old.rest_until, now + span(news.retry_after)))
    if news.crawl_delay is not None:
        delay = span(news.crawl_delay)
        if delay >= old.delay or now - old.delayed_at > DELAY_HOLDS:
            new = replace(new, delay=delay, delayed_at=now)
    if news.target_gap is not None:
        # As Scrapy's AutoThrottle does: a longer gap at once, a shorter one half of the way.
        target = span(news.target_gap)
        gap = min(max(target, (old.gap + target) // 2), span(news.longest_delay))
        new = replace(new, gap=gap if news.answered else max(old.gap, gap))
    slower = (
        new.slowed_at != old.slowed_at
        or new.rest_until > max(old.rest_until, now)
        or new.delay > old.delay
    )
    return new, slower or (new.gap > 0 and not old.gap)


def span(seconds: float) -> int:
    """Convert seconds to microseconds, from 0 to one day; NaN becomes 0."""
    return round(min(max(0.0, seconds), LONGEST / SECOND) * SECOND) if seconds == seconds else 0
