"""What one round of a strategy process is going to change: collected while handlers run, and kept in one step.

What a handler schedules counts when it has returned; when it raises, nothing of it does.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from scrapyd_dist.frontier.backlog import check_slot_name
from scrapyd_dist.frontier.slots import site_of, slot_of_site
from scrapyd_dist.payload import RequestValue, hidden_by
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

#: names of counts in the crawl's account
SCHEDULED, BEYOND_DEPTH = "scheduled", "beyond_depth"
#: what a strategy knows of a request that it takes for a new one, and of one that it wants again
_NEW, _OVER = (None, States.NOT_CRAWLED), (States.CRAWLED, States.ERROR)
#: in the meta of a link that is handed over: how it was scheduled
_WISH = "scheduled"


class LinkStore(Protocol):
    """What a draft asks of the store; each verb as `store.StrategyStore` has it."""

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]: ...
    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]: ...


def site_slot(url: str) -> str:
    """The slot of a request that names none: one for each site."""
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
    partitions: frozenset[int]
    clock: Callable[[], float]
    #: called after each request that is scheduled outside of a handler: of a seed
    seeded: Callable[[], None] | None = None
    links: dict[bytes, Link] = field(default_factory=dict)
    moved: dict[bytes, LinkMove] = field(default_factory=dict)
    events: list[LinkEvent] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)
    dead: dict[int, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    wishes: list[ScheduledRequest] = field(default_factory=list)  #: of the handler that runs
    beyond: int = 0  #: requests that this handler would have too deep
    unresolved: list[ScheduledRequest] = field(
        default_factory=list
    )  #: whose states have to be looked up first
    known: dict[bytes, Link | None] = field(default_factory=dict)  #: what the store said
    given: list[tuple[Request, bytes, States]] = field(
        default_factory=list
    )  #: whose states the handler was told
    own: bytes = b""  #: of the link whose own event is being handled

    @cached_property
    def domains(self) -> DomainMetadata:
        return DomainMetadata(lambda names: self.store.domains(self.rules.crawl, names))

    def now(self) -> float:
        return self.clock()

    # states

    def look_up(self, fingerprints: Iterable[bytes]) -> None:
        """Learn of those links that are not known yet, in one question."""
        wanted = {one for one in fingerprints if one not in self.known}
        if wanted:
            found = self.store.links(self.rules.crawl, wanted)
            self.known.update({one: found.get(one) for one in wanted})

    def link(self, fingerprint: bytes) -> Link | None:
        """The link as it will be after this step, as far as that is known."""
        return self.links.get(fingerprint) or self.known.get(fingerprint)

    def in_queue(self, fingerprint: bytes) -> bool:
        """Whether the link will wait in the queue after this step; False as well when it is in a batch."""
        changed, known = self.links.get(fingerprint), self.known.get(fingerprint)
        return changed.request is not None if changed else known is not None and known.waits

    def state_of(self, fingerprint: bytes) -> States:
        link = self.link(fingerprint)
        return link.state if link else States.NOT_CRAWLED

    def give(self, requests: Iterable[Request]) -> None:
        """Tell requests their states, which were looked up."""
        for request in requests:
            fingerprint = self.fingerprint_of(request)
            state = self.state_of(fingerprint)
            request.meta["state"] = state
            self.given.append((request, fingerprint, state))

    def fingerprint_of(self, request: Request) -> bytes:
        return request.fingerprint or self.rules.fingerprint(request.to_value())

    def refresh_states(self, requests: Iterable[Request]) -> None:
        every = list(requests)
        self.look_up(self.fingerprint_of(one) for one in every)
        self.give(every)

    # scheduling

    def schedule(self, request: Request, score: float, *, dont_queue: bool) -> None:
        if not 0.0 <= score <= 1.0:  # which NaN is not, either
            raise ValueError(
                f"the score of {request.url} is {score}, and has to be from 0.0 to 1.0: of a site, the request with the"
                " highest score is made first"
            )
        meta, limit = request.meta, self.rules.max_depth
        depth = int(meta.get("depth", 0))
        if limit and depth > limit and not dont_queue:
            self.beyond += 1
            return
        due, expires = (_moment(request, name) for name in ("crawl_at", "expires"))
        value = request.to_value()
        if not (request.is_plain and self.rules.has_key):
            _check(value, has_key=self.rules.has_key)
        fingerprint = request.fingerprint or self.rules.fingerprint(value)
        self.wishes.append(
            ScheduledRequest(
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
                state=None if meta.get("state") is None else States(meta["state"]),
            )
        )
        if not dont_queue:
            meta["state"] = States.QUEUED
        if self.seeded:
            self.seeded()

    def keep(self) -> None:
        """The handler has returned: what it did counts."""
        self.domains.keep(lambda site: partition_of(site) in self.partitions)
        self.count(BEYOND_DEPTH, self.beyond)
        for wish in self.wishes:
            self._place(wish)
        queued = {wish.fingerprint for wish in self.wishes if not wish.dont_queue}
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
        """The handler has raised: nothing of it counts."""
        self.domains.put_back()
        self._begin()

    def _begin(self) -> None:
        self.wishes, self.given, self.beyond, self.own = [], [], 0, b""

    def resolve(self) -> None:
        """Place the requests whose states were not known, with one look-up for all of them."""
        waiting, self.unresolved = self.unresolved, []
        self.look_up(wish.fingerprint for wish in waiting if wish.fingerprint not in self.links)
        for wish in waiting:
            self._place(wish)

    def _place(self, wish: ScheduledRequest) -> None:
        """Decide what becomes of a request that was scheduled."""
        known = wish.fingerprint in self.links or wish.fingerprint in self.known
        state = self.state_of(wish.fingerprint)
        # The link of the event that is being handled is in no batch any more, though it is QUEUED in the store.
        waits = state is States.QUEUED and (not wish.own or self.in_queue(wish.fingerprint))
        if wish.partition not in self.partitions:
            self.events.append(_handed_over(wish))
        elif not known:
            self.unresolved.append(wish)
        elif wish.dont_queue:
            (self._move if waits else self._rescore)(wish)
        elif waits and wish.state not in _NEW:
            self._move(wish)
        elif not waits and (wish.own or state is States.NOT_CRAWLED or wish.state in _OVER):
            self._queue(wish)

    def _queue(self, wish: ScheduledRequest) -> None:
        before = self.known.get(wish.fingerprint)
        slot = wish.slot or (before.slot if before else "") or self.rules.slot_of(wish.value["url"])
        self.links[wish.fingerprint] = Link(
            fingerprint=wish.fingerprint,
            url=wish.value["url"],
            state=States.QUEUED,
            score=wish.score,
            slot=slot,
            partition=wish.partition,
            depth=wish.depth,
            request=wish.value,
            due=wish.due,
            expires=wish.expires,
        )
        self.moved.pop(wish.fingerprint, None)
        self.count(SCHEDULED)

    def _move(self, wish: ScheduledRequest) -> None:
        due = None if wish.dont_queue else wish.due
        queued = self.links.get(wish.fingerprint)
        if queued:
            due = queued.due if due is None else due
            self.links[wish.fingerprint] = replace(queued, score=wish.score, due=due)
        else:
            self.moved[wish.fingerprint] = LinkMove(score=wish.score, due=due)

    def _rescore(self, wish: ScheduledRequest) -> None:
        link = self.link(wish.fingerprint)
        if link:
            self.links[wish.fingerprint] = replace(link, score=wish.score, request=None)

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
        """An event was handled, or is a dead letter: its link is in the queue again, or has ended in this state.

        Call after `keep` or `forget`.
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
            self._set_state(Request.of(event.request), event.fingerprint, state, reason)
        else:
            after = state if changed.state is States.QUEUED else changed.state
            self.links[event.fingerprint] = replace(changed, state=after, reason=reason)

    def accept(self, event: LinkEvent) -> None:
        """Schedule what another process has handed over."""
        self._place(_taken_over(event))

    def count(self, name: str, number: int = 1) -> None:
        if number:
            self.counts[name] = self.counts.get(name, 0) + number

    def step(self, process: str) -> StrategyStep:
        """The step that keeps all of this."""
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


