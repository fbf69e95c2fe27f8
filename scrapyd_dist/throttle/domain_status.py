"""Computes the limits in force for a domain from rules, settings and news of the site. No IO.

Invariant: news from a site only make requests slower than the limit, and a slow-down fades by
itself. Part of the worker half: imports the standard library only.
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
#: microseconds between requests to a domain without a limit that has refused one, to be divided by
#: its pace
REFUSED_GAP = SECOND // 10
#: microseconds for which a longer crawl delay of one host overrides a shorter one of another host
#: of the domain
DELAY_HOLDS = 3600 * SECOND
#: maximum microseconds of any delay that a site asks for
LONGEST = 86_400 * SECOND
#: the most doublings of a pace that are computed, far more than any pace needs
MOST_DOUBLINGS = 64
#: corrects float rounding, so that 29 % of 100 are 29
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class DomainRules:
    """The state of a domain besides its grants; all times in microseconds."""

    #: no request before this moment, by the site's Retry-After
    rest_until: int = 0
    #: the fraction of the limit in use at `slowed_at`
    pace: float = 1.0
    #: when the domain was last slowed down
    slowed_at: int = 0
    #: between two requests, by robots.txt
    delay: int = 0
    #: when that delay was last reported
    delayed_at: int = 0
    #: between two requests, for the target concurrency
    gap: int = 0

    def pace_at(self, now: int) -> float:
        """Return the fraction of the limit in use at this time."""
        doublings = min(MOST_DOUBLINGS, max(0, now - self.slowed_at) // RECOVERY)
        return min(1.0, self.pace * 2.0**doublings)


def terms_of(
    request: PermitRequest, rules: Mapping[str, Rule], standing: DomainRules, now: int
) -> WindowTerms | PermitReply:
    """Return the terms for the key, or a reply if no permit is needed or none is granted."""
    in_force: list[Rule] = []  # the domain's own rule goes before that for all
    for name in (request.domain, ALL):
        rule = rules.get(name)
        if rule:
            in_force.append(rule)
    scale = in_force[0].scale if in_force else 1.0
    if scale <= 0 or any(rule.blocked or rule.paused for rule in in_force):
        return PermitReply(held=True)
    limit = _limit(in_force, request)
    if limit is None:
        return _terms_without_limit(request, standing, now)
    hits = int(limit.hits * scale + ROUNDING)
    if not hits:
        return PermitReply(held=True)
    pace = standing.pace_at(now)
    gap = max(standing.delay, standing.gap)
    return _terms(limit, hits * pace, math.ceil(gap / pace))


def _terms_without_limit(
    request: PermitRequest, standing: DomainRules, now: int
) -> WindowTerms | PermitReply:
    pace = standing.pace_at(now)
    gap = max(standing.delay, standing.gap)
    if not gap and pace < 1:
        gap = REFUSED_GAP
    if not gap and standing.rest_until <= now and request.pages is None:
        return PermitReply(free=True)
    apart = math.ceil(gap / pace)
    return WindowTerms(gap=max(1, apart), apart=apart)


def _limit(in_force: list[Rule], request: PermitRequest) -> Limit | None:
    """Return the limit of the first rule that has one, else the worker's.

    The worker chooses how the hits are spread.
    """
    for rule in in_force:
        if rule.hits is not None and rule.window is not None:
            moderated = request.limit.moderated if request.limit else request.moderated
            return Limit(hits=rule.hits, window=rule.window, moderated=moderated)
    return request.limit


def _terms(limit: Limit, hits: float, apart: int) -> WindowTerms:
    """Return terms for `hits` per window of the limit; `hits` may be less than one."""
    window = max(1, round(limit.window * SECOND))
    gap = max(1, apart)
    if limit.moderated:
        return WindowTerms(window=window, gap=max(gap, math.ceil(window / hits)), apart=apart)
    if hits < 1:
        return WindowTerms(hits=1, window=math.ceil(window / hits), gap=gap, apart=apart)
    return WindowTerms(hits=int(hits), window=window, gap=gap, apart=apart)


def with_news(old: DomainRules, news: SiteNews, now: int) -> tuple[DomainRules, bool]:
    """Apply news from a site.

    Returns the new state, and whether permits already granted must be revised.
    """
    new = _with_slow_down(old, news, now)
    if news.crawl_delay is not None:
        delay = span(news.crawl_delay)
        if delay >= old.delay or now - old.delayed_at > DELAY_HOLDS:
            new = replace(new, delay=delay, delayed_at=now)
    if news.target_gap is not None:
        new = replace(new, gap=_new_gap(old.gap, span(news.target_gap), news))
    return new, _must_revise(old, new, now)


def _with_slow_down(old: DomainRules, news: SiteNews, now: int) -> DomainRules:
    """Apply a refusal, and a time for which the site wants to be left alone."""
    new = old
    if news.refused_at is not None and news.refused_at * SECOND > old.slowed_at:
        new = replace(new, pace=max(SLOWEST, old.pace_at(now) / 2), slowed_at=now)
    if news.retry_after is not None:
        new = replace(new, rest_until=max(old.rest_until, now + span(news.retry_after)))
    return new


def _new_gap(old_gap: int, target: int, news: SiteNews) -> int:
    # As Scrapy's AutoThrottle does: a longer gap at once, a shorter one half of the way.
    gap = min(max(target, (old_gap + target) // 2), span(news.longest_delay))
    if news.answered:
        return gap
    return max(old_gap, gap)


def _must_revise(old: DomainRules, new: DomainRules, now: int) -> bool:
    """Return whether permits that were granted under the old state come too early now."""
    if new.slowed_at != old.slowed_at or new.delay > old.delay:
        return True
    if new.rest_until > max(old.rest_until, now):
        return True
    return new.gap > 0 and not old.gap


def span(seconds: float) -> int:
    """Convert seconds to microseconds, from 0 to one day; NaN becomes 0."""
    if math.isnan(seconds):
        return 0
    return round(min(max(0.0, seconds), LONGEST / SECOND) * SECOND)
