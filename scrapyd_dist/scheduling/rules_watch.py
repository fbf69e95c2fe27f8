"""Remembers the throttle's rules for jobs that begin after the store has lost them."""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapyd_dist.config import write_file
from scrapyd_dist.store.store_thread import StoreThread
from scrapyd_dist.throttle.known_rules import KnownRules

logger = logging.getLogger(__name__)

#: seconds between two looks at the version of the rules
LOOK = 1.0


@dataclass(kw_only=True)
class RulesWatch:
    """Follows the rules of a crawl's store; what it has lost stays known here."""

    store: StoreThread
    #: where they are kept for the process that goes on with the crawl; None: nowhere
    file: Path | None = None
    known: KnownRules = field(init=False)
    _looked_at: float | None = None  #: monotonic time of the last look
    _has_read: bool = False  #: whether this process has read the rules
    _is_lost: bool = False  #: whether the log says that the store has lost some

    def __post_init__(self) -> None:
        self.known = KnownRules() if self.file is None else _read_known(self.file)

    async def follow(self) -> None:
        """Read the rules if they have changed, once a second at most.

        Raises:
            StoreError: the store does not answer.
        """
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < LOOK:
            return
        self._looked_at = now
        db = self.store.store
        answer = await self.store(db.tell_sites, (), self.known.version)
        is_known = self._has_read and answer.version == self.known.version
        if is_known and not self._is_lost:
            return
        rules = await self.store(db.rules)
        if rules.version > answer.version:
            return  # they have changed between the two answers: the next ones say what
        self._has_read = True
        missing = self.known.missing_in(rules, answer.changed)
        if not missing:
            self._remember(KnownRules.from_rules(rules))
        if missing and not self._is_lost:
            logger.error(
                "The store has lost the throttle's rules for %s: jobs that begin wait for them, or"
                " end. `sdist throttle set` sets them again.",
                ", ".join(missing),
            )
        self._is_lost = bool(missing)

    def _remember(self, known: KnownRules) -> None:
        self.known = known
        if self.file is not None:
            # Without the file, only a process that goes on knows less.
            with suppress(OSError):
                write_file(self.file, json.dumps(known.document).encode())

    def joined_to(self, way: Mapping[str, Any]) -> dict[str, Any]:
        """Return how a job reaches the store, with what is known of the rules there.

        It is empty for a job that does not reach it.
        """
        document = self.known.document
        if not way or not document:
            return dict(way)
        return {**way, "rules": document}


def _read_known(file: Path) -> KnownRules:
    """Return what an earlier process of the crawl has kept; nothing where that cannot be read."""
    try:
        return KnownRules.from_document(json.loads(file.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return KnownRules()
