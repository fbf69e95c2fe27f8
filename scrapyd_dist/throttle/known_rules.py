"""Keeps what was known of a store's rules, which shows when the store has lost some. No IO.

Part of the worker half: imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scrapyd_dist.throttle.permits import ALL, Rules

#: domains that travel with a job: a store that has lost its rules has lost those, too
TRAVELLING = 50


@dataclass(frozen=True, kw_only=True)
class KnownRules:
    """The version of a store's rules, and the domains that had some then."""

    version: int = 0
    domains: frozenset[str] = frozenset()

    @classmethod
    def from_rules(cls, rules: Rules) -> KnownRules:
        """Return what is to be remembered of these rules."""
        return cls(version=rules.version, domains=frozenset(rules.rules))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> KnownRules:
        """Return what a job was given as `document`; nothing is known without it."""
        if not document:
            return cls()
        domains: Iterable[object] = document["domains"]
        return cls(version=int(document["version"]), domains=frozenset(map(str, domains)))

    @property
    def document(self) -> dict[str, Any]:
        """Return it as a job gets it: some domains are enough; empty when there are no rules."""
        if not self.domains:
            return {}
        domains = sorted(self.domains)[:TRAVELLING]  # the rule for all domains comes first
        return {"version": self.version, "domains": domains}

    def missing_in(self, rules: Rules, changed: Collection[str]) -> list[str]:
        """Return the domains whose rules the store has lost, by name.

        They had rules, and have none although these were not removed.

        Args:
            rules: what the store has now.
            changed: what has changed since this version, by the store; it counts only if the store
                has not fallen back to an older version.
        """
        missing = self.domains - rules.rules.keys()
        if rules.version >= self.version:
            missing = frozenset() if ALL in changed else missing - frozenset(changed)
        return sorted(missing)