def _moment(request: Request, name: str) -> float:
    """A time that a request's meta names, 0 for none."""
    moment = float(request.meta.get(name) or 0.0)
    if not math.isfinite(moment):
        raise ValueError(
            f"the {name} of {request.url} is {moment}, and has to be seconds since the epoch"
        )
    return moment


def _check(value: RequestValue, *, has_key: bool) -> None:
    if not has_key and (hidden := hidden_by(value)):
        raise ValueError(
            f"the request of {value['url']} has {hidden}, and there is no key to encrypt it with"
        )
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the request of {value['url']} has a value that JSON cannot carry: {error}"
        ) from None


def _handed_over(wish: ScheduledRequest) -> LinkEvent:
    """The event that tells the process of another partition of a request."""
    told = {
        "score": wish.score,
        "due": wish.due,
        "expires": wish.expires,
        "slot": wish.slot,
        "depth": wish.depth,
        "state": wish.state,
        "dont_queue": wish.dont_queue,
    }
    return LinkEvent(
        kind=EventKind.SCHEDULED,
        fingerprint=wish.fingerprint,
        partition=wish.partition,
        url=wish.value["url"],
        request=with_link_meta(wish.value, {**link_meta(wish.value), _WISH: told}),
    )


def _taken_over(event: LinkEvent) -> ScheduledRequest:
    """The request that such an event tells of."""
    told = dict(link_meta(event.request))
    wish = told.pop(_WISH)
    state = wish["state"]
    return ScheduledRequest(
        value=with_link_meta(event.request, told),
        fingerprint=event.fingerprint,
        score=wish["score"],
        due=wish["due"],
        expires=wish["expires"],
        slot=wish["slot"],
        depth=wish["depth"],
        partition=event.partition,
        dont_queue=wish["dont_queue"],
        state=None if state is None else States(state),
    )


def found_requests(found: Sequence[FoundLink], depth: int) -> list[Request]:
    """The links of a page as the strategy sees them."""
    requests = []
    for link in found:
        request = Request.of(link.request, link.fingerprint)
        request.meta["depth"] = depth
        if link.slot:
            request.meta["slot"] = link.slot
        requests.append(request)
    return requests
