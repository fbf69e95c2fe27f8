"""Bring the rows of a worklist into a frontier.

They get fingerprints as the project's crawls have them, slots and batches. The rule it keeps:
memory stays constant; a row is in the store, or told with its line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias
from uuid import uuid4

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapyd_dist.frontier.intake import FrontierProducer
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.frontier.worklists import WorklistRow, intake_of
from scrapyd_dist.payload import RequestValue, encode
from scrapyd_dist.scheduling.batcher import SlotBatcher

from ..classifier import LARGE
from ..codec import LOCAL_META, plain_request
from ..slot_routing import SlotPlacement, SlotRouting
from .read_ahead import STEP, read_ahead

#: seconds after which what has come in is written, however little it is
MAX_AGE = 2.0
#: maximum number of bad rows that are shown one by one
SHOWN_BAD = 20
#: what a value has only for its way into the frontier
_NOT_KEPT = frozenset({"meta", "priority"})

#: makes a row into what goes into the frontier; ValueError if it cannot be that
RowReader: TypeAlias = Callable[[WorklistRow], FrontierIntake]


def argument_reader(priority: int) -> RowReader:
    """Make what makes rows into the arguments of one run each."""
    return lambda row: intake_of(row.value, priority)


def request_reader(
    settings: Settings, slotting: SlotRouting, *, key: bytes, callback: str | None, priority: int
) -> RowReader:
    """Make what makes rows into requests.

    The callback and priority are for rows without one of their own. Without a callback, the
    worker's settings name it. The Fernet key is for what must be hidden.
    """
    crawler = Crawler(Spider, settings)
    fingerprinter = build_from_crawler(
        load_object(settings["REQUEST_FINGERPRINTER_CLASS"]), crawler
    )
    placing = SlotPlacement(fingerprinter.fingerprint, slotting, salt=uuid4().hex)

    def read(row: WorklistRow) -> FrontierIntake:
        """Make a row into a request for the frontier."""
        value = dict(row.value)
        if callback:
            value = {"callback": callback, **value}
        value.setdefault("priority", priority)
        request = plain_request(value)
        name = value.get("callback") or "parse"
        addressee = slotting.addressee(request, name)
        slot, fingerprint = placing.place(request, name, addressee)
        value = _travelling(value, request)
        if addressee and addressee.callback:
            value["callback"] = addressee.callback
        if len(str(value)) > LARGE:
            encode([value], key=key)
        return FrontierIntake(
            value=value, fingerprint=fingerprint, slot=slot, priority=request.priority
        )

    return read


def _travelling(value: RequestValue, request: Request) -> RequestValue:
    """Return the value without what only says how it comes into the frontier.

    Its address is as Scrapy writes it.
    """
    travelling = {name: item for name, item in value.items() if name not in _NOT_KEPT}
    meta = {name: item for name, item in value.get("meta", {}).items() if name not in LOCAL_META}
    if meta:
        travelling["meta"] = meta
    if request.priority:
        travelling["priority"] = request.priority
    travelling["url"] = request.url
    return travelling


@dataclass(kw_only=True)
class WorklistImport:
    """Brings the rows of a worklist into a frontier, and counts what has become of them so far."""

    producer: FrontierProducer
    read: RowReader
    rows: int = 0  #: that were read
    added: int = 0  #: requests that were new
    duplicate: int = 0  #: requests that the frontier had
    bad: int = 0  #: rows that cannot be requests
    bad_rows: list[WorklistRow] = field(default_factory=list)  #: the first bad rows
    _waiting: list[FrontierIntake] = field(default_factory=list)  #: read, and not written yet
    #: when something was written last, by the monotonic clock
    _written: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._cutter = SlotBatcher(size=self.producer.size, max_age=MAX_AGE)

    def fill(self, rows: Iterable[WorklistRow]) -> Generator[WorklistImport, None, None]:
        """Add all rows to the frontier; yield this import whenever it has grown, and at the end.

        A list that comes slowly (standard input) is written as it comes. ConfigError if the list
        cannot be read so, or the frontier cannot be; StoreError if the store does not take it: what
        is counted here is in it.
        """
        self.producer.begin()
        try:
            yield self
            for batch in read_ahead(rows):
                for row in batch:
                    self._add_row(row)
                if self._write():
                    yield self
        finally:
            self._write(rest=True)
            self.producer.sign_off()
        yield self

    def _add_row(self, row: WorklistRow) -> None:
        """Let a row wait to be written, or count it as bad."""
        self.rows += 1
        reason = row.reason
        if not reason:
            try:
                request = self.read(row)
                self._waiting += self._cutter.add(request, time.monotonic()) or []
            except (ValueError, TypeError) as error:
                reason = str(error) or type(error).__name__
        if reason:
            self.bad += 1
            if len(self.bad_rows) < SHOWN_BAD:
                self.bad_rows.append(WorklistRow(row.line, reason=reason))

    def _write(self, *, rest: bool = False) -> bool:
        """Write what has waited long enough or is enough for a step, or all the rest.

        Returns whether there was something.
        """
        now = time.monotonic()
        cuts = self._cutter.cut_rest() if rest else self._cutter.due(now)
        self._waiting += chain(*cuts)
        if not rest:
            self.producer.renew()
        if not rest and len(self._waiting) < STEP and now - self._written < MAX_AGE:
            return False
        self._written = now
        if not self._waiting:
            return False
        kept = self.producer.keep(self._waiting)
        self._waiting = []
        self.added += kept.get("sealed", 0)
        self.duplicate += kept.get("duplicate", 0)
        return True
