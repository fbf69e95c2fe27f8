"""Values of the throttle: limits, rules, requests for permits, the store's answers, news from sites.

A permit is a time of the store's clock at which one request may be sent to a site. Part of the worker half: imports
the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: the "domain" whose rule applies to all domains
ALL = "*"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Hits per rolling window."""

    hits: int
    window: float  #: seconds
    moderated: bool = True  #: spread evenly over the window, instead of all at once followed by a pause


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule for one domain, or for all (`ALL`); overrides the settings of the workers."""

    hits: int | None = None
    window: float | None = None  #: seconds; set if and only if `hits` is
    scale: float = 1.0  #: fraction of the hits that may be used, rounded down; zero hits pause the domain
    blocked: bool = False
    paused: bool = False


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules at one moment."""

    version: int = 0  #: increases with each change of a rule and each slow-down of a domain
    rules: Mapping[str, Rule]  #: by domain


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A worker's request for permits for a domain."""

    key: str  #: the key whose grants are limited: `[spider|][address|]domain`
    domain: str
    count: int = 1  #: permits requested; each is granted with its own time
    limit: Limit | None = None  #: the limit in the worker's settings, for a domain without a rule; None: no limit
    moderated: bool = True  #: whether a rule's hits are spread evenly, if there is no `limit`
    pages: int | None = None  #: the domain's page budget within `budget`, one page per permit; None: unlimited
    budget: str = ""  #: the name under which pages are counted together, such as a crawl


@dataclass(frozen=True, kw_only=True)
class Permit:
    """The permission to send one request at one moment."""

    key: str
    at: float  #: seconds, by the store's clock
    page_of: str = ""  #: the page budget that it is counted in, if any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one `Ask`."""

    permits: tuple[Permit, ...] = ()  #: in order of time; fewer than requested only if the page budget is used up
    free: bool = False  #: the domain has no limit; no permit is needed until the rules' version changes
    held: bool = False  #: blocked, paused or scaled to zero; ask again when the rules' version changes
    used_up: bool = False  #: the page budget is used up; a returned page makes room again


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The store's reply to a list of asks."""

    now: float  #: the store's clock, seconds
    version: int  #: version of the rules
    changed: frozenset[str] = frozenset()  #: changed domains, see `Look.changed`
    answers: tuple[Answer, ...]  #: in the order of the asks


@dataclass(frozen=True, kw_only=True)
class Look:
    """The version of the rules, and what has changed."""

    version: int
    #: domains whose rule or pace has changed since the version that the caller knows; `ALL` means any domain may have
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class SiteNews:
    """What one worker observed of a domain, applied to all workers."""

    domain: str
    #: permit time of a refused request (429, 503), or None; refusals of requests sent before the last slow-down do not
    #: slow the domain down again
    refused_at: float | None = None
    retry_after: float | None = None  #: seconds from now, by the site's Retry-After
    crawl_delay: float | None = None  #: seconds between two requests, by robots.txt
    latency: float | None = None  #: mean seconds of the responses since the last news; set with `concurrency`
    concurrency: float | None = None  #: target number of concurrent requests over the whole fleet
    answered: bool = True  #: whether these responses had status 200; others never make the domain faster
    longest_delay: float = 60.0  #: maximum gap in seconds for the target concurrency


@dataclass(frozen=True, kw_only=True)
class DomainState:
    """The state of a domain, for display."""

    domain: str
    keys: Mapping[str, int]  #: number of grants within the last window, by key
    next_at: float  #: the latest granted time, by the store's clock; 0 without a grant
    rest_until: float = 0.0  #: no request before this time, by the site's Retry-After
    pace: float = 1.0  #: fraction of the limit in use after refusals; recovers by itself
    delay: float = 0.0  #: seconds between two requests, by robots.txt
    gap: float = 0.0  #: seconds between two requests, for the target concurrency
    pages: Mapping[str, int]  #: pages used, by budget
