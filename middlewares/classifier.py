"""Sorts a spider's target requests: which can go into a frontier, into which slot, and which not.

Every request that was found ends in the account, and one for another spider that none can take
becomes a miss, with the reason. Part of the worker half: imports Scrapy and the standard library
only.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.dupefilters import RFPDupeFilter
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from scrapyd_dist.batches import Miss
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.payload import BATCH_MAX_BYTES, RequestValue, TooLarge, fit, private_part_of

from .assignment import follows_strategy
from .codec import CannotTravel, add_cookies, pack_attributes, rule_of, to_value, to_value_for_other
from .engine_compat import origin_text
from .session_cookies import SessionCookies
from .slot_routing import Addressee, SlotPlacement, SlotRouting, Undeliverable
from .targets import callback_name

#: characters from which a single request is weighed before it is taken
LARGE = BATCH_MAX_BYTES // 4
#: most origins of which it is remembered whether they are other sites
MOST_ORIGINS = 10_000


class Disposition(str, Enum):
    """Says what became of a found target request.

    The values are the names of the account's counts.
    """

    OFFSITE = "offsite"
    DUPLICATE = "duplicate"
    REFUSED = "refused"  #: it cannot travel, and is not to be crawled here either
    LOCAL = "local"  #: the process that found it crawls it itself
    SEALED = "sealed"  #: it goes to the fleet


def count_found(crawler: Crawler, counts: Mapping[str, int]) -> None:
    """Put the account of found requests, as the store has kept it, into Scrapy's statistics."""
    for name, number in counts.items():
        stat = "added" if name == Disposition.SEALED.value else name
        crawler.stats.inc_value("distributed/requests_found", number)
        crawler.stats.inc_value(f"distributed/requests_{stat}", number)


def has_own_filter(settings: BaseSettings) -> bool:
    """Tell whether the project's filter of duplicates judges by more than a fingerprint."""
    return load_object(settings["DUPEFILTER_CLASS"]) is not RFPDupeFilter


class OffsiteFilter:
    """Tells which requests Scrapy filters as ones to another site.

    It does so without a word: no signal, no failure. Ask once the crawler has its engine.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._domains: list[str] = []  #: those of the spider by which all below was judged
        #: origin, as it is written -> whether Scrapy filters requests to it
        self._dropped: dict[str, bool] = {}

    @cached_property
    def _middleware(self) -> OffsiteMiddleware | None:
        return self._crawler.get_downloader_middleware(OffsiteMiddleware)

    def drops(self, request: Request) -> bool:
        """Tell whether Scrapy filters this request."""
        if request.dont_filter or request.meta.get("allow_offsite") or self._middleware is None:
            return False
        spider = self._crawler.spider
        assert spider
        # A class of the project's own may judge by more than the site.
        if type(self._middleware) is not OffsiteMiddleware:
            return not self._middleware.should_follow(request, spider)
        domains = list(getattr(spider, "allowed_domains", None) or ())
        if domains != self._domains or len(self._dropped) > MOST_ORIGINS:
            self._domains = domains
            self._dropped.clear()
        origin = origin_text(request.url)
        if origin not in self._dropped:
            self._dropped[origin] = not self._middleware.should_follow(request, spider)
        return self._dropped[origin]


@dataclass(kw_only=True, eq=False)
class FrontierFeed:
    """Sorts found requests for one process, and keeps the account of them."""

    crawler: Crawler  #: its fingerprinter and its offsite middleware judge
    spider: Spider = field(init=False)  #: whose requests they are
    key: bytes | None  #: the key that the nodes have, for what must be hidden
    #: DISTRIBUTED_UNSENDABLE: whether what cannot travel is crawled here, or refused
    stay: str = "local"
    #: where requests go; None when batches are sent to nodes: there are no slots
    slotting: SlotRouting | None = None
    #: makes requests with dont_filter differ from those that other processes found; None: they
    #: differ from none
    salt: str | None = ""
    #: since they were last taken; SEALED counts with its batch
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  #: why requests stayed
    callbacks: set[str] = field(default_factory=set)  #: names of those of the found requests
    #: why those for other spiders go nowhere
    undelivered: Counter[str] = field(default_factory=Counter)
    _misses: list[Miss] = field(default_factory=list)

    def __post_init__(self) -> None:
        crawler = self.crawler
        assert crawler.spider
        self.spider = crawler.spider

        def fingerprint(request: Request) -> bytes:
            # The crawler has no fingerprinter yet.
            return crawler.request_fingerprinter.fingerprint(request)

        self._placing = SlotPlacement(fingerprint, self.slotting, salt=self.salt)
        self._offsite = OffsiteFilter(crawler)
        self._cookies = SessionCookies(crawler)
        self._feeds_strategy = follows_strategy(crawler.settings)

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        """Return what became of a request that was found before, and None for a new one.

        From now on it was found before.
        """
        raise NotImplementedError

    def _is_seen(self, request: Request) -> bool | None:
        """Ask the project's own filter of duplicates; None where the fingerprint decides."""
        return None

    def sort(self, request: Request, where: int = 0) -> tuple[Disposition, FrontierIntake | None]:
        """Judge one found request, and return it as it goes to the fleet, if it does.

        `where` is the shard that it was found in.
        """
        try:
            return self._sort(request, where)
        except Undeliverable as why:
            self.undelivered[str(why)] += 1
            self._misses.append(Miss(url=request.url, kind="dead", reason=str(why)))
            return self._count(Disposition.REFUSED), None
        except CannotTravel as why:
            self.reasons[str(why)] += 1
            if self.stay == "refuse":
                return self._count(Disposition.REFUSED), None
            return self._count(Disposition.LOCAL), None

    def _sort(self, request: Request, where: int) -> tuple[Disposition, FrontierIntake | None]:
        name = callback_name(request, self.spider)
        to = self._addressee(request, name)
        # A request for another spider is judged there.
        if to is None and self._offsite.drops(request):
            return self._count(Disposition.OFFSITE), None
        is_seen = self._is_seen(request)
        if is_seen:
            return self._count(Disposition.DUPLICATE), None
        self.callbacks.add(name)
        is_new = is_seen is False
        try:
            slot, fingerprint = self._placing.place(request, name, to, where, is_new=is_new)
            known = self._is_known(fingerprint)
            if known is None:
                return Disposition.SEALED, self._make_intake(request, to, slot, fingerprint)
        except CannotTravel as why:
            if to is not None:  # nothing here could do with it what the other spider would
                raise Undeliverable(f"it is for the spider {to.spider}, and {why}") from why
            raise
        if known is Disposition.SEALED:  # it is in the account already
            return known, None
        return self._count(known), None

    def _count(self, disposition: Disposition) -> Disposition:
        """Count what became of a request in the account."""
        self.counts[disposition.value] += 1
        return disposition

    def _addressee(self, request: Request, callback: str) -> Addressee | None:
        """Return the other spider that this request, with a callback of this name, is for.

        Raises:
            Undeliverable: there is none such.
        """
        if self.slotting is not None:
            return self.slotting.addressee(request, callback)
        addressee = Addressee.named_by(request)
        if addressee is None:
            return None
        whom = addressee.spider
        if addressee.project:
            whom = f"{addressee.spider} of the project {addressee.project}"
        raise Undeliverable(
            f"it is for another spider ({whom}), and only a crawl whose workers lease gives it to"
            " that one"
        )

    def _make_intake(
        self, request: Request, to: Addressee | None, slot: str, fingerprint: bytes
    ) -> FrontierIntake:
        """Return the request as it goes to the fleet.

        Raises:
            CannotTravel: it cannot go there.
        """
        value = self._pack(request, to)
        if self.slotting is not None and self.slotting.attributes:
            value |= pack_attributes(self.spider, self.slotting.attributes)
        hidden = None if self.key else private_part_of(value)
        if hidden:
            raise CannotTravel(
                f"it has {hidden}, and the code on the nodes carries no key to read it with"
            )
        if len(str(value)) > LARGE:
            try:
                fit([value], key=self.key)
            except TooLarge as error:
                raise CannotTravel(f"it is too large for a job's settings ({error})") from error
        return FrontierIntake(
            value=value, fingerprint=fingerprint, slot=slot, priority=request.priority
        )

    def _pack(self, request: Request, to: Addressee | None) -> RequestValue:
        if to is None:
            value = to_value(request, self.spider)
            # A strategy's link is asked for at any time, again and again: no session lasts for
            # that.
            if self._feeds_strategy:
                return value
            cookies = self._cookies.for_request(request)
            if not cookies:
                return value
            return add_cookies(value, request, cookies)
        callback = None
        if request.callback is not None or rule_of(request, self.spider) is not None:
            callback = callback_name(request, self.spider)
        return to_value_for_other(request, self.spider, to.callback or callback)

    def take_counts(self) -> dict[str, int]:
        """Return the account since the last call."""
        counts = dict(self.counts)
        self.counts = Counter()
        return counts

    def take_misses(self) -> list[Miss]:
        """Return the requests for other spiders that none can take, since the last call."""
        misses = self._misses
        self._misses = []
        return misses


