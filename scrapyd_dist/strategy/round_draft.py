"""Collects what one round of a strategy process is going to change, to be kept in one step.

What a handler schedules counts when it has returned; when it raises, nothing of it does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from scrapyd_dist.frontier.backlog import check_slot_name
from scrapyd_dist.frontier.slots import site_of, slot_of_site
from scrapyd_dist.payload import RequestValue, private_part_of
from scrapyd_dist.strategy.domain_metadata import DomainMetadata
from scrapyd_dist.strategy.interface import Request
from scrapyd_dist.strategy.links import (
    EventKind,
    FoundLink,
    Link,
    LinkEvent,
    LinkMove,
    States,
    StrategyStep,
    link_meta,
    partition_of,
    with_link_meta,
)

# Names of counts in the crawl's account.
SCHEDULED = "scheduled"
BEYOND_DEPTH = "beyond_depth"
#: states, as a strategy knew them, of a request that it takes for a new one
_NEW = (None, States.NOT_CRAWLED)
#: likewise, of one that it wants again
_OVER = (States.CRAWLED, States.ERROR)
#: in the meta of a link that is handed over: how it was scheduled
_HANDOVER = "scheduled"


class LinkStore(Protocol):
    """What a draft asks of the store; each verb as `store.StrategyStore` has it."""

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        """Return those of the links that are known."""
        ...

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of those of the sites that have any."""
        ...


def site_slot(url: str) -> str:
    """Return the slot of a request that names none: there is one for each site."""
    return slot_of_site("", site_of(url))


@dataclass(frozen=True, kw_only=True)
class DraftRules:
    """How the requests of a strategy become links."""

    crawl: str
    fingerprint: Callable[[RequestValue], bytes]
    slot_of: Callable[[str], str] = site_slot  #: of a URL
    max_depth: int = 0  #: links from a seed; 0: any
    has_key: bool = True  #: to encrypt requests with


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledRequest:
    """A request as it was when the strategy scheduled it."""

    value: RequestValue
    fingerprint: bytes
    score: float
    due: float
    expires: float
    slot: str
    depth: int
    partition: int
    state: States | None  #: as it was looked up; None: it was not
    dont_queue: bool = False
    own: bool = False  #: its own event is being handled, so it is in no batch any more


