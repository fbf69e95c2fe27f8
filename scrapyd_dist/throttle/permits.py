"""The throttle's values, and the arithmetic of its rolling windows. No clock, no IO."""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: the "domain" whose rule applies to all domains
ALL = "*"
#: microseconds of a second
SECOND = 1_000_000
#: minimum microseconds for which a grant is kept; a page returned later is not credited
REMEMBERED = 60 * SECOND
#: a later grant than this from now is worth requesting anew once one that has passed was returned
FAR_OFF = 5 * SECOND


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Hits per rolling window."""

    hits: int
    #: seconds
    window: float
    #: spread evenly over the window, instead of all at once followed by a pause
    moderated: bool = True


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule for one domain, or for all (`ALL`); overrides the settings of the workers."""

    hits: int | None = None
    #: seconds; set if and only if `hits` is
    window: float | None = None
    #: fraction of the hits that may be used, rounded down; zero hits pause the domain
    scale: float = 1.0
    blocked: bool = False
    paused: bool = False


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules at one moment."""

    #: increases with each change of a rule, slow-down of a domain, and moment that is free again
    version: int = 0
    #: by domain
    rules: Mapping[str, Rule]


@dataclass(frozen=True, kw_only=True)
class PermitRequest:
    """A worker's request for permits for a domain."""

    #: the key whose grants are limited: `[spider|][address|]domain`
    key: str
    domain: str
    #: permits requested; each is granted with its own time
    count: int = 1
    #: the limit in the worker's settings, for a domain without a rule; None: no limit
    limit: Limit | None = None
    #: whether a rule's hits are spread evenly, if there is no `limit`
    moderated: bool = True
    #: the domain's page budget within `budget`, one page per permit; None: unlimited
    pages: int | None = None
    #: the name under which pages are counted together, such as a crawl
    budget: str = ""


@dataclass(frozen=True, kw_only=True)
class Permit:
    """The permission to send one request at one moment."""

    key: str
    at: float  #: seconds, by the store's clock
    page_of: str = ""  #: the page budget that it is counted in, if any


@dataclass(frozen=True, kw_only=True)
class PermitReply:
    """The answer to one `PermitRequest`."""

    #: in order of time; fewer than requested only if the page budget is used up
    permits: tuple[Permit, ...] = ()
    #: the domain has no limit; no permit is needed until the rules' version changes
    free: bool = False
    #: blocked, paused or scaled to zero; ask again when the rules' version changes
    held: bool = False
    #: the page budget is used up; a returned page makes room again
    used_up: bool = False


@dataclass(frozen=True, kw_only=True)
class DomainLook:
    """The version of the rules, and what has changed."""

    version: int
    #: domains whose rule or pace has changed, or that have a moment free again, since the version
    #: that the caller knows; `ALL` means any domain may have
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TakenPermits(DomainLook):
    """The store's reply to a list of asks."""

    #: the store's clock, seconds
    now: float
    #: in the order of the asks
    answers: tuple[PermitReply, ...]


@dataclass(frozen=True, kw_only=True)
class SiteNews:
    """What one worker observed of a domain, applied to all workers."""

    domain: str
    #: permit time of a refused request (429, 503), or None; refusals of requests sent before the
    #: last slow-down do not slow the domain down again
    refused_at: float | None = None
    #: seconds from now, by the site's Retry-After
    retry_after: float | None = None
    #: seconds between two requests, by robots.txt
    crawl_delay: float | None = None
    #: seconds between two requests with which its latency gives the target concurrency over the
    #: whole fleet
    target_gap: float | None = None
    #: whether that is of responses with status 200; others never make the domain faster
    answered: bool = True
    #: maximum gap in seconds for the target concurrency
    longest_delay: float = 60.0


@dataclass(frozen=True, kw_only=True)
class DomainState:
    """The state of a domain, for display."""

    domain: str
    #: the store's clock when this was read
    now: float = 0.0
    #: number of grants within the last window, by key
    keys: Mapping[str, int] = field(default_factory=dict)
    #: the latest granted time, by the store's clock; 0 without a grant
    next_at: float = 0.0
    #: no request before this time, by the site's Retry-After
    rest_until: float = 0.0
    #: fraction of the limit in use after refusals; recovers by itself
    pace: float = 1.0
    #: seconds between two requests, by robots.txt
    delay: float = 0.0
    #: seconds between two requests, for the target concurrency
    gap: float = 0.0
    #: pages used, by budget
    pages: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WindowTerms:
    """The limits on the grants of a key; times in microseconds."""

    #: maximum grants in any `window`; 0: only the gap applies, as if the hits are spread evenly
    hits: int = 0
    window: int = 0
    #: minimum time between two grants; never 0, so that each grant has its own time
    gap: int = 1
    #: minimum time between a grant of this key and one of another key of the domain
    apart: int = 0

    @property
    def memory(self) -> int:
        """Return how long grants are kept, in microseconds.

        That is longer than they count, so that stricter terms can still be applied to them.
        """
        return max(2 * self.window, 2 * self.gap, REMEMBERED)

    def is_freed_by(self, returned: int, latest: int, now: int) -> bool:
        """Return whether a returned grant lets the latest of its key be had earlier.

        The latest has to be requested anew for that. A grant returned before its time is requested
        again by its own worker, and a short wait is not worth it.
        """
        wait = self.window if self.hits else self.gap
        return wait >= FAR_OFF and returned <= now and latest > now + FAR_OFF

    @property
    def reach(self) -> int:
        """Return how far from a grant others of its key bound it, in microseconds."""
        if not self.hits:
            return self.gap
        return max(self.window, self.gap)


def moments(
    count: int, start: int, own: Iterable[int], terms: WindowTerms, others: Sequence[int] = ()
) -> list[int]:
    """Return the earliest times for `count` more grants from `start` on, in order.

    A grant may come before others that were given earlier: what was returned is free for any worker
    at once.

    Args:
        count: how many grants are wanted.
        start: the earliest moment, in microseconds.
        own: the key's grants later than `start - terms.reach`, in order.
        terms: those of the key.
        others: the grants of the domain's other keys later than `start - terms.apart`, in order.
    """
    own_grants = list(own)
    given = []
    for _ in range(count):
        start = _next_moment(own_grants, others, start, terms)
        insort(own_grants, start)
        given.append(start)
    return given


def _next_moment(own: Sequence[int], others: Sequence[int], moment: int, terms: WindowTerms) -> int:
    """Return the earliest time from `moment` on that no grant and no window forbids."""
    while True:
        found = _clear_of(others, _clear_of(own, moment, terms.gap), terms.apart)
        found = _with_room(own, found, terms)
        if found == moment:
            return moment
        moment = found


def _with_room(own: Sequence[int], moment: int, terms: WindowTerms) -> int:
    """Return `moment`, if no window around it has all its hits; else a later one that may do."""
    hits = terms.hits
    window = terms.window
    if not hits:
        return moment
    place = bisect_right(own, moment)
    # The window that ends at the moment.
    if place >= hits and moment - own[place - hits] < window:
        return own[place - hits] + window
    # Windows that contain the moment and later grants.
    for first in range(max(0, place - hits + 1), min(place, len(own) - hits) + 1):
        if own[first + hits - 1] - min(own[first], moment) < window:
            return own[place]
    return moment


def _clear_of(grants: Sequence[int], moment: int, gap: int) -> int:
    """Return the earliest time from `moment` on that is at least `gap` away from every grant."""
    for place in range(bisect_right(grants, moment - gap), len(grants)):
        if grants[place] - moment >= gap:
            break
        moment = grants[place] + gap
    return moment
