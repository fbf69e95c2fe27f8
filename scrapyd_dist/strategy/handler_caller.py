"""Calls the handlers of a strategy for events; what they do goes into the draft of a step."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import chain

from scrapyd_dist.errors import fault_of
from scrapyd_dist.strategy.interface import CrawlingStrategy, Request, Response
from scrapyd_dist.strategy.links import EventKind, LinkEvent, States, link_meta
from scrapyd_dist.strategy.round_draft import RoundDraft, found_requests

logger = logging.getLogger(__name__)
#: the count of events at which a handler has raised, in the crawl's account
FAULTS = "handler_errors"


@dataclass(kw_only=True)
class HandlerCall:
    """A handler that is to be called for an event."""

    event: LinkEvent
    request: Request
    fingerprints: list[bytes]  #: of the links whose states have to be known
    links: list[Request] = field(default_factory=list)


class HandlerCaller:
    """Calls the handlers of one strategy; an exception of one makes a dead letter of its event.

    `before_each` is called before each handler, as one may be slow.
    """

    def __init__(self, strategy: CrawlingStrategy, *, before_each: Callable[[], object]) -> None:
        self._strategy = strategy
        self._before_each = before_each
        self._uses_domains = False  #: whether a handler has used metadata of sites

    def handle(self, draft: RoundDraft, events: Collection[LinkEvent]) -> None:
        """Handle the events, with one look-up of the states of all their links."""
        self._strategy.context = draft
        calls: list[HandlerCall] = []
        for event in events:
            prepared = self._prepare(draft, event)
            if prepared:
                calls.append(prepared)
        draft.look_up(chain.from_iterable(call.fingerprints for call in calls))
        if self._uses_domains:
            sites: set[str] = set()
            for call in calls:
                sites.update(request.site for request in (call.request, *call.links))
            draft.domains.load(sites)
        for call in calls:
            self._before_each()
            self._call(draft, call)
        draft.resolve()
        self._uses_domains = self._uses_domains or draft.domains.used

    def bury(self, draft: RoundDraft, event: LinkEvent, error: Exception) -> None:
        """Make a dead letter of an event, as what its handler did cannot be kept."""
        draft.look_up([event.fingerprint])
        _fail(draft, event, error)

    def _prepare(self, draft: RoundDraft, event: LinkEvent) -> HandlerCall | None:
        """Return what has to be called for an event; None when it is done with."""
        depth = int(link_meta(event.request).get("depth", 0))
        request = Request.from_value(event.request, event.fingerprint)
        request.meta["depth"] = depth
        call = HandlerCall(event=event, request=request, fingerprints=[event.fingerprint])
        if event.kind is not EventKind.LINKS:
            return call
        try:
            links = found_requests(event.links, depth + 1)
            call.links = list(self._strategy.filter_extracted_links(request, links))
            call.fingerprints += map(draft.fingerprint_of, call.links)
            draft.keep()
        except Exception as error:  # noqa: BLE001 - of the user's code
            _fail(draft, event, error)
            return None
        if not call.links:
            draft.handled.append(event.number)
            return None
        return call

    def _call(self, draft: RoundDraft, call: HandlerCall) -> None:
        """Call the handler; what it did is kept, or nothing of it when it raises."""
        event = call.event
        try:
            if event.kind is EventKind.SCHEDULED:
                draft.accept(event)
            else:
                draft.begin_event(event)
                draft.give([call.request, *call.links])
                self._call_handler(call)
            draft.keep()
        except Exception as error:  # noqa: BLE001 - of the user's code
            _fail(draft, event, error)
            return
        state, reason = _find_end(event)
        draft.end_event(event, state, reason)

    def _call_handler(self, call: HandlerCall) -> None:
        event = call.event
        request = call.request
        if event.kind is EventKind.CRAWLED:
            page = Response(
                event.url or request.url, event.status, event.body, request, event.digest
            )
            self._strategy.page_crawled(page)
        elif event.kind is EventKind.ERROR:
            self._strategy.request_error(request, event.error)
        else:
            self._strategy.links_extracted(request, call.links)


def _fail(draft: RoundDraft, event: LinkEvent, error: Exception) -> None:
    """Make a dead letter of an event whose handler has raised."""
    url = event.url or event.request["url"]
    logger.error("Crawl %s: the strategy raised at %s", draft.rules.crawl, url, exc_info=error)
    draft.forget()
    draft.count(FAULTS)
    state, reason = _find_end(event)
    draft.end_event(event, state, reason, fault=fault_of(error))


def _find_end(event: LinkEvent) -> tuple[States, str]:
    """Return the state of a link after its own event, and the reason for the log.

    The strategy may give it another state.
    """
    if event.kind is EventKind.ERROR:
        return States.ERROR, event.error
    return States.CRAWLED, str(event.status or "")
