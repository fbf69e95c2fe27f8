"""Keeps the units of a worker's work, with the account of which requests are done, gone or failed.

A request is open from its start in Scrapy until its page, its failure or its disappearance was
noted, and an item until it has left the pipelines.
"""

from __future__ import annotations

import logging
import re
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Container, Sequence
from contextvars import ContextVar
from itertools import count as numbers
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from scrapyd_dist.batches import PUT_OFF, PUT_OFF_REASON, FinishReason, meaning, not_made
from scrapyd_dist.followed_pages import LowestPages
from scrapyd_dist.payload import REPLACES, RequestValue
from scrapyd_dist.strategy.links import LinkEvent

from ..classifier import FoundRequests
from ..codec import PagesUsedUp, is_dropped
from ..own_meta import read_mark
from .files import PartFile

logger = logging.getLogger(__name__)
#: a part of a path that leads to a login: /login, /users/sign_in, /account/log-in.php
_LOGIN = re.compile(r"(?:^|[/_.-])(?:log|sign)[-_]?in(?:$|[/.])", re.IGNORECASE)
#: kind and reason of requests that wait until the crawl goes on
REST_PUT_OFF = (PUT_OFF, PUT_OFF_REASON)
#: 4xx that say "not now" instead of "not there"
NOT_NOW = frozenset({408, 429})
#: request meta: the `UnitMark` of a request that was leased, or followed from one
BATCH = "distributed_batch"
#: request meta: how often it was made again for want of a session
REPEATED = "distributed_repeated"
#: request meta: the number of the session in which it was made
SESSION = "distributed_session"
#: request meta that a callback may have passed on with all of its response's, and that is not for
#: the next request
OURS = (BATCH, REPEATED, SESSION)
#: Scrapy signal, with `key`: nothing of this attempt is in the process any more
attempt_over = object()
#: attempts of a worker that are remembered, the last ones
REMEMBERED = 10_000
#: pages that followed of which it is known that they are noted
LATEST = 1_000
#: the `serial` of the mark under which the project's handlers of `spider_idle` are called
IDLE = -1
#: and of one for what was begun by no page
NO_PAGE = -2
#: the mark of the page that is in work. Scrapy scrapes each page in a task of its own, and what
#: that task requests or scrapes is of this page, wherever it is made: in a callback, a pipeline, a
#: middleware.
PAGE: ContextVar[UnitMark | None] = ContextVar("distributed_page", default=None)


def is_login(response: Response) -> bool:
    """Say whether the site has redirected a request for another page to its login, by the path."""
    address = response.url.lower()
    if "log" not in address and "gn" not in address:  # as of most pages: taking it apart costs time
        return False
    meta = {} if response.request is None else response.request.meta
    redirected = [str(url) for url in meta.get("redirect_urls") or ()]
    first = redirected[0] if redirected else response.url
    return bool(_LOGIN.search(_path(response.url))) and not _LOGIN.search(_path(first))


def _path(url: str) -> str:
    return urlsplit(url).path


