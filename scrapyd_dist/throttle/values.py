"""The throttle's words: limits and rules, who asks for how many permits, and what the store answers.

The rule it keeps: a permit is a moment of the store's clock at which one request may leave for a site. Part of the
worker half: the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: the "domain" whose rule is meant for all of them
ALL = "*"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Hits per rolling window."""

    hits: int
    window: float  #: seconds
    moderated: bool = True  #: spread evenly over the window; else all at once, and then a rest


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What somebody has said of one domain, or of all (`ALL`); it goes before the settings of the workers."""

    hits: int | None = None
    window: float | None = None  #: seconds; given when `hits` is
    scale: float = 1.0  #: 0 to 1: how much of the hits may be used, rounded down; none of them is a pause
    blocked: bool = False
    paused: bool = False


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All that holds at one moment."""

    version: int = 0  #: higher after each change, and after each slow-down of a domain
    rules: Mapping[str, Rule]  #: by domain


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A worker wants to send requests to a domain."""

    key: str  #: whose budget: `[spider|][address|]domain`
    domain: str
    count: int = 1  #: permits wanted; as many are given, each with its moment
    limit: Limit | None = (
        None  #: what the worker's settings say, for a domain without a rule of its own; None: no limit
    )
    moderated: bool = True  #: how the hits of a rule are spread, where there is no `limit` that says so
    pages: int | None = None  #: the domain's budget of pages in `budget`; None: none. Each permit here is for one page
    budget: str = ""  #: whose pages are counted together, such as a crawl


@dataclass(frozen=True, kw_only=True)
class Permit:
    """One request may leave at this moment."""

    key: str
    at: float  #: seconds, by the store's clock
    page_of: str = ""  #: the budget that it was counted in, if any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of one `Ask`, in the order of the asks."""

    permits: tuple[Permit, ...] = ()  #: in order of time; fewer than asked for only when the pages are used up
    free: bool = False  #: this domain has no limit: nobody has to ask until the rules' version changes
    held: bool = False  #: blocked, paused, or scaled to nothing: ask again when the rules' version changes
    used_up: bool = False  #: the budget of pages has nothing left; a page that is handed back makes room again


@dataclass(frozen=True, kw_only=True)
class Taken:
    """One answer of the store."""

    now: float  #: the store's clock at this moment
    version: int  #: of the rules
    changed: frozenset[str] = frozenset()  #: as in `Look`
    answers: tuple[Answer, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at the version of the rules."""

    version: int
    #: domains whose rules, or whose pace, have changed since the version that the asker knows; with `ALL` among them it
    #: is all of them, or nobody can tell any more which
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class SiteNews:
    """What one worker saw of a domain, which all are to heed."""

    domain: str
    #: when the request that was refused (429, 503) had its permit; refusals of requests from before the last slow-down
    #: do not slow it again. None: nothing was refused
    refused_at: float | None = None
    retry_after: float | None = None  #: seconds from now, as the site asked
    crawl_delay: float | None = None  #: seconds between two requests, as its robots.txt asks
    latency: float | None = None  #: seconds: the mean of the answers since the last news, with `concurrency`
    concurrency: float | None = None  #: how many requests may be under way there at once, over the whole fleet
    answered: bool = True  #: whether those answers were good ones (status 200): others never make it faster
    longest_delay: float = 60.0  #: seconds: the concurrency makes no longer gap than this


@dataclass(frozen=True, kw_only=True)
class DomainState:
    """How a domain stands now, for whoever looks."""

    domain: str
    keys: Mapping[str, int]  #: the grants of each key within the last window
    next_at: float  #: the latest moment that was given out, by the store's clock; 0 without one
    rest_until: float = 0.0  #: nothing before this moment, as the site asked
    pace: float = 1.0  #: the part of the limit that is used, after refusals; it comes back by itself
    delay: float = 0.0  #: seconds between two requests: robots.txt
    gap: float = 0.0  #: seconds between two requests, for the wanted concurrency
    pages: Mapping[str, int]  #: used, by budget
