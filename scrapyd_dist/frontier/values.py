"""The crawl frontier as values: slots, what is added, leased and counted. Which slot a request belongs to: `slotting`.

A frontier is a row of `Crawl` with its batches, like any crawl; its slots are nothing but names on its batches,
made by the first write. Part of the worker half: imports the standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.batches import Batch

#: what a slot may be called. `@spider` and `@project:spider` are slots of work for another spider
LONGEST_SLOT = 80
SLOT_NAME = re.compile(rf"[A-Za-z0-9_.@:-]{{0,{LONGEST_SLOT}}}")
#: priorities lie between this and its negative: beyond it the store could not tell them apart
MAX_PRIORITY = (1 << 53) - 1
#: what the slots of other spiders begin with
OTHER_SPIDER = "@"
#: how workers share the slots: the oldest batch first, wherever it lies; the slots in turn, each batch to anybody; or
#: in turn, and what a worker has something of is its own until that has ended
UNFAIR, SPREAD, BY_DOMAIN = FAIR = ("", "spread", "by-domain")


class SeenBefore(Exception):
    """Some of these requests are in the frontier already; nothing was kept. `prints` are their fingerprints."""

    def __init__(self, prints: frozenset[bytes]) -> None:
        super().__init__(f"{len(prints)} requests are in the frontier already")
        self.prints = prints


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A batch that is about to be added to a frontier."""

    payload: Mapping[str, str]  #: the settings that carry its requests
    size: int  #: requests
    slot: str = ""
    priority: int = 0
    fingerprints: tuple[bytes, ...] = ()  #: one for each request that must not come twice


@dataclass(frozen=True, kw_only=True)
class Lessee:
    """The worker that leases batches."""

    job: str  #: its job on the node; also the holder of its leases
    node: str  #: the node's name
    url: str  #: the node's base address, without secrets


@dataclass(frozen=True, kw_only=True)
class Leased:
    """A batch that a worker has now, until its lease runs out."""

    batch: Batch
    attempt: int
    payload: Mapping[str, str]
    fault: str = ""  #: why nothing of its payload is believed (it is empty then), a paragraph


@dataclass(frozen=True, kw_only=True)
class SlotCount:
    """What is in one slot: state of batches -> how many batches, and requests in them."""

    slot: str
    batches: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Requests that nobody has leased."""
        return self.requests.get("sealed", 0) + self.requests.get("failed", 0)


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """How far a frontier is; batches."""

    waiting: int
    leased: int  #: whose lease is good
    expired: int  #: whose lease has run out, and which nobody has taken back yet
    acked: int  #: whose part is on its way home
    producers: tuple[str, ...] = ()  #: that may still add something
    lost: tuple[str, ...] = ()  #: producers that neither signed off nor were heard of in time
    standing: bool = False

    @property
    def drained(self) -> bool:
        """Nothing to do now for any worker, and nothing is about to come back."""
        return not (self.waiting or self.leased)

    @property
    def finished(self) -> bool:
        """Nothing will come any more."""
        return self._over and not self.lost

    @property
    def incomplete(self) -> bool:
        """Nothing will come any more, though more should have: who was finding it is lost."""
        return self._over and bool(self.lost)

    @property
    def _over(self) -> bool:
        return self.drained and not (self.expired or self.acked or self.producers or self.standing)


def check_slot_name(slot: str) -> str:
    """The name itself, or `ConfigError` when it cannot be a slot's name."""
    if not SLOT_NAME.fullmatch(slot):
        raise ConfigError(
            f"{slot!r} cannot name a slot: it may only have letters, digits and the characters _ . @ : - , 80 at most."
        )
    return slot
