"""Remembers the throttle's rules for jobs that begin after the store has lost them."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scrapyd_dist.store.store_thread import StoreThread
from scrapyd_dist.throttle.known_rules import KnownRules

logger = logging.getLogger(__name__)

#: seconds between two looks at the version of the rules
LOOK = 1.0


@dataclass(kw_only=True)
class RulesWatch:
    """Follows the rules of a crawl's store; what it has lost stays known here."""

    store: StoreThread
    known: KnownRules = field(default_factory=KnownRules)
    _looked_at: float | None = None  #: monotonic time of the last look
    _is_lost: bool = False  #: whether the log says that the store has lost some

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
        if answer.version == self.known.version and not self._is_lost:
            return
        rules = await self.store(db.rules)
        if rules.version > answer.version:
            return  # they have changed between the two answers: the next ones say what
        missing = self.known.missing_in(rules, answer.changed)
        if not missing:
            self.known = KnownRules.from_rules(rules)
        if missing and not self._is_lost:
            logger.error(
                "The store has lost the throttle's rules for %s: jobs that begin wait for them, or"
                " end. `sdist throttle set` sets them again.",
                ", ".join(missing),
            )
        self._is_lost = bool(missing)

    def joined_to(self, way: Mapping[str, Any]) -> dict[str, Any]:
        """Return how a job reaches the store, with what is known of the rules there.

        It is empty for a job that does not reach it.
        """
        document = self.known.document
        if not way or not document:
            return dict(way)
        return {**way, "rules": document}