@dataclass(kw_only=True, eq=False)
class FoundRequests(FrontierFeed):
    """Keeps the target requests that one leased batch led to.

    With its ack they go into the frontier.
    """

    found: list[FrontierIntake] = field(default_factory=list)
    _fingerprints: set[bytes] = field(default_factory=set)
    #: those that no request of the batch led to
    _misses_of_no_page: list[Miss] = field(default_factory=list)

    def keep(self, request: Request, source: int | None = None) -> Disposition:
        """Keep a request that goes to the frontier; LOCAL is for the worker to crawl itself.

        `source` is the request of the batch that has led to it.
        """
        disposition, found = self._sort_from(request, source)
        if found is not None:
            self.found.append(found)
        return disposition

    def _sort_from(
        self, request: Request, source: int | None
    ) -> tuple[Disposition, FrontierIntake | None]:
        """Sort a request that the request `source` led to; keep the misses of no source apart."""
        known = len(self._misses)
        sorted_request = self.sort(request)
        if source is None:
            self._misses_of_no_page.extend(self._misses[known:])
            del self._misses[known:]
        return sorted_request

    def take_misses(self) -> list[Miss]:
        """Return all requests for other spiders that none can take, since the last call."""
        return [*super().take_misses(), *self.take_misses_of_no_page()]

    def take_misses_of_no_page(self) -> list[Miss]:
        """Return those that no request of the batch led to.

        When the batch is made again, nothing brings them again.
        """
        misses = self._misses_of_no_page
        self._misses_of_no_page = []
        return misses

    def give_to(self, other: "FoundRequests") -> bool:
        """Let another batch have all that was found, as led to by no request of it.

        Returns whether that was any request.
        """
        has_found = bool(self.found)
        other.found.extend(self.found)
        other.counts.update(self.take_counts())
        misses = self.take_misses()
        other._misses_of_no_page.extend(misses)  # noqa: SLF001 - one of the same class
        self.found.clear()
        return has_found

    def forget_known(self) -> None:
        """Remember no more what was found before: it may be found again."""
        self._fingerprints.clear()

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        if fingerprint in self._fingerprints:
            return Disposition.DUPLICATE
        self._fingerprints.add(fingerprint)
        return None
