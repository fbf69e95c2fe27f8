"""Defines what a store keeps for a crawling strategy: links, events of workers, and steps.

A link is a request that the strategy knows of, under its fingerprint. It belongs to the partition
of its site, and each partition is worked by one strategy process at a time. Part of the worker
half: imports the standard library only.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from scrapyd_dist.frontier.backlog import Backlog, NewBatch, producer_name
from scrapyd_dist.payload import RequestValue

#: partitions of every strategy: the most processes that one can have
PARTITIONS = 64
#: what a strategy process does, as a producer of its frontier; nothing is missing of a lost one, as
#: events stay
WORK = "strategy"
#: request meta: what the worker gets with a link that it requests, and says of a link found
LINK_META = "distributed_link"
#: its key that says how the page is read
READ = "read"
PAGE = "page"  #: the spider's callback gets it
BODY = "body"  #: its text goes to the strategy
SITEMAP = "sitemap"  #: the links of a sitemap go to the strategy
#: a score of 1.0 as the priority of a request, which is a whole number
PRIORITY = 1_000_000
#: the reason of a link that was not requested in time
EXPIRED = "expired"
#: greatest number of links in one event; a page with more has several
EVENT_LINKS = 1_000


class States(IntEnum):
    """The state of a link; the numbers are those of Frontera."""

    NOT_CRAWLED = 0  #: not in the store, so of no link there
    QUEUED = 1
    CRAWLED = 2
    ERROR = 3


class EventKind(str, Enum):
    """What an event for a strategy is about."""

    CRAWLED = "crawled"  #: the page of a link has come
    LINKS = "links"  #: links of such a page, of the sites of one partition
    ERROR = "error"  #: a link gave no page, or its callback raised
    #: another strategy process has scheduled this link, whose partition it does not hold
    SCHEDULED = "scheduled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A link as the store keeps it."""

    fingerprint: bytes
    url: str
    state: States
    score: float = 1.0  #: from 0.0 to 1.0; the higher, the earlier
    slot: str = ""  #: the slot of its batches
    partition: int = 0
    depth: int = 0  #: links from a seed
    #: while it waits in the queue; None when it is in a batch, or was crawled
    request: RequestValue | None = None
    due: float = 0.0  #: seconds since the epoch before which it is not requested
    expires: float = 0.0  #: seconds since the epoch after which it is not requested; 0: never
    reason: str = ""  #: why it is in this state, for the log of changes
    waits: bool = False  #: set by the store: it is in the queue, and in no batch


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundLink:
    """A link that a page had, as its worker found it."""

    fingerprint: bytes
    request: RequestValue
    slot: str = ""


@dataclass(frozen=True, kw_only=True)
class LinkEvent:
    """What a worker reports of one link of its batch; kept in the step that acks the batch."""

    kind: EventKind
    fingerprint: bytes  #: of the link that was requested
    request: RequestValue  #: as it was requested, with its meta
    partition: int
    number: int = 0  #: given by the store; events are handled in this order
    url: str = ""  #: of the page, after redirects
    status: int = 0
    body: str | None = None  #: where the request asked for it
    digest: str = ""  #: hash of the page's body, in hex: the same as long as the page is the same
    error: str = ""  #: name of the exception's class, or a reason in words
    links: Sequence[FoundLink] = ()
    fault: str = ""  #: of a dead letter: what its handler raised


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkMove:
    """Another place in the queue for a link that is in the store as QUEUED."""

    score: float
    due: float | None = None  #: None: as it was


@dataclass(frozen=True, kw_only=True)
class StrategyStep:
    """What one round of a strategy process changes, all of it or nothing."""

    crawl: str
    process: str  #: has to hold all these partitions still
    partitions: Collection[int]
    handled: Collection[int] = ()  #: events, which are removed
    #: events that become dead letters -> what was raised
    dead: Mapping[int, str] = field(default_factory=dict)
    #: to be kept, each in the place of that of its fingerprint; its change is logged
    links: Sequence[Link] = ()
    #: links that get another score, and those of them that wait in the queue another place there;
    #: the rest of each stays as it is, and one that is not QUEUED any more is left alone
    moved: Mapping[bytes, LinkMove] = field(default_factory=dict)
    #: to be kept behind all others, for partitions of any process; numbered anew
    events: Sequence[LinkEvent] = ()
    #: site -> metadata; None: removed
    domains: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    #: batches of links, which are in no queue any more (their `fingerprints`), stay QUEUED, and may
    #: have been in a batch before
    new: Sequence[NewBatch] = ()
    dropped: Collection[int] = ()  #: DEAD batches, to be removed; `events` are of their links
    counts: Mapping[str, int] = field(default_factory=dict)  #: to be added to the account
    now: float = 0.0  #: time of the changes in the log, seconds since the epoch


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkChange:
    """One change in the log of a strategy."""

    number: int
    at: float  #: seconds since the epoch
    fingerprint: bytes
    url: str
    before: States
    after: States
    score: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class StrategyProcess:
    """A process that works on a strategy."""

    name: str
    partitions: Collection[int]
    finished: bool = False  #: what its `finished()` said last


@dataclass(frozen=True, kw_only=True)
class StrategyBacklog:
    """How far a strategy is."""

    states: Mapping[States, int]  #: state -> links
    queued: int = 0  #: links in the queue that may be requested now
    later: int = 0  #: links in the queue that are not due
    events: int = 0  #: to be handled
    dead: int = 0  #: dead letters
    processes: Sequence[StrategyProcess] = ()
    ended: bool = False  #: the strategy has finished: no link is taken from the queue any more

    def to_document(self) -> dict[str, Any]:
        """Return its numbers, as JSON."""
        return {
            "links": {state.name.lower(): self.states.get(state, 0) for state in States if state},
            "queue": {"now": self.queued, "later": self.later},
            "events": self.events,
            "dead_letters": self.dead,
            "ended": self.ended,
        }


def priority_of(score: float) -> int:
    """Return the priority of a request with this score."""
    return round(score * PRIORITY)


def is_empty(backlog: Backlog, strategy: StrategyBacklog) -> bool:
    """Return whether nothing is left to be requested or handled.

    Then no process reads seeds, either, or was lost while it did.
    """
    if backlog.waiting or backlog.out:
        return False
    if strategy.queued or strategy.later or strategy.events:
        return False
    own_prefix = producer_name(WORK, "")
    producers = (*backlog.producers, *backlog.lost)
    return all(name.startswith(own_prefix) for name in producers)


def link_meta(value: RequestValue) -> dict[str, Any]:
    """Return what a request's meta says of its link; empty when that is nothing."""
    meta = value.get("meta", {})
    # The codec wraps a dict with keys that begin with $.
    link = meta.get("$dict", meta).get(LINK_META)
    if not isinstance(link, dict):
        return {}
    return link


def with_link_meta(value: RequestValue, link: Mapping[str, Any]) -> RequestValue:
    """Return the request with `link` in its meta in place of what that said of its link.

    When `link` is empty, the meta says nothing of it.
    """
    outer = value.get("meta", {})
    meta = {name: item for name, item in outer.get("$dict", outer).items() if name != LINK_META}
    if link:
        meta[LINK_META] = dict(link)
    changed = {name: item for name, item in value.items() if name != "meta"}
    if meta:
        changed["meta"] = {"$dict": meta} if "$dict" in outer else meta
    return changed


def partition_of(site: str) -> int:
    """Return the partition of a site (registered domain), the same on every machine."""
    return zlib.crc32(site.encode("utf-8", "surrogatepass")) % PARTITIONS