class RequestLedger:
    """Keeps what became of each request of a unit.

    `again`: some were made in an earlier batch, and failed there. Requests that are none of the
    unit's own, as they only followed from those, have no index, and no place here.
    """

    def __init__(self, urls: list[str], *, again: bool = False) -> None:
        self._urls = urls
        self._again = again
        #: request -> first, end, first, end, … of its items
        self._items: dict[int, array[int]] = {}
        self.located = True  #: whether the items are where they are counted, one behind the other
        self._done: set[int] = set()
        self._missed: dict[int, tuple[str, str]] = {}  #: request -> kind and reason
        self._followed = LowestPages()  #: those with items that are none of the requests
        #: serials of the latest of them: the items of a page come close to each other
        self._latest_followed = OrderedDict[int, None]()
        #: hashes of requests that Scrapy has dropped, as it had the same page already
        self._repeated: set[bytes] = set()
        self._redirected: dict[int, str] = {}  #: request -> where it has gone
        #: request -> serial of one that followed from it and failed -> why
        self._failed_followers: dict[int, dict[int, str]] = {}
        self.pages = 0
        self.items = 0
        self.logins = 0  #: pages in whose place the site has sent its login
        self.left_links = 0  #: links that rules have found, and that the worker does not follow
        self.failed = ""  #: why the first that gave no result did not, whatever it was
        #: kind and reason of requests that have not ended
        self.rest = ("unended", "nothing was heard of it")
        #: requests that are known to be under way when their process ends
        self.under_way: Container[int | None] = ()

    def done(self, index: int | None) -> None:
        """Note that the callback of a request has run to the end."""
        if index is not None and index not in self._missed:
            self._done.add(index)

    def page(self, index: int | None, response: Response) -> None:
        """Note that a request's page, or that of one that followed, goes to a callback."""
        self.pages += 1
        self.logins += is_login(response)

    def missed(
        self, index: int | None, kind: str, reason: str, error: BaseException | None = None
    ) -> None:
        """Note that a request gave no result; `error` was raised, where that is the reason."""
        self.failed = self.failed or reason
        if index is not None:
            self._done.discard(index)
            self._missed.setdefault(index, (kind, reason))

    def follower_failed(self, mark: UnitMark, reason: str) -> None:
        """Note that a request that followed gave no result.

        The items of the request that it followed from may be incomplete.
        """
        self.failed = self.failed or reason
        if mark.source is not None:
            self._failed_followers.setdefault(mark.source, {})[mark.serial] = reason

    def reopen(self, mark: UnitMark) -> None:
        """Forget what was noted of a request, as it is made again."""
        if mark.source is not None:
            failed = self._failed_followers.get(mark.source, {})
            failed.pop(mark.serial, None)
            if not failed:
                self._failed_followers.pop(mark.source, None)
        if mark.position is not None:
            self._done.discard(mark.position)
            self._missed.pop(mark.position, None)

    def put_off(self, index: int | None) -> None:
        """Note that a request, or what followed from it, was not made.

        All of it is made again when the crawl goes on.
        """
        if index is not None:
            self._done.discard(index)
            self._missed[index] = REST_PUT_OFF

    def has_ended_besides(self, indices: Container[int | None]) -> bool:
        """Say whether a request has ended that is none of these."""
        return any(index not in indices for index in (*self._done, *self._missed))

    def redirected(self, index: int | None, url: str) -> None:
        """Note that a request goes on at another address."""
        if index is not None:
            self._redirected[index] = url

    def item(self, index: int | None) -> None:
        """Count an item that was written, of this request or of one that followed from it."""
        place = self.items
        self.items += 1
        if index is None:
            return
        places = self._items.get(index)
        if places is None:
            self._items[index] = array("Q", (place, place + 1))
        elif places[-1] == place:
            places[-1] += 1
        else:
            places.extend((place, place + 1))

    def leads_to(self, mark: UnitMark, url: str) -> bool:
        """Say whether a page with an item is none of the requests, and not noted as such yet."""
        if mark.serial in self._latest_followed:
            return False
        return mark.position is None or self._urls[mark.position] != url

    def led_to(self, mark: UnitMark, page: bytes, url: str) -> None:
        """Note a page with an item that is none of the requests, by its hash."""
        self._followed.add(page, url, mark.source)
        self._latest_followed[mark.serial] = None
        if len(self._latest_followed) > LATEST:
            self._latest_followed.popitem(last=False)

    def repeats(self, index: int | None, page: bytes) -> None:
        """Note that a request was dropped, as another one of the batch has led to its page."""
        if index is not None:
            self._repeated.add(page)

    def progress(self) -> dict[str, int]:
        """Return the counts so far; a thread may call it."""
        # Copies, since a thread may call this.
        misses = list(self._missed.values())
        incomplete = set(self._failed_followers) & self._done
        missed = errors = len(incomplete)
        for kind, _ in misses:
            if kind != PUT_OFF:
                missed += 1
                errors += kind != "gone"
        return {
            "requests": len(self._urls),
            "done": len(self._done) - len(incomplete),
            "missed": missed,
            "errors": errors,
            "pages": self.pages,
            "items": self.items,
        }

    def outcome(self, index: int) -> tuple[str, str] | None:
        """Return kind and reason of a request without its whole result; None if it is done."""
        if index not in self._done:
            return self.page_outcome(index)
        reasons = self._failed_followers.get(index)
        return ("failed", next(iter(reasons.values()))) if reasons else None

    def page_outcome(self, index: int) -> tuple[str, str] | None:
        """Return the same of a request's own page alone, whatever became of those that followed."""
        if index in self._done:
            return None
        if index in self._missed:
            return self._missed[index]
        if index in self._redirected and index not in self.under_way:
            return "gone", f"redirected to {self._redirected[index]}, which was filtered"
        return self.rest

    def address(self, index: int) -> str:
        """Return where a request has gone, with redirects, as far as that is known."""
        return self._redirected.get(index, self._urls[index])

    def close(self) -> dict[str, Any]:
        """Return the account at the end; `unended` are requests that nothing was heard of."""
        kinds: dict[str, list[dict[str, str]]] = {}
        for kind in ("gone", "failed", "dead", "unended", PUT_OFF):
            kinds[kind] = []
        missed: list[list[Any]] = []
        for index, url in enumerate(self._urls):
            outcome = self.outcome(index)
            if outcome is None:
                continue
            kind, reason = outcome
            kinds[kind].append({"url": url, "reason": reason})
            if kind == "gone":
                continue
            kind_to_retry = "failed" if kind == "unended" else kind
            missed.append([index, kind_to_retry, self._places(index)])
        counts = {**self.progress(), "logins": self.logins, "left_links": self.left_links}
        report = {**counts, **kinds, "missed_requests": missed, "replaces": self._again}
        followed = self._list_followed({index for index, _, _ in missed})
        return {**report, "followed": followed} if followed else report

    def _list_followed(self, missed: Container[int | None]) -> dict[str, Any] | None:
        """Return the pages that the requests have led to, without those of `missed` requests.

        A missed request may be made in a later batch, and its items then count there.
        """
        followed = self._followed.without(missed, self._repeated)
        return followed.document if followed.count else None

    def _places(self, index: int) -> list[list[int]] | None:
        """Return where the items of a request are, in runs; None if that is not known.

        Of each run: the number of the first, from 0, and how many there are without a gap.
        """
        places = self._items.get(index, ())
        if places and not self.located:
            return None
        runs = zip(places[::2], places[1::2], strict=True)
        return [[first, end - first] for first, end in runs]


