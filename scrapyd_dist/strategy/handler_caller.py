"""Calls the handlers of a strategy for events; what they do goes into the draft of a step."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

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
        self._strategy, self._before_each = strategy, before_each
        self._uses_domains = False

    def handle(self, draft: RoundDraft, events: Collection[LinkEvent]) -> None:
        """Handle the events, with one look-up of the states of all their links."""
        self._strategy.context = draft
        calls = [call for event in events if (call := self._prepared(draft, event))]
        draft.look_up(print_ for call in calls for print_ in call.fingerprints)
        if self._uses_domains:
            draft.domains.load({one.site for call in calls for one in (call.request, *call.links)})
        for call in calls:
            self._before_each()
            self._call(draft, call)
        draft.resolve()
        self._uses_domains = self._uses_domains or draft.domains.used

    def bury(self, draft: RoundDraft, event: LinkEvent, error: Exception) -> None:
        """Make a dead letter of an event, as what its handler did cannot be kept."""
        draft.look_up([event.fingerprint])
        _fail(draft, event, error)

    def _prepared(self, draft: RoundDraft, event: LinkEvent) -> HandlerCall | None:
        """What has to be called for an event; None when it is done with."""
        depth = int(link_meta(event.request).get("depth", 0))
        request = Request.of(event.request, event.fingerprint)
        request.meta["depth"] = depth
        call = HandlerCall(event=event, request=request, fingerprints=[event.fingerprint])
        if event.kind is EventKind.LINKS:
            try:
                links = found_requests(event.links, depth + 1)
                call.links = list(self._strategy.filter_extracted_links(request, links))
                call.fingerprints += map(draft.fingerprint_of, call.links)
                draft.keep()
            except Exception as error:
                _fail(draft, event, error)
                return None
            if not call.links:
                draft.handled.append(event.number)
                return None
        return call

    def _call(self, draft: RoundDraft, call: HandlerCall) -> None:
        event, request = call.event, call.request
        try:
            if event.kind is EventKind.SCHEDULED:
                draft.accept(event)
            else:
                draft.own = b"" if event.kind is EventKind.LINKS else event.fingerprint
                draft.give([request, *call.links])
                self._tell(call)
            draft.keep()
        except Exception as error:
            _fail(draft, event, error)
            return
        draft.end_event(event, *_end_of(event))

    def _tell(self, call: HandlerCall) -> None:
        event, request = call.event, call.request
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
    """A handler has raised: its event becomes a dead letter."""
    where = event.url or event.request["url"]
    logger.error("Crawl %s: the strategy raised at %s", draft.rules.crawl, where, exc_info=error)
    draft.forget()
    draft.count(FAULTS)
    draft.end_event(event, *_end_of(event), fault=fault_of(error))


def _end_of(event: LinkEvent) -> tuple[States, str]:
    """The state of a link after its own event, unless the strategy has another one, and the reason for the log."""
    return (
        (States.ERROR, event.error)
        if event.kind is EventKind.ERROR
        else (States.CRAWLED, str(event.status or ""))
    )
