"""The SQLite store's verbs about the throttle. Its clock is this machine's, read while no other process can write."""

import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace

from scrapyd_dist.store.base import ThrottleStore
from scrapyd_dist.store.sqlite_file import SqlitePort
from scrapyd_dist.store.throttle_rows import (
    CHANGES,
    answer_of,
    changed_since,
    domain_of,
    micros,
    rule_text,
    rules_of,
    state_of,
)
from scrapyd_dist.throttle.domain_status import DomainRules, heeded, terms_of
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
    moments,
)

#: a domain is said to have been asked for once in such a time: not each time, since every write costs
_ASKED = 60 * SECOND
#: what has not been asked for in such a time goes by itself, unless something of it counts still
_STAYS = 3600 * SECOND
#: domains that are looked at for that with each new one
_LOOKED_AT = 4
#: permits that bound others still, also where a limit gets harder
_COUNTS = (
    "SELECT 1 FROM throttle_keys JOIN grants ON grants.key = number"
    " WHERE domain = throttle_domains.domain AND at > :now - 2 * max(window, throttle_keys.gap)"
)
_FORGET = f"DELETE FROM throttle_domains WHERE asked < :before AND rest_until <= :now AND NOT EXISTS ({_COUNTS})"


class SqliteThrottle(SqlitePort, ThrottleStore):
    _rules = Rules(version=-1, rules={})  #: those that were read last
    _looked: str | None = None  #: the domain behind which others are looked at next

    def _now(self) -> int:
        return time.time_ns() // 1000

    # permits

    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        with self._file.step():
            now, rules = self._now(), self.rules()
            answers = tuple(self._answer(ask, rules.rules, now) for ask in asks)
            changed = self._changed(known, rules.version)
        return TakenPermits(
            now=now / SECOND, version=rules.version, changed=changed, answers=answers
        )

    def _answer(self, ask: PermitRequest, rules: Mapping[str, Rule], now: int) -> PermitReply:
        standing, asked = self._standing(ask.domain)
        terms = terms_of(ask, rules, standing, now)
        if isinstance(terms, PermitReply):
            return terms
        if asked < now - _ASKED:
            self._asked(ask.domain, now)
            self._forget_few(ask.domain, now)
        count, used = ask.count, 0
        if ask.pages is not None:
            used = (
                self._value(
                    "SELECT used FROM pages WHERE domain = ? AND budget = ?", ask.domain, ask.budget
                )
                or 0
            )
            count = max(0, min(count, ask.pages - used))
            used += count
            if count:
                query = "INSERT INTO pages VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET used = used + excluded.used"
                self._db.execute(query, (ask.domain, ask.budget, count))
        return answer_of(
            ask, self._take(ask, count, max(now, standing.rest_until), terms, now), used
        )

    def _take(
        self, ask: PermitRequest, count: int, start: int, terms: WindowTerms, now: int
    ) -> list[int]:
        if not count:
            return []
        key, full = self._key(ask, terms, now)
        start = max(start, full)
        near = self._binding(key, count, start, terms)
        own = self._grants(
            "SELECT at FROM grants WHERE key = ? AND at > ? ORDER BY at", key, start - near.reach
        )
        given = moments(count, start, own, near, self._others(ask, start, terms))
        self._db.executemany("INSERT INTO grants VALUES (?, ?)", [(key, at) for at in given])
        self._db.execute(
            "UPDATE throttle_keys SET full = ?, seen = ? WHERE number = ?", (given[-1], now, key)
        )
        self._purge(key, now - terms.memory, terms.memory)
        return given

    def _binding(self, key: int, count: int, start: int, terms: WindowTerms) -> WindowTerms:
        """The terms without the window, where so many more fit into any: its grants need not be read then."""
        if count > terms.hits:
            return terms
        query = "SELECT at FROM grants WHERE key = ? ORDER BY at DESC LIMIT 1 OFFSET ?"
        first = self._value(query, key, terms.hits - count)
        return replace(terms, hits=0) if first is None or first <= start - terms.window else terms

    def _others(self, ask: PermitRequest, start: int, terms: WindowTerms) -> list[int]:
        """Grants of the domain's other keys that may be too near; none, where only limits of keys count."""
        keys = "SELECT number FROM throttle_keys WHERE domain = ? AND key != ?"
        query = f"SELECT at FROM grants WHERE key IN ({keys}) AND at > ? ORDER BY at"
        return self._grants(query, ask.domain, ask.key, start - terms.apart) if terms.apart else []

    def _grants(self, query: str, *values: int | str) -> list[int]:
        return [row[0] for row in self._db.execute(query, values)]

    def _key(self, ask: PermitRequest, terms: WindowTerms, now: int) -> tuple[int, int]:
        """The key's number, and the moment before which it is known to have no room under these terms."""
        known = self._db.execute("SELECT * FROM throttle_keys WHERE key = ?", (ask.key,)).fetchone()
        named = asdict(terms)
        if known is None:
            return self._insert("throttle_keys", {"key": ask.key, "domain": ask.domain, **named}), 0
        if all(known[name] == value for name, value in named.items()):
            # A clock that was set back knows nothing of the moments that it shows again.
            return known["number"], known["full"] if now >= known["seen"] else 0
        self._update("throttle_keys", named, number=known["number"])
        return known["number"], 0

    def _purge(self, key: int, before: int, slack: int) -> None:
        """Forget what does not count any more; not each time, since every write costs."""
        oldest = self._value("SELECT at FROM grants WHERE key = ? ORDER BY at LIMIT 1", key)
        if oldest is not None and oldest < before - slack:
            self._db.execute("DELETE FROM grants WHERE key = ? AND at < ?", (key, before))

    def return_permits(self, permits: Sequence[Permit]) -> None:
        with self._file.step():
            now = self._now()
            self._note({domain_of(permit.key) for permit in permits if self._return(permit, now)})

    def _return(self, permit: Permit, now: int) -> bool:
        """Take back a grant; whether a far one of its key may be had earlier now."""
        given = (permit.key, micros(permit.at))
        query = "DELETE FROM grants WHERE key = (SELECT number FROM throttle_keys WHERE key = ?) AND at = ?"
        if not self._db.execute(query, given).rowcount:
            return False
        domain = domain_of(permit.key)
        query = "UPDATE throttle_keys SET full = 0 WHERE key = ? OR (domain = ? AND apart > 0)"
        self._db.execute(query, (permit.key, domain))
        if (
            permit.page_of
        ):  # a budget that was forgotten meanwhile stays so: with -1 it would be one page larger
            query = "UPDATE pages SET used = used - 1 WHERE domain = ? AND budget = ?"
            self._db.execute(query, (domain, permit.page_of))
        query = (
            "SELECT hits, window, gap, apart, (SELECT max(at) FROM grants WHERE key = number) FROM throttle_keys"
            " WHERE key = ?"
        )
        hits, window, gap, apart, latest = self._db.execute(query, (permit.key,)).fetchone()
        terms = WindowTerms(hits=hits, window=window, gap=gap, apart=apart)
        return latest is not None and terms.is_freed_by(given[1], latest, now)

    # domains

    def _standing(self, domain: str) -> tuple[DomainRules, int]:
        """How a domain stands, and when it was last asked for, as far as that is written down."""
        row = self._db.execute(
            "SELECT * FROM throttle_domains WHERE domain = ?", (domain,)
        ).fetchone()
        return (_standing_of(row), row["asked"]) if row else (DomainRules(), -_ASKED)

    def _asked(self, domain: str, now: int) -> None:
        query = "INSERT INTO throttle_domains (domain, asked) VALUES (:domain, :now) ON CONFLICT DO UPDATE SET asked = :now"
        self._db.execute(query, {"domain": domain, "now": now})

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        if news:
            with self._file.step():
                now = self._now()
                self._note({one.domain for one in news if self._tell(one, now)})
        version = self._version_of_rules()
        return DomainLook(version=version, changed=self._changed(known, version))

    def _tell(self, news: SiteNews, now: int) -> bool:
        old, asked = self._standing(news.domain)
        new, slower = heeded(old, news, now)
        if new != old:
            if asked < 0:
                self._asked(news.domain, now)
            self._update("throttle_domains", asdict(new), domain=news.domain)
        return slower

    # rules

    def _version_of_rules(self) -> int:
        version: int = self._value("SELECT version FROM throttle")
        return version

    def _note(self, domains: Collection[str]) -> None:
        """These have changed, if any; more than are remembered are noted as all."""
        if not domains:
            return
        noted = domains if len(domains) <= CHANGES else (ALL,)
        self._db.execute("UPDATE throttle SET version = version + 1")
        version = self._version_of_rules()
        self._db.executemany(
            "INSERT INTO throttle_changes VALUES (?, ?)", [(version, one) for one in noted]
        )
        # A version goes with all of its domains: what is left of it would look like all.
        last = "SELECT version FROM throttle_changes ORDER BY version DESC LIMIT 1 OFFSET ?"
        self._db.execute(f"DELETE FROM throttle_changes WHERE version <= ({last})", (CHANGES,))

    def _changed(self, known: int | None, version: int) -> frozenset[str]:
        query = "SELECT version, domain FROM throttle_changes WHERE version > ? AND version <= ?"
        return changed_since(known, version, self._db.execute(query, (known, version)).fetchall())

    def rules(self) -> Rules:
        version = self._version_of_rules()
        if version != self._rules.version:
            # Read after the version: newer rules under an older version are only read once more.
            rows = self._db.execute("SELECT domain, rule FROM throttle_rules")
            self._rules = Rules(version=version, rules=rules_of(self._door, map(tuple, rows)))
        return self._rules

    def change_rules(self, changes: Mapping[str, Rule | None]) -> int:
        texts = {domain: rule_text(rule) for domain, rule in changes.items()}
        with self._file.step():
            before = dict(self._db.execute("SELECT domain, rule FROM throttle_rules").fetchall())
            after = {
                domain: text for domain, text in {**before, **texts}.items() if text is not None
            }
            if after != before:
                gone = [domain for domain in before if domain not in after]
                self._db.executemany(
                    "DELETE FROM throttle_rules WHERE domain = ?", [(one,) for one in gone]
                )
                new = {domain: text for domain, text in after.items() if before.get(domain) != text}
                self._db.executemany(
                    "INSERT OR REPLACE INTO throttle_rules VALUES (?, ?)", list(new.items())
                )
                self._note({*gone, *new})
            return self._version_of_rules()

    # looking

    def domain_states(self) -> list[DomainState]:
        with self._file.step(writes=False):
            now = self._now()
            rows = self._db.execute("SELECT * FROM throttle_domains ORDER BY domain").fetchall()
            return [self._state(row, now) for row in rows]

    def _state(self, row: sqlite3.Row, now: int) -> DomainState:
        keys, latest = {}, 0
        query = (
            "SELECT key, max(window, gap) AS span, number,"
            " (SELECT max(at) FROM grants WHERE grants.key = number) AS latest"
            " FROM throttle_keys WHERE domain = ? ORDER BY key"
        )
        count = "SELECT count(*) FROM grants WHERE key = ? AND at > ? AND at <= ?"
        for key in self._db.execute(query, (row["domain"],)).fetchall():
            keys[key["key"]] = self._value(count, key["number"], now - key["span"], now)
            latest = max(latest, key["latest"] or 0)
        pages = self._db.execute(
            "SELECT budget, used FROM pages WHERE domain = ?", (row["domain"],)
        ).fetchall()
        return state_of(
            row["domain"], _standing_of(row), now, keys=keys, latest=latest, pages=dict(pages)
        )

    def forget_permits(self, before: float) -> None:
        # What counts still stays, however long ago that was: no budget begins anew before its time.
        with self._file.step():
            self._db.execute(_FORGET, {"before": micros(before), "now": self._now()})

    def _forget_few(self, new: str, now: int) -> None:
        """Look at the next few domains: what a broad crawl has left behind goes while another one comes.

        Pages count for as long as there is their crawl, and a robots.txt that is known is not read again. The first
        look is behind the domain that comes, so that not all processes begin with the same ones.
        """
        query = "SELECT domain FROM throttle_domains WHERE domain > ? ORDER BY domain LIMIT ?"
        behind = new if self._looked is None else self._looked
        names = [row["domain"] for row in self._db.execute(query, (behind, _LOOKED_AT))]
        self._looked = names[-1] if len(names) == _LOOKED_AT else ""
        pages = "SELECT 1 FROM pages WHERE pages.domain = throttle_domains.domain"
        query = f"{_FORGET} AND delay = 0 AND NOT EXISTS ({pages}) AND domain = :domain"
        few = [{"before": now - _STAYS, "now": now, "domain": name} for name in names]
        self._db.executemany(query, few)

    def forget_pages(self, budgets: Collection[str]) -> None:
        self._change("DELETE FROM pages WHERE budget = ?", *((budget,) for budget in budgets))


def _standing_of(row: sqlite3.Row) -> DomainRules:
    return DomainRules(**{field.name: row[field.name] for field in fields(DomainRules)})