def reason_of_pipeline(error: BaseException) -> str:
    """Say in one line why a page has failed: a pipeline has raised this of an item."""
    return f"{type(error).__name__} in a pipeline: {str(error)[:200]}"


def judge_failure(failure: Failure) -> tuple[str, str]:
    """Return the kind of miss that a failure is, `gone` or `failed`, and the reason in one line.

    A request is gone if the site said so, or if the project has dropped it.
    """
    error = failure.value
    if isinstance(error, PagesUsedUp):
        return "gone", str(error)
    if isinstance(error, HttpError):
        status = error.response.status
        is_gone = 400 <= status < 500 and status not in NOT_NOW
        kind = "gone" if is_gone else "failed"
        return kind, f"HTTP {status}"
    kind = "gone" if is_dropped(error) else "failed"
    lines = str(error).strip().splitlines()
    if not lines:
        return kind, type(error).__name__
    return kind, f"{type(error).__name__}: {lines[0][:200]}"


class WorkRefused(Exception):
    """This worker cannot do its work; the text says why."""


class UnitMark(NamedTuple):
    """Says which request this is."""

    batch: int  #: 0 for pages of the worker's own
    attempt: int
    position: int | None  #: which request of the batch; None for one that followed
    serial: int  #: one for each request that was handed to Scrapy
    source: int | None = None  #: which request of the batch it is, or has followed from

    @property
    def key(self) -> tuple[int, int]:
        """The attempt that it is of."""
        return self.batch, self.attempt


