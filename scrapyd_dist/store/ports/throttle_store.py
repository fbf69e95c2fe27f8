"""The port for the throttle: permits, rules and the state of domains."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from scrapyd_dist.throttle.permits import (
    DomainLook,
    DomainState,
    Permit,
    PermitRequest,
    Rule,
    Rules,
    SiteNews,
    TakenPermits,
)


class ThrottleStore(ABC):
    """One budget per key for all workers of this store; moments are those of its own clock."""

    @abstractmethod
    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        """Charge each ask's key for its permits, and return when each may be used; in one step.

        Of the permits of a key, never more than the limit's hits lie within any of its windows. The
        answer names what has changed since `known`, the version of the rules that the asker has;
        None: it names nothing.
        """

    @abstractmethod
    def return_permits(self, permits: Sequence[Permit]) -> None:
        """Give back permits that were not used, so that nothing left for the site.

        The budgets of pages get theirs back, too.
        """

    @abstractmethod
    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        """Apply what sites ask for, or have shown; returns the rules' version, also without news.

        `known` is as for `take_permits`.
        """

    @abstractmethod
    def rules(self) -> Rules:
        """Return all rules, and their version."""

    @abstractmethod
    def change_rules(self, changes: Mapping[str, Rule | None]) -> int:
        """Set or remove (None) the rules of these domains (or `ALL`), all or none.

        Returns the new version.
        """

    @abstractmethod
    def domain_states(self) -> list[DomainState]:
        """Return the state of every domain of which anything is known, by name."""

    @abstractmethod
    def forget_permits(self, before: float) -> None:
        """Remove domains that no worker has asked for since `before` (the store's clock).

        What no worker has asked for in an hour goes by itself, as new domains come: but for domains
        that have a delay by their robots.txt, or pages of a budget, and for all that still counts.
        """

    @abstractmethod
    def forget_pages(self, budgets: Collection[str]) -> None:
        """Forget what was counted in these budgets of pages."""
