"""From a spider's target request to one that can go into a frontier: offsite, seen before, can it travel, which slot.

The rule it keeps: every request that was found ends in the account, and one for another spider that none can take
becomes a miss, with the reason. Part of the worker half: imports Scrapy and the standard library only.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from scrapy import Request, Spider
from scrapy.crawler import Crawler

from scrapyd_dist.batches import Miss
from scrapyd_dist.frontier.intake import FrontierIntake
from scrapyd_dist.payload import BATCH_MAX_BYTES, RequestValue, TooLarge, fit, hidden_by

from .assignment import follows_strategy
from .codec import CannotTravel, add_cookies, pack_attributes, rule_of, to_value, to_value_for_other
from .engine_compat import is_offsite
from .session_cookies import session_cookies
from .slot_routing import Addressee, SlotPlacement, SlotRouting, Undeliverable
from .targets import callback_name

#: characters from which a single request is weighed before it is taken
LARGE = BATCH_MAX_BYTES // 4


class Disposition(str, Enum):
    """What became of a found target request. The values are the names of the account's counts."""

    OFFSITE = "offsite"
    DUPLICATE = "duplicate"
    REFUSED = "refused"  #: it cannot travel, and is not to be crawled here either
    LOCAL = "local"  #: the process that found it crawls it itself
    SEALED = "sealed"  #: it goes to the fleet


def count_found(crawler: Crawler, counts: Mapping[str, int]) -> None:
    """Put the account of found requests, as the store has kept it, into Scrapy's statistics."""
    for name, number in counts.items():
        for stat in ("found", "added" if name == Disposition.SEALED.value else name):
            crawler.stats.inc_value(f"distributed/requests_{stat}", number)


@dataclass(kw_only=True, eq=False)
class FrontierFeed:
    """Sorts found requests for one process, and keeps the account of them."""

    crawler: Crawler  #: its fingerprinter and its offsite middleware judge
    spider: Spider = field(init=False)  #: whose requests they are
    key: bytes | None  #: the key that the nodes have, for what must be hidden
    stay: str = (
        "local"  #: DISTRIBUTED_UNSENDABLE: whether what cannot travel is crawled here, or refused
    )
    slotting: SlotRouting | None = (
        None  #: where requests go; None when batches are sent to nodes: there are no slots
    )
    #: makes requests with dont_filter differ from those that other processes found; None: they differ from none
    salt: str | None = ""
    counts: Counter[str] = field(
        default_factory=Counter
    )  #: since they were last taken; SEALED counts with its batch
    reasons: Counter[str] = field(default_factory=Counter)  #: why requests stayed
    callbacks: set[str] = field(default_factory=set)  #: names of those of the found requests
    undelivered: Counter[str] = field(
        default_factory=Counter
    )  #: why those for other spiders go nowhere
    _misses: list[Miss] = field(default_factory=list)

    def __post_init__(self) -> None:
        crawler = self.crawler
        assert crawler.spider
        self.spider = crawler.spider
        self._placing = SlotPlacement(
            lambda request: crawler.request_fingerprinter.fingerprint(request),
            self.slotting,
            salt=self.salt,
        )

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        """The fate of a request that was found before; from now on it was."""
        raise NotImplementedError

    def _is_seen(self, request: Request) -> bool | None:
        """What the project's own filter of duplicates says of a request; None where its fingerprint decides."""
        return None

    def sort(self, request: Request, where: int = 0) -> tuple[Disposition, FrontierIntake | None]:
        """The fate of one found request, and the request as it goes to the fleet, when it does."""
        try:
            return self._sort(request, where)
        except Undeliverable as why:
            self.undelivered[str(why)] += 1
            self._misses.append(Miss(url=request.url, kind="dead", reason=str(why)))
            return self._fate(Disposition.REFUSED), None
        except CannotTravel as why:
            self.reasons[str(why)] += 1
            return self._fate(
                Disposition.REFUSED if self.stay == "refuse" else Disposition.LOCAL
            ), None

    def _sort(self, request: Request, where: int) -> tuple[Disposition, FrontierIntake | None]:
        to = self._addressee(request)
        if to is None and is_offsite(
            self.crawler, request
        ):  # one for another spider is judged there
            return self._fate(Disposition.OFFSITE), None
        is_seen = self._is_seen(request)
        if is_seen:
            return self._fate(Disposition.DUPLICATE), None
        name, is_new = callback_name(request, self.spider), is_seen is False
        self.callbacks.add(name)
        try:
            slot, fingerprint = self._placing.place(request, name, to, where, is_new=is_new)
            known = self._is_known(fingerprint)
            if known is None:
                return Disposition.SEALED, self._found(request, to, slot, fingerprint)
        except CannotTravel as why:
            if to is not None:  # nothing here could do with it what the other spider would
                raise Undeliverable(f"it is for the spider {to.spider}, and {why}") from why
            raise
        # What was sealed before is in the account already.
        return (known if known is Disposition.SEALED else self._fate(known)), None

    def _fate(self, fate: Disposition) -> Disposition:
        self.counts[fate.value] += 1
        return fate

    def _addressee(self, request: Request) -> Addressee | None:
        """The other spider that this request is for; Undeliverable if there is none such."""
        if self.slotting is not None:
            return self.slotting.addressee(request, callback_name(request, self.spider))
        if meant := Addressee.of(request):
            whom = (
                f"{meant.spider} of the project {meant.project}" if meant.project else meant.spider
            )
            raise Undeliverable(
                f"it is for another spider ({whom}), and only a crawl whose workers lease gives it to that one"
            )
        return None

    def _found(
        self, request: Request, to: Addressee | None, slot: str, fingerprint: bytes
    ) -> FrontierIntake:
        """The request as it goes to the fleet; CannotTravel if it cannot."""
        value = self._value(request, to)
        if self.slotting is not None:
            value |= pack_attributes(self.spider, self.slotting.attributes)
        hidden = None if self.key else hidden_by(value)
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

    def _value(self, request: Request, to: Addressee | None) -> RequestValue:
        if to is None:
            value = to_value(request, self.spider)
            # A strategy's link is asked for at any time, again and again: no session lasts for that.
            lasts = not follows_strategy(self.crawler.settings)
            cookies = session_cookies(self.crawler, request) if lasts else []
            return add_cookies(value, request, cookies) if cookies else value
        named = request.callback is not None or rule_of(request, self.spider) is not None
        sent = callback_name(request, self.spider) if named else None
        return to_value_for_other(request, self.spider, to.callback or sent)

    def take_counts(self) -> dict[str, int]:
        """The account since the last call."""
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def take_misses(self) -> list[Miss]:
        """Requests for other spiders that none can take, since the last call."""
        misses, self._misses = self._misses, []
        return misses


@dataclass(kw_only=True, eq=False)
class FoundRequests(FrontierFeed):
    """The target requests that one leased batch led to, until they go into the frontier with its ack."""

    found: list[FrontierIntake] = field(default_factory=list)
    _prints: set[bytes] = field(default_factory=set)

    def take(self, request: Request, source: int | None = None) -> Disposition:
        """Keep it for the frontier, if that is its fate; LOCAL is for the worker to crawl itself.

        `source` is the request of the batch that has led to it.
        """
        fate, found = self.sort(request)
        if found is not None:
            self.found.append(found)
        return fate

    def _is_known(self, fingerprint: bytes) -> Disposition | None:
        if fingerprint in self._prints:
            return Disposition.DUPLICATE
        self._prints.add(fingerprint)
        return None