def count(crawler: Crawler, name: str, number: int = 1) -> None:
    """Add to Scrapy's statistics of this worker."""
    crawler.stats.inc_value(f"distributed/{name}", number)


def mark_of(page: Any) -> UnitMark | None:
    """Return the mark of a request, of a response, or of a failure that an errback gets."""
    request = getattr(page, "request", page)
    return read_mark(request, BATCH) if isinstance(request, Request) else None


class WorkUnit:
    """Requests that belong together, with all that follows from them.

    They are those of a batch, or of pages that the worker makes on its own account: the spider's
    start requests, or a login.
    """

    def __init__(
        self, batch: int, attempt: int, finds: FoundRequests | None, ledger: RequestLedger
    ) -> None:
        self.key = (batch, attempt)
        self.ledger = ledger
        self.finds = finds  #: target requests that it led to; None where they are crawled here
        self.making = False  #: more of its requests are about to be made
        self.touched = False  #: a request of it may have left this process
        self._open: dict[int, int | None] = {}  #: serial of each open request -> its source
        self._items = 0  #: in the pipelines
        self._serials = numbers()

    def begin(self, index: int | None = None, source: int | None = None) -> UnitMark:
        """Open one more request, and return its mark.

        One that is none of the batch's own has followed from the `source`.
        """
        mark = UnitMark(*self.key, index, next(self._serials), source if index is None else index)
        self._open[mark.serial] = mark.source
        return mark

    def begin_again(self, mark: UnitMark) -> None:
        """Open a request again that has ended, as something more comes of it."""
        self._open[mark.serial] = mark.source

    def is_open(self, mark: UnitMark) -> bool:
        """Say whether neither the page nor the failure of a request was handled yet."""
        return mark.serial in self._open

    def followed(self, request: Request, source: int | None) -> Request:
        """Return a request that has followed from the `source`, as it is made."""
        return request

    def end(self, mark: UnitMark) -> None:
        """Close a request whose page or failure was handled, or that is gone."""
        self.touched = True
        self._open.pop(mark.serial, None)

    def put_off(self, mark: UnitMark) -> None:
        """Close a request that has not left, and that is made again when the crawl goes on."""
        self._open.pop(mark.serial, None)
        self.ledger.put_off(mark.source)

    def forget(self) -> None:
        """Close all requests and items."""
        self._open.clear()
        self._items = 0

    def item_in(self) -> None:
        """Note that an item goes into the pipelines."""
        self._items += 1

    def item_out(self) -> None:
        """Note that an item has left the pipelines."""
        self._items = max(0, self._items - 1)

    @property
    def requests(self) -> int:
        """How many requests are open."""
        return len(self._open)

    @property
    def busy(self) -> bool:
        """Whether a request is open, or an item in the pipelines."""
        return bool(self._open or self._items)

    @property
    def over(self) -> bool:
        """Whether nothing of it is open, and nothing more comes."""
        return not (self.making or self.busy)