@dataclass(kw_only=True)
class RoundDraft:
    """The draft of one step; a `StrategyContext` for the strategy."""

    store: LinkStore
    rules: DraftRules
    partitions: frozenset[int]  #: those that the process holds
    clock: Callable[[], float]
    #: called with this draft after each request that is scheduled outside of a handler: of a seed
    seeded: Callable[[RoundDraft], None] | None = None
    # What the step is going to change.
    links: dict[bytes, Link] = field(default_factory=dict)
    moved: dict[bytes, LinkMove] = field(default_factory=dict)
    events: list[LinkEvent] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)
    dead: dict[int, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    # What the handler that runs has done.
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    beyond: int = 0  #: requests that would have been too deep
    #: (request, fingerprint, state) of those whose states the handler got
    given: list[tuple[Request, bytes, States]] = field(default_factory=list)
    own: bytes = b""  #: fingerprint of the link whose own event is being handled
    # What is known of links.
    known: dict[bytes, Link | None] = field(default_factory=dict)  #: what the store has of them
    #: requests whose states have to be looked up before they can be placed
    unresolved: list[ScheduledRequest] = field(default_factory=list)

    @cached_property
    def domains(self) -> DomainMetadata:
        """Metadata of sites, loaded when it is asked for."""
        return DomainMetadata(lambda names: self.store.domains(self.rules.crawl, names))

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self.clock()

    # states

    def look_up(self, fingerprints: Iterable[bytes]) -> None:
        """Learn of those links that are not known yet, in one call to the store."""
        unknown = {fingerprint for fingerprint in fingerprints if fingerprint not in self.known}
        if not unknown:
            return
        found = self.store.links(self.rules.crawl, unknown)
        for fingerprint in unknown:
            self.known[fingerprint] = found.get(fingerprint)

    def link(self, fingerprint: bytes) -> Link | None:
        """Return the link as it will be after this step, as far as that is known."""
        return self.links.get(fingerprint) or self.known.get(fingerprint)

    def in_queue(self, fingerprint: bytes) -> bool:
        """Return whether the link will wait in the queue after this step.

        False as well when it is in a batch.
        """
        changed = self.links.get(fingerprint)
        if changed:
            return changed.request is not None
        known = self.known.get(fingerprint)
        return known is not None and known.waits

    def state_of(self, fingerprint: bytes) -> States:
        """Return the state of a link after this step; NOT_CRAWLED if it is not known."""
        link = self.link(fingerprint)
        return link.state if link else States.NOT_CRAWLED

    def give(self, requests: Iterable[Request]) -> None:
        """Set the states of requests, which were looked up."""
        for request in requests:
            fingerprint = self.fingerprint_of(request)
            state = self.state_of(fingerprint)
            request.meta["state"] = state
            self.given.append((request, fingerprint, state))

    def fingerprint_of(self, request: Request) -> bytes:
        """Return the fingerprint of a request, which is calculated if it has none yet."""
        return request.fingerprint or self.rules.fingerprint(request.to_value())

    def refresh_states(self, requests: Iterable[Request]) -> None:
        """Look the states of requests up, and set them."""
        all_requests = list(requests)
        self.look_up(map(self.fingerprint_of, all_requests))
        self.give(all_requests)

    # scheduling

    def schedule(self, request: Request, score: float, *, dont_queue: bool) -> None:
        """Keep in mind that a request is to be queued; see `CrawlingStrategy.schedule`."""
        if not 0.0 <= score <= 1.0:  # which NaN is not, either
            raise ValueError(
                f"the score of {request.url} is {score}, and has to be from 0.0 to 1.0: of a site,"
                " the request with the highest score is made first"
            )
        meta = request.meta
        depth = int(meta.get("depth", 0))
        if self._is_too_deep(depth) and not dont_queue:
            self.beyond += 1
            return
        due = _read_time(request, "crawl_at")
        expires = _read_time(request, "expires")
        value = request.to_value()
        if not (request.is_plain and self.rules.has_key):
            _check_value(value, has_key=self.rules.has_key)
        fingerprint = request.fingerprint or self.rules.fingerprint(value)
        scheduled = ScheduledRequest(
            value=value,
            fingerprint=fingerprint,
            score=float(score),
            due=due,
            expires=expires,
            depth=depth,
            partition=partition_of(request.site),
            slot=check_slot_name(meta.get("slot") or ""),
            dont_queue=dont_queue,
            own=fingerprint == self.own,
            state=_read_state(meta.get("state")),
        )
        self.scheduled.append(scheduled)
        if not dont_queue:
            meta["state"] = States.QUEUED
        if self.seeded:
            self.seeded(self)

    def _is_too_deep(self, depth: int) -> bool:
        return bool(self.rules.max_depth) and depth > self.rules.max_depth

    def begin_event(self, event: LinkEvent) -> None:
        """Note the event that is handled next; what it schedules of its own link is in no batch."""
        self.own = b"" if event.kind is EventKind.LINKS else event.fingerprint

    def schedule_again(self, seeds: Iterable[ScheduledRequest], counts: Mapping[str, int]) -> None:
        """Keep in mind what another draft has scheduled and counted."""
        self.scheduled = list(seeds)
        self.counts.update(counts)

    def forget_seeds(self) -> None:
        """Forget the seeds that were scheduled so far, which are kept now."""
        self.scheduled = []
        self.beyond = 0
        self.forget_looked_up()

    def keep(self) -> None:
        """Count what the handler did, as it has returned."""
        self.domains.keep(lambda site: partition_of(site) in self.partitions)
        self.count(BEYOND_DEPTH, self.beyond)
        for scheduled in self.scheduled:
            self._place(scheduled)
        queued = {scheduled.fingerprint for scheduled in self.scheduled if not scheduled.dont_queue}
        for request, fingerprint, before in self.given:
            after = request.meta.get("state", before)
            if after not in {before, States.QUEUED} and fingerprint not in queued:
                self._set_state(request, fingerprint, States(after))
        self._begin()

    def forget_looked_up(self) -> None:
        """Forget what the store said, which grows with each look-up."""
        self.known.clear()
        self.given.clear()
        self.domains.forget()

    def forget(self) -> None:
        """Undo what the handler did, as it has raised."""
        self.domains.put_back()
        self._begin()

    def _begin(self) -> None:
        """Make everything ready for the next handler."""
        self.scheduled = []
        self.given = []
        self.beyond = 0
        self.own = b""

    def resolve(self) -> None:
        """Place the requests whose states were not known, with one look-up for all of them."""
        waiting = self.unresolved
        self.unresolved = []
        self.look_up(
            scheduled.fingerprint
            for scheduled in waiting
            if scheduled.fingerprint not in self.links
        )
        for scheduled in waiting:
            self._place(scheduled)

    def _place(self, scheduled: ScheduledRequest) -> None:
        """Decide what becomes of a request that was scheduled."""
        is_known = scheduled.fingerprint in self.links or scheduled.fingerprint in self.known
        if scheduled.partition not in self.partitions:
            self.events.append(_make_handover(scheduled))
        elif not is_known:
            self.unresolved.append(scheduled)
        elif self._is_waiting(scheduled):
            if scheduled.dont_queue or scheduled.state not in _NEW:
                self._move(scheduled)
        elif scheduled.dont_queue:
            self._rescore(scheduled)
        elif self._is_to_be_queued(scheduled):
            self._queue(scheduled)

    def _is_waiting(self, scheduled: ScheduledRequest) -> bool:
        if self.state_of(scheduled.fingerprint) is not States.QUEUED:
            return False
        # The link of the event that is being handled is in no batch any more, though it is QUEUED
        # in the store.
        return not scheduled.own or self.in_queue(scheduled.fingerprint)

    def _is_to_be_queued(self, scheduled: ScheduledRequest) -> bool:
        """Return whether the request is new, or the strategy wants it again knowingly."""
        is_new = self.state_of(scheduled.fingerprint) is States.NOT_CRAWLED
        return scheduled.own or is_new or scheduled.state in _OVER

    def _queue(self, scheduled: ScheduledRequest) -> None:
        before = self.known.get(scheduled.fingerprint)
        slot = scheduled.slot
        if not slot and before:
            slot = before.slot
        if not slot:
            slot = self.rules.slot_of(scheduled.value["url"])
        self.links[scheduled.fingerprint] = Link(
            fingerprint=scheduled.fingerprint,
            url=scheduled.value["url"],
            state=States.QUEUED,
            score=scheduled.score,
            slot=slot,
            partition=scheduled.partition,
            depth=scheduled.depth,
            request=scheduled.value,
            due=scheduled.due,
            expires=scheduled.expires,
        )
        self.moved.pop(scheduled.fingerprint, None)
        self.count(SCHEDULED)

    def _move(self, scheduled: ScheduledRequest) -> None:
        queued = self.links.get(scheduled.fingerprint)
        if queued:
            due = queued.due if scheduled.dont_queue else scheduled.due
            self.links[scheduled.fingerprint] = replace(queued, score=scheduled.score, due=due)
            return
        new_due = None if scheduled.dont_queue else scheduled.due
        self.moved[scheduled.fingerprint] = LinkMove(score=scheduled.score, due=new_due)

    def _rescore(self, scheduled: ScheduledRequest) -> None:
        link = self.link(scheduled.fingerprint)
        if link:
            self.links[scheduled.fingerprint] = replace(link, score=scheduled.score, request=None)

    def _set_state(
        self,
        request: Request,
        fingerprint: bytes,
        state: States,
        reason: str = "set by the strategy",
    ) -> None:
        partition = partition_of(request.site)
        if partition not in self.partitions or state is States.NOT_CRAWLED:
            return
        link = self.link(fingerprint) or Link(
            fingerprint=fingerprint,
            url=request.url,
            state=state,
            slot=self.rules.slot_of(request.url),
            partition=partition,
            depth=int(request.meta.get("depth", 0)),
        )
        self.links[fingerprint] = replace(
            link, state=state, request=None, due=0.0, expires=0.0, reason=reason
        )
        self.moved.pop(fingerprint, None)

    # events

    def end_event(self, event: LinkEvent, state: States, reason: str, fault: str = "") -> None:
        """Note that an event was handled, or is a dead letter because of a `fault`.

        Its link is in the queue again, or has ended in this state. Call after `keep` or `forget`.
        """
        if fault:
            self.dead[event.number] = fault
        else:
            self.handled.append(event.number)
        if event.kind not in {EventKind.CRAWLED, EventKind.ERROR}:
            return
        changed = self.links.get(event.fingerprint)
        if self.in_queue(event.fingerprint):
            return  # scheduled again, by this handler or by that of an earlier attempt
        if changed is None:
            self._set_state(Request.from_value(event.request), event.fingerprint, state, reason)
        else:
            after = state if changed.state is States.QUEUED else changed.state
            self.links[event.fingerprint] = replace(changed, state=after, reason=reason)

    def accept(self, event: LinkEvent) -> None:
        """Schedule what another process has handed over."""
        self._place(_read_handover(event))

    def count(self, name: str, number: int = 1) -> None:
        """Add a number to a count in the crawl's account."""
        if number:
            self.counts[name] = self.counts.get(name, 0) + number

    def step(self, process: str) -> StrategyStep:
        """Return the step that keeps all of this."""
        return StrategyStep(
            crawl=self.rules.crawl,
            process=process,
            partitions=self.partitions,
            handled=self.handled,
            dead=self.dead,
            links=list(self.links.values()),
            moved=self.moved,
            events=self.events,
            domains=self.domains.changes(),
            counts=self.counts,
            now=self.now(),
        )


def _read_time(request: Request, name: str) -> float:
    """Return a time that a request's meta names, 0 for none."""
    seconds = float(request.meta.get(name) or 0.0)
    if not math.isfinite(seconds):
        raise ValueError(
            f"the {name} of {request.url} is {seconds}, and has to be seconds since the epoch"
        )
    return seconds


def _read_state(number: Any) -> States | None:
    return None if number is None else States(number)


def _check_value(value: RequestValue, *, has_key: bool) -> None:
    if not has_key and (hidden := private_part_of(value)):
        raise ValueError(
            f"the request of {value['url']} has {hidden}, and there is no key to encrypt it with"
        )
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the request of {value['url']} has a value that JSON cannot carry: {error}"
        ) from None


