"""The SQLite store's verbs about the throttle.

Its clock is this machine's, read while no other process can write.
"""

import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace

from scrapyd_dist.store.ports.throttle_rows import (
    CHANGES,
    CHECKED,
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
from scrapyd_dist.store.sqlite.sqlite_file import SqlitePort, pairs_with
from scrapyd_dist.throttle.domain_status import DomainRules, terms_of, with_news
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

#: microseconds after which it is noted anew that a domain was asked for: every write costs
_ASKED = 60 * SECOND
#: permits that bound others still, also where a limit gets harder
_COUNTS = (
    "SELECT 1 FROM throttle_keys JOIN grants ON grants.key = number"
    " WHERE domain = throttle_domains.domain AND at > :now - 2 * max(window, throttle_keys.gap)"
)
_FORGET = (
    "DELETE FROM throttle_domains"  # noqa: S608 - own words
    f" WHERE asked < :before AND rest_until <= :now AND NOT EXISTS ({_COUNTS})"
)


class SqliteThrottle(SqlitePort, ThrottleStore):
    """The port for the throttle in an SQLite file; its moments are microseconds."""

    _rules = Rules(version=-1, rules={})  #: those that were read last
    _last_checked: str | None = None  #: the domain behind which others are checked next

    def _now(self) -> int:
        return time.time_ns() // 1000

    # permits

    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        """Charge the keys of all asks in one step."""
        with self._file.step():
            now = self._now()
            rules = self.rules()
            answers = tuple(self._answer(request, rules.rules, now) for request in asks)
            changed = self._changed(known, rules.version)
        return TakenPermits(
            now=now / SECOND, version=rules.version, changed=changed, answers=answers
        )

    def _answer(self, request: PermitRequest, rules: Mapping[str, Rule], now: int) -> PermitReply:
        standing, asked = self._standing(request.domain)
        terms = terms_of(request, rules, standing, now)
        if isinstance(terms, PermitReply):
            return terms
        if asked < now - _ASKED:
            self._note_asked(request.domain, now)
            self._forget_few(request.domain, now)
        count = request.count
        used = 0
        if request.pages is not None:
            count, used = self._take_pages(request, request.pages)
        start = max(now, standing.rest_until)
        return answer_of(request, self._grant(request, count, start, terms, now), used)

    def _take_pages(self, request: PermitRequest, most: int) -> tuple[int, int]:
        """Take pages of the request's budget, which has `most`.

        Returns how many were taken, and how many are used now.
        """
        query = "SELECT used FROM pages WHERE domain = ? AND budget = ?"
        used = self._value(query, request.domain, request.budget) or 0
        count = max(0, min(request.count, most - used))
        if count:
            query = (
                "INSERT INTO pages VALUES (?, ?, ?)"
                " ON CONFLICT DO UPDATE SET used = used + excluded.used"
            )
            self._db.execute(query, (request.domain, request.budget, count))
        return count, used + count

    def _grant(
        self, request: PermitRequest, count: int, start: int, terms: WindowTerms, now: int
    ) -> list[int]:
        """Keep so many more grants of the key, the earliest from `start` on, and return them."""
        if not count:
            return []
        key, full = self._key(request, terms, now)
        start = max(start, full)
        near = self._binding(key, count, start, terms)
        query = "SELECT at FROM grants WHERE key = ? AND at > ? ORDER BY at"
        own = self._grants(query, key, start - near.reach)
        given = moments(count, start, own, near, self._others(request, start, terms))
        self._db.executemany("INSERT INTO grants VALUES (?, ?)", pairs_with(key, given))
        query = "UPDATE throttle_keys SET full = ?, seen = ? WHERE number = ?"
        self._db.execute(query, (given[-1], now, key))
        self._purge(key, now - terms.memory, terms.memory)
        return given

    def _binding(self, key: int, count: int, start: int, terms: WindowTerms) -> WindowTerms:
        """Return the terms, without the window where so many more grants fit into any.

        The grants in the window need not be read then.
        """
        if count > terms.hits:
            return terms
        query = "SELECT at FROM grants WHERE key = ? ORDER BY at DESC LIMIT 1 OFFSET ?"
        first = self._value(query, key, terms.hits - count)
        if first is None or first <= start - terms.window:
            return replace(terms, hits=0)
        return terms

    def _others(self, request: PermitRequest, start: int, terms: WindowTerms) -> list[int]:
        """Return grants of the domain's other keys that may be too near.

        There are none where only limits of keys count.
        """
        if not terms.apart:
            return []
        keys = "SELECT number FROM throttle_keys WHERE domain = ? AND key != ?"
        query = f"SELECT at FROM grants WHERE key IN ({keys}) AND at > ? ORDER BY at"  # noqa: S608 - own words
        return self._grants(query, request.domain, request.key, start - terms.apart)

    def _grants(self, query: str, *values: int | str) -> list[int]:
        return [row[0] for row in self._db.execute(query, values)]

    def _key(self, request: PermitRequest, terms: WindowTerms, now: int) -> tuple[int, int]:
        """Return the key's number, and the moment before which it is known to have no room.

        That moment is 0 when the terms of the key are others from now on.
        """
        known = self._db.execute(
            "SELECT * FROM throttle_keys WHERE key = ?", (request.key,)
        ).fetchone()
        named = asdict(terms)
        if known is None:
            row = {"key": request.key, "domain": request.domain, **named}
            return self._insert("throttle_keys", row), 0
        if any(known[name] != value for name, value in named.items()):
            self._update("throttle_keys", named, number=known["number"])
            return known["number"], 0
        # A clock that was set back knows nothing of the moments that it shows again.
        if now < known["seen"]:
            return known["number"], 0
        return known["number"], known["full"]

    def _purge(self, key: int, before: int, slack: int) -> None:
        """Forget what does not count any more; not each time, since every write costs."""
        oldest = self._value("SELECT at FROM grants WHERE key = ? ORDER BY at LIMIT 1", key)
        if oldest is not None and oldest < before - slack:
            self._db.execute("DELETE FROM grants WHERE key = ? AND at < ?", (key, before))

    def return_permits(self, permits: Sequence[Permit]) -> None:
        """Give back permits that were not used, in one step."""
        with self._file.step():
            now = self._now()
            freed = set()
            for permit in permits:
                if self._return(permit, now):
                    freed.add(domain_of(permit.key))
            self._note(freed)

    def _return(self, permit: Permit, now: int) -> bool:
        """Take back a grant, and return whether a far one of its key may be had earlier now."""
        domain = domain_of(permit.key)
        at = micros(permit.at)
        query = (
            "DELETE FROM grants"
            " WHERE key = (SELECT number FROM throttle_keys WHERE key = ?) AND at = ?"
        )
        if not self._db.execute(query, (permit.key, at)).rowcount:
            return False
        query = "UPDATE throttle_keys SET full = 0 WHERE key = ? OR (domain = ? AND apart > 0)"
        self._db.execute(query, (permit.key, domain))
        if permit.page_of:
            # A budget that was forgotten meanwhile stays so: with -1 it would be one page larger.
            query = "UPDATE pages SET used = used - 1 WHERE domain = ? AND budget = ?"
            self._db.execute(query, (domain, permit.page_of))
        query = (
            "SELECT hits, window, gap, apart, (SELECT max(at) FROM grants WHERE key = number)"
            " FROM throttle_keys WHERE key = ?"
        )
        hits, window, gap, apart, latest = self._db.execute(query, (permit.key,)).fetchone()
        terms = WindowTerms(hits=hits, window=window, gap=gap, apart=apart)
        return latest is not None and terms.is_freed_by(at, latest, now)

    # domains

    def _standing(self, domain: str) -> tuple[DomainRules, int]:
        """Return how a domain stands, and when it was last asked for, as far as that was noted."""
        query = "SELECT * FROM throttle_domains WHERE domain = ?"
        row = self._db.execute(query, (domain,)).fetchone()
        if row is None:
            return DomainRules(), -_ASKED
        return _standing_of(row), row["asked"]

    def _note_asked(self, domain: str, now: int) -> None:
        query = (
            "INSERT INTO throttle_domains (domain, asked) VALUES (:domain, :now)"
            " ON CONFLICT DO UPDATE SET asked = :now"
        )
        self._db.execute(query, {"domain": domain, "now": now})

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        """Apply news of sites in one step; without any, only what has changed is read."""
        if news:
            with self._file.step():
                now = self._now()
                slower = set()
                for site in news:
                    if self._apply_news(site, now):
                        slower.add(site.domain)
                self._note(slower)
        version = self._version_of_rules()
        return DomainLook(version=version, changed=self._changed(known, version))

    def _apply_news(self, news: SiteNews, now: int) -> bool:
        """Keep what news change, and return whether the domain has become slower."""
        old, asked = self._standing(news.domain)
        new, slower = with_news(old, news, now)
        if new != old:
            if asked < 0:
                self._note_asked(news.domain, now)
            self._update("throttle_domains", asdict(new), domain=news.domain)
        return slower

    # rules

    def _version_of_rules(self) -> int:
        version: int = self._value("SELECT version FROM throttle")
        return version

    def _note(self, domains: Collection[str]) -> None:
        """Note that these domains have changed, if any; more than are remembered as all."""
        if not domains:
            return
        noted = domains if len(domains) <= CHANGES else (ALL,)
        self._db.execute("UPDATE throttle SET version = version + 1")
        version = self._version_of_rules()
        query = "INSERT INTO throttle_changes VALUES (?, ?)"
        self._db.executemany(query, pairs_with(version, noted))
        # A version goes with all of its domains: what is left of it would look like all.
        last = "SELECT version FROM throttle_changes ORDER BY version DESC LIMIT 1 OFFSET ?"
        self._db.execute(f"DELETE FROM throttle_changes WHERE version <= ({last})", (CHANGES,))  # noqa: S608 - own words

    def _changed(self, known: int | None, version: int) -> frozenset[str]:
        query = "SELECT version, domain FROM throttle_changes WHERE version > ? AND version <= ?"
        changes = self._db.execute(query, (known, version)).fetchall()
        return changed_since(known, version, changes)

    def rules(self) -> Rules:
        """Return all rules that can be kept to; they are read again when the version is new."""
        version = self._version_of_rules()
        if version != self._rules.version:
            # Read after the version: newer rules under an older version are only read once more.
            rows = self._db.execute("SELECT domain, rule FROM throttle_rules")
            self._rules = Rules(version=version, rules=rules_of(self._door, map(tuple, rows)))
        return self._rules

    def change_rules(self, changes: Mapping[str, Rule | None]) -> int:
        """Set or remove rules in one step, and return the new version."""
        texts = {domain: rule_text(rule) for domain, rule in changes.items()}
        with self._file.step():
            before = dict(self._db.execute("SELECT domain, rule FROM throttle_rules").fetchall())
            gone: list[tuple[str]] = []
            new: list[tuple[str, str]] = []
            changed: set[str] = set()
            for domain, text in texts.items():
                if text == before.get(domain):
                    continue
                changed.add(domain)
                if text is None:
                    gone.append((domain,))
                else:
                    new.append((domain, text))
            self._db.executemany("DELETE FROM throttle_rules WHERE domain = ?", gone)
            self._db.executemany("INSERT OR REPLACE INTO throttle_rules VALUES (?, ?)", new)
            self._note(changed)
            return self._version_of_rules()

    # what is known of domains

    def domain_states(self) -> list[DomainState]:
        """Return the state of every domain, by name."""
        with self._file.step(writes=False):
            now = self._now()
            rows = self._db.execute("SELECT * FROM throttle_domains ORDER BY domain").fetchall()
            return [self._state(row, now) for row in rows]

    def _state(self, row: sqlite3.Row, now: int) -> DomainState:
        domain = row["domain"]
        keys: dict[str, int] = {}
        latest = 0
        query = (
            "SELECT key, max(window, gap) AS span, number,"
            " (SELECT max(at) FROM grants WHERE grants.key = number) AS latest"
            " FROM throttle_keys WHERE domain = ? ORDER BY key"
        )
        count = "SELECT count(*) FROM grants WHERE key = ? AND at > ? AND at <= ?"
        for key in self._db.execute(query, (domain,)).fetchall():
            keys[key["key"]] = self._value(count, key["number"], now - key["span"], now)
            latest = max(latest, key["latest"] or 0)
        query = "SELECT budget, used FROM pages WHERE domain = ?"
        pages = dict(self._db.execute(query, (domain,)).fetchall())
        return state_of(domain, _standing_of(row), now, keys=keys, latest=latest, pages=pages)

    def forget_permits(self, before: float) -> None:
        """Remove domains that no worker has asked for since then."""
        # What counts still stays, however long ago that was: no budget begins anew before its time.
        with self._file.step():
            self._db.execute(_FORGET, {"before": micros(before), "now": self._now()})

    def _forget_few(self, new: str, now: int) -> None:
        """Check the next few domains: while new ones come, those that a broad crawl left behind go.

        Pages count for as long as there is their crawl, and a robots.txt that is known is not read
        again. The first check is behind the domain that comes, so that not all processes begin with
        the same ones.
        """
        query = "SELECT domain FROM throttle_domains WHERE domain > ? ORDER BY domain LIMIT ?"
        behind = new if self._last_checked is None else self._last_checked
        rows = self._db.execute(query, (behind, CHECKED)).fetchall()
        self._last_checked = rows[-1]["domain"] if len(rows) == CHECKED else ""
        pages = "SELECT 1 FROM pages WHERE pages.domain = throttle_domains.domain"
        query = f"{_FORGET} AND delay = 0 AND NOT EXISTS ({pages}) AND domain = :domain"
        times = {"before": now - IDLE_STAYS, "now": now}
        self._db.executemany(query, [{**times, "domain": row["domain"]} for row in rows])

    def forget_pages(self, budgets: Collection[str]) -> None:
        """Remove the counts of these budgets."""
        self._change("DELETE FROM pages WHERE budget = ?", *((budget,) for budget in budgets))


def _standing_of(row: sqlite3.Row) -> DomainRules:
    return DomainRules(**{field.name: row[field.name] for field in fields(DomainRules)})
