"""The throttle's values, and the arithmetic of its rolling windows. No clock, no IO."""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: the "domain" whose rule applies to all domains
ALL = "*"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Hits per rolling window."""

    hits: int
    window: float  #: seconds
    moderated: bool = (
        True  #: spread evenly over the window, instead of all at once followed by a pause
    )


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule for one domain, or for all (`ALL`); overrides the settings of the workers."""

    hits: int | None = None
    window: float | None = None  #: seconds; set if and only if `hits` is
    scale: float = (
        1.0  #: fraction of the hits that may be used, rounded down; zero hits pause the domain
    )
    blocked: bool = False
    paused: bool = False


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules at one moment."""

    version: int = 0  #: increases with each change of a rule, slow-down of a domain, and moment that is free again
    rules: Mapping[str, Rule]  #: by domain


@dataclass(frozen=True, kw_only=True)
class PermitRequest:
    """A worker's request for permits for a domain."""

    key: str  #: the key whose grants are limited: `[spider|][address|]domain`
    domain: str
    count: int = 1  #: permits requested; each is granted with its own time
    limit: Limit | None = (
        None  #: the limit in the worker's settings, for a domain without a rule; None: no limit
    )
    moderated: bool = True  #: whether a rule's hits are spread evenly, if there is no `limit`
    pages: int | None = (
        None  #: the domain's page budget within `budget`, one page per permit; None: unlimited
    )
    budget: str = ""  #: the name under which pages are counted together, such as a crawl


@dataclass(frozen=True, kw_only=True)
class Permit:
    """The permission to send one request at one moment."""

    key: str
    at: float  #: seconds, by the store's clock
    page_of: str = ""  #: the page budget that it is counted in, if any


@dataclass(frozen=True, kw_only=True)
class PermitReply:
    """The answer to one `PermitRequest`."""

    permits: tuple[
        Permit, ...
    ] = ()  #: in order of time; fewer than requested only if the page budget is used up
    free: bool = (
        False  #: the domain has no limit; no permit is needed until the rules' version changes
    )
    held: bool = (
        False  #: blocked, paused or scaled to zero; ask again when the rules' version changes
    )
    used_up: bool = False  #: the page budget is used up; a returned page makes room again


@dataclass(frozen=True, kw_only=True)
class DomainLook:
    """The version of the rules, and what has changed."""

    version: int
    #: domains whose rule or pace has changed, or that have a moment free again, since the version that the caller
    #: knows; `ALL` means any domain may have
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TakenPermits(DomainLook):
    """The store's reply to a list of asks."""

    now: float  #: the store's clock, seconds
    answers: tuple[PermitReply, ...]  #: in the order of the asks


@dataclass(frozen=True, kw_only=True)
class SiteNews:
    """What one worker observed of a domain, applied to all workers."""

    domain: str
    #: permit time of a refused request (429, 503), or None; refusals of requests sent before the last slow-down do not
    #: slow the domain down again
    refused_at: float | None = None
    retry_after: float | None = None  #: seconds from now, by the site's Retry-After
    crawl_delay: float | None = None  #: seconds between two requests, by robots.txt
    #: seconds between two requests with which its latency gives the target concurrency over the whole fleet
    target_gap: float | None = None
    answered: bool = (
        True  #: whether that is of responses with status 200; others never make the domain faster
    )
    longest_delay: float = 60.0  #: maximum gap in seconds for the target concurrency


@dataclass(frozen=True, kw_only=True)
class DomainState:
    """The state of a domain, for display."""

    domain: str
    now: float = 0.0  #: the store's clock when this was read
    keys: Mapping[str, int] = field(
        default_factory=dict
    )  #: number of grants within the last window, by key
    next_at: float = 0.0  #: the latest granted time, by the store's clock; 0 without a grant
    rest_until: float = 0.0  #: no request before this time, by the site's Retry-After
    pace: float = 1.0  #: fraction of the limit in use after refusals; recovers by itself
    delay: float = 0.0  #: seconds between two requests, by robots.txt
    gap: float = 0.0  #: seconds between two requests, for the target concurrency
    pages: Mapping[str, int] = field(default_factory=dict)  #: pages used, by budget


SECOND = 1_000_000
#: minimum time for which a grant is kept; a page returned later is not credited
REMEMBERED = 60 * SECOND
#: a later grant than this from now is worth requesting anew once one that has passed was returned
FAR_OFF = 5 * SECOND


@dataclass(frozen=True, kw_only=True)
class WindowTerms:
    """The limits on the grants of a key; times in microseconds."""

    hits: int = 0  #: maximum grants in any `window`; 0: only the gap applies, as if the hits are spread evenly
    window: int = 0
    gap: int = 1  #: minimum time between two grants; never 0, so that each grant has its own time
    apart: int = 0  #: minimum time between a grant of this key and one of another key of the domain

    @property
    def memory(self) -> int:
        """How long grants are kept: longer than they count, so that stricter terms can still be applied to them."""
        return max(2 * self.window, 2 * self.gap, REMEMBERED)

    def is_freed_by(self, returned: int, latest: int, now: int) -> bool:
        """Return whether a returned grant lets the latest of its key be had earlier, if it is requested anew.

        A grant returned before its time is requested again by its own worker, and a short wait is not worth it.
        """
        wait = self.window if self.hits else self.gap
        return wait >= FAR_OFF and returned <= now and latest > now + FAR_OFF

    @property
    def reach(self) -> int:
        """How far from a grant others of its key bound it."""
        return max(self.window, self.gap) if self.hits else self.gap


def moments(
    count: int, start: int, own: Iterable[int], terms: WindowTerms, others: Sequence[int] = ()
) -> list[int]:
    """Return the earliest times for `count` more grants from `start` on, in order.

    A grant may come before others that were given earlier: what was returned is free for any worker at once. `own` are
    the key's grants later than `start - terms.reach`, `others` those of the domain's other keys later than
    `start - terms.apart`, both in order.
    """
    own, given = list(own), []
    for _ in range(count):
        start = _next(own, others, start, terms)
        insort(own, start)
        given.append(start)
    return given


def _next(own: Sequence[int], others: Sequence[int], moment: int, terms: WindowTerms) -> int:
    while True:
        found = _clear_of(others, _clear_of(own, moment, terms.gap), terms.apart)
        found = _with_room(own, found, terms)
        if found == moment:
            return moment
        moment = found


def _with_room(own: Sequence[int], moment: int, terms: WindowTerms) -> int:
    """Return `moment`, if no window around it has all its hits; otherwise a later one that may do."""
    hits, window, place = terms.hits, terms.window, bisect_right(own, moment)
    if not hits:
        return moment
    if place >= hits and moment - own[place - hits] < window:
        return own[place - hits] + window
    for first in range(max(0, place - hits + 1), min(place, len(own) - hits) + 1):
        if own[first + hits - 1] - min(own[first], moment) < window:
            return own[place]
    return moment


def _clear_of(grants: Sequence[int], moment: int, gap: int) -> int:
    """Return the earliest time from `moment` on that is at least `gap` away from every grant."""
    for at in range(bisect_right(grants, moment - gap), len(grants)):
        if grants[at] - moment >= gap:
            break
        moment = grants[at] + gap
    return moment
