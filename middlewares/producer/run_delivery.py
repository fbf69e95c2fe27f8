"""Deliver what a crawl or a frontier has when its work is done: parts, feeds and merged files.

The rule it keeps: parts are delivered before any output is written, since -o adds to a file that is
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import Attempt, Miss
from scrapyd_dist.errors import DistError
from scrapyd_dist.items.delivery import Delivery, accepted_of
from scrapyd_dist.items.merging import OutputNotWritten

from .crawl_findings import login_pages
from .discovery import OwnItems
from .feed_outputs import CrawlOutputs
from .merged_feeds import FeedsNotStored, deliver_to
from .status_reporter import BaseReporter


class NotDelivered(DistError):
    """Not all items are where they shall be; they are all at home, and nothing is lost.

    `again` says, in a word, what the same command does with them.
    """

    def __init__(self, why: str, *, again: str) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Holds what was delivered, and what it is made of."""

    delivery: Delivery
    accepted: Sequence[Attempt]  #: the attempts whose items count, ordered by batch
    misses: Sequence[Miss]
    logins: Sequence[str]  #: warnings of pages in whose place the site has sent its login


@dataclass(frozen=True, kw_only=True)
class RunDelivery:
    """Delivers the items of one run, once, when all of its parts are home."""

    reporter: BaseReporter
    outputs: CrawlOutputs
    #: Scrapy's crawler, or what stands for one; None where no feed needs one
    host: Any
    key: bytes | None  #: of encrypted batches, to name the requests of dead ones
    own: OwnItems | None = None  #: the items of this process's own pages, if it has any
    feed_url: str | None = None  #: where the jobs have written their items, if not into parts
    #: names the project's package, for the classes of items, where `host` has no spider
    package: Callable[[], str] = str

    async def deliver(self, *, publishes_own: bool = True) -> Delivered:
        """Deliver parts, then write feeds and files, and note them in the summary.

        Without `publishes_own` this process's own items are merged, but not delivered as parts.
        NotDelivered if not all of that could be done.
        """
        repository = self.reporter.repository
        undelivered = await self.reporter.published(self._own_parts() if publishes_own else ())
        if undelivered:
            raise NotDelivered(undelivered, again="delivers")
        stored = await repository.for_delivery(self.key)
        try:
            delivery = await deliver_to(
                self.outputs,
                self.host,
                repository.folder,
                package=self.package(),
                own=self._own_parts(),
                own_items=0 if self.own is None else self.own.count,
                feed_url=self.feed_url,
                **stored,
            )
        except (FeedsNotStored, OutputNotWritten) as error:
            raise NotDelivered(str(error), again="writes") from error
        self.reporter.note_files(delivery)
        accepted = accepted_of(stored["attempts"])
        return Delivered(
            delivery=delivery,
            accepted=accepted,
            misses=stored["misses"],
            logins=login_pages(accepted),
        )

    def _own_parts(self) -> Sequence[Path]:
        return () if self.own is None else self.own.parts()