def _make_handover(scheduled: ScheduledRequest) -> LinkEvent:
    """Return the event that hands a request over to the process of another partition."""
    fields = {
        "score": scheduled.score,
        "due": scheduled.due,
        "expires": scheduled.expires,
        "slot": scheduled.slot,
        "depth": scheduled.depth,
        "state": scheduled.state,
        "dont_queue": scheduled.dont_queue,
    }
    return LinkEvent(
        kind=EventKind.SCHEDULED,
        fingerprint=scheduled.fingerprint,
        partition=scheduled.partition,
        url=scheduled.value["url"],
        request=with_link_meta(scheduled.value, {**link_meta(scheduled.value), _HANDOVER: fields}),
    )


def _read_handover(event: LinkEvent) -> ScheduledRequest:
    """Return the request that such an event hands over."""
    meta = dict(link_meta(event.request))
    fields = meta.pop(_HANDOVER)
    return ScheduledRequest(
        value=with_link_meta(event.request, meta),
        fingerprint=event.fingerprint,
        score=fields["score"],
        due=fields["due"],
        expires=fields["expires"],
        slot=fields["slot"],
        depth=fields["depth"],
        partition=event.partition,
        dont_queue=fields["dont_queue"],
        state=_read_state(fields["state"]),
    )


def found_requests(found: Sequence[FoundLink], depth: int) -> list[Request]:
    """Return the links of a page as the strategy sees them."""
    requests = []
    for link in found:
        request = Request.from_value(link.request, link.fingerprint)
        request.meta["depth"] = depth
        if link.slot:
            request.meta["slot"] = link.slot
        requests.append(request)
    return requests