class BatchUnit(WorkUnit):
    """A batch that this worker was sent or has a lease on, as far as it can be read.

    Its items go to the `part`, or (None) to the project's own feed. `size` counts its requests as
    the store has them; `row` are, in words, the arguments of the spider that is run instead of
    requests. `sent`: it came with the job, from the crawl's own scheduler.
    """

    _ledger_class: ClassVar[type[RequestLedger]] = RequestLedger

    def __init__(
        self,
        batch: int,
        attempt: int,
        values: list[RequestValue],
        part: PartFile | None,
        *,
        finds: FoundRequests | None = None,
        slot: str = "",
        size: int | None = None,
        row: str = "",
        sent: bool = False,
    ) -> None:
        again = any(REPLACES in value for value in values)
        urls = [row]
        if not row:
            urls = [value["url"] for value in values]
        super().__init__(batch, attempt, finds, self._ledger_class(urls, again=again))
        self.values = values
        self.part = part
        self.slot = slot
        self.row = row
        self.sent = sent
        self._size = len(values) if size is None else size
        self.todo = deque(range(len(values)))  #: indices of requests that Scrapy does not have yet
        self.problem = ""  #: what makes its result useless
        self.started = time.time()

    @property
    def left(self) -> int:
        """How many of its requests never had their turn; of a batch that cannot be read, all."""
        return self._size - len(self.values) + len(self.todo)

    @property
    def over(self) -> bool:
        """Whether all of its requests were made and have ended."""
        return not self.todo and super().over

    def settle_rest(self, reason: str, *, keeps_part: bool) -> bool:
        """Settle what has not ended, as the process that has the batch ends for this reason.

        `keeps_part`: what a process has made that is told to end is kept, and the rest is for
        another one. Returns whether the batch has come as far as it should: it counts as finished
        then, and what was not made has not failed.
        """
        is_closed = meaning(reason).closes_crawl and not self.row
        is_cut_short = (
            reason == FinishReason.SHUTDOWN.value and keeps_part and self._can_be_cut_short
        )
        if reason == FinishReason.GOAL.value or is_closed or is_cut_short:
            self._put_off_rest()
            return True
        if self.row and meaning(reason).asked_for:  # it did what its settings ask for
            self.ledger.done(0)
            return True
        if meaning(reason).by_settings:  # the next attempt would end there as well
            self.ledger.rest = not_made(reason)
            self.ledger.under_way = frozenset(self._open.values())
            return True
        return False

    def _put_off_rest(self) -> None:
        """Put off what has not ended, and what has led to a request that has not.

        It is made again in a new batch.
        """
        for source in self._open.values():
            self.ledger.put_off(source)
        self.ledger.rest = REST_PUT_OFF

    @property
    def _can_be_cut_short(self) -> bool:
        """Whether something is left of the batch when the rest is put off.

        Each open request must have a source, too. Else a request that ends its worker would be put
        off again and again.
        """
        sources = set(self._open.values())
        return None not in sources and self.ledger.has_ended_besides(sources)

    def unwanted(self, index: int) -> str:
        """Say why a request is not made any more; empty when it is."""
        return ""

    def made(self, request: Request, index: int) -> Request:
        """Return a request of the batch as Scrapy gets it."""
        return request

    def events(self, *, is_good: bool = True) -> Sequence[LinkEvent]:
        """Return the events of the batch for a strategy; none without one.

        A batch that is not good is made again, and has those of its requests then.
        """
        return ()

    def item(self, item: Any, mark: UnitMark) -> None:
        """Write an item to the part; one that has no JSON form is lost, and the report says so."""
        try:
            if self.part is not None:
                self.part.add(item)
        except OSError:  # the part cannot be written at all
            raise
        except Exception as error:  # noqa: BLE001 - a serializer of the project's may raise anything
            self._lose_item(mark, error)
        else:
            self.ledger.item(mark.source)

    def _lose_item(self, mark: UnitMark, error: Exception) -> None:
        """Note that an item of a page is lost; the others of the page and of the batch count."""
        reason = f"its item cannot be written as JSON: {type(error).__name__}: {str(error)[:200]}"
        logger.error(reason)
        if mark.position is not None:
            self.ledger.missed(mark.position, "failed", reason)
        elif mark.source is not None:
            self.ledger.follower_failed(mark, f"of a page to which it led, {reason}")
        else:  # no request is known that could be made again
            self.ledger.missed(None, "failed", reason)
            self.problem = self.problem or f"An item was lost: {reason}."

    def close_part(self) -> dict[str, Any] | None:
        """Make the part whole; return what the report says about it, None where there is none."""
        if self.part is None:
            return None
        try:
            return self.part.close()
        except OSError as error:
            why = f"Its items could not be kept in this node's logs: {error}."
            self.problem = self.problem or why
            return None

    def discard_part(self) -> None:
        """Leave no file of the batch's items."""
        if self.part is not None:
            self.part.discard()
