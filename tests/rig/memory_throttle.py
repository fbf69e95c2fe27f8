"""The port for the throttle, in memory; moments are microseconds."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from scrapyd_dist.store.ports.throttle_rows import (
    CHANGES,
    IDLE_STAYS,
    answer_of,
    changed_since,
    domain_of,
    micros,
    rule_text,
    rules_of,
    state_of,
)
from scrapyd_dist.store.ports.throttle_store import ThrottleStore
from scrapyd_dist.throttle.domain_status import terms_of, with_news
from scrapyd_dist.throttle.permits import (
    ALL,
    SECOND,
    DomainLook,
    DomainState,
    Permit,
    PermitReply,
    PermitRequest,
    Rule,
    Rules,
    SiteNews,
    TakenPermits,
    WindowTerms,
)

from .memory_data import DomainData, MemoryPort


class MemoryThrottle(MemoryPort, ThrottleStore):
    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        with self._connection.step() as data:
            now, rules = time.time_ns() // 1000, self.rules().rules
            answers = tuple(self._answer(request, rules, now) for request in asks)
            changed = changed_since(known, data.version, self._changes(known))
            return TakenPermits(
                now=now / SECOND, version=data.version, changed=changed, answers=answers
            )

    def _changes(self, known: int | None) -> list[tuple[int, str]]:
        return [
            one for one in self._connection.data.changes if known is not None and one[0] > known
        ]

    def _answer(self, request: PermitRequest, rules: Mapping[str, Rule], now: int) -> PermitReply:
        domain = self._connection.data.domains.get(request.domain, DomainData())
        terms = terms_of(request, rules, domain.standing, now)
        if isinstance(terms, PermitReply):
            return terms
        if request.domain not in self._connection.data.domains:
            self._forget(
                now - IDLE_STAYS, now, lambda one: not one.pages and not one.standing.delay
            )
        self._connection.data.domains[request.domain] = domain
        domain.asked = now
        count, used = request.count, 0
        if request.pages is not None:
            count, used = domain.take_pages(request.budget, count, request.pages)
        given = domain.grant(request.key, count, terms, now) if count else []
        return answer_of(request, given, used)

    def return_permits(self, permits: Sequence[Permit]) -> None:
        with self._connection.step() as data:
            now, freed = time.time_ns() // 1000, set()
            for permit in permits:
                domain = data.domains.get(domain_of(permit.key), DomainData())
                terms, own = domain.keys.get(permit.key, (WindowTerms(), []))
                at = micros(permit.at)
                if at not in own:
                    continue
                own.remove(at)
                if permit.page_of in domain.pages:
                    domain.pages[permit.page_of] -= 1
                if own and terms.is_freed_by(at, own[-1], now):
                    freed.add(domain_of(permit.key))
            self._note(freed)

    def _note(self, domains: Collection[str]) -> None:
        data = self._connection.data
        if domains:
            data.version += 1
            data.changes += [
                (data.version, one) for one in (domains if len(domains) <= CHANGES else (ALL,))
            ]
            oldest = sorted(version for version, _ in data.changes)[-CHANGES - 1 : -CHANGES]
            data.changes = [
                one
                for one in data.changes
                if one[0] not in oldest and one[0] > max(oldest, default=0)
            ]

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        with self._connection.step() as data:
            now, slower = time.time_ns() // 1000, set()
            for site in news:
                old = data.domains.get(site.domain, DomainData(asked=now))
                standing, is_slower = with_news(old.standing, site, now)
                if standing != old.standing:
                    data.domains[site.domain] = old
                    old.standing = standing
                if is_slower:
                    slower.add(site.domain)
            self._note(slower)
            changed = changed_since(known, data.version, self._changes(known))
            return DomainLook(version=data.version, changed=changed)

    def rules(self) -> Rules:
        data = self._connection.data
        return Rules(version=data.version, rules=rules_of(self._door, list(data.rules.items())))

    def change_rules(self, changes: Mapping[str, Rule | None]) -> int:
        texts = {domain: rule_text(rule) for domain, rule in changes.items()}
        with self._connection.step() as data:
            changed = {domain for domain, text in texts.items() if text != data.rules.get(domain)}
            data.rules |= {domain: texts[domain] or "" for domain in changed}
            data.rules = {domain: text for domain, text in data.rules.items() if text}
            self._note(changed)
            return data.version

    def domain_states(self) -> list[DomainState]:
        with self._connection.step() as data:
            now = time.time_ns() // 1000
            return [self._state(name, one, now) for name, one in sorted(data.domains.items())]

    def _state(self, name: str, domain: DomainData, now: int) -> DomainState:
        keys, latest = {}, 0
        for key, (terms, grants) in sorted(domain.keys.items()):
            keys[key] = sum(now - max(terms.window, terms.gap) < at <= now for at in grants)
            latest = max(latest, *grants[-1:], 0)
        return state_of(
            name, domain.standing, now, keys=keys, latest=latest, pages=dict(domain.pages)
        )

    def forget_permits(self, before: float) -> None:
        with self._connection.step():
            self._forget(micros(before), time.time_ns() // 1000, lambda _: True)

    def _forget(self, before: int, now: int, may_go: Callable[[DomainData], bool]) -> None:
        for name, one in list(self._connection.data.domains.items()):
            if one.asked < before and not one.counts_at(now) and may_go(one):
                del self._connection.data.domains[name]

    def forget_pages(self, budgets: Collection[str]) -> None:
        with self._connection.step() as data:
            for one in data.domains.values():
                one.pages = {name: used for name, used in one.pages.items() if name not in budgets}
