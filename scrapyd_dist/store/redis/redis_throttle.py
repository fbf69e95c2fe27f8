"""The Redis store's verbs about the throttle; its script computes, by the server's clock."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from scrapyd_dist.store.ports.judging import foreign
from scrapyd_dist.store.ports.throttle_rows import (
    answer_of,
    changed_since,
    domain_of,
    micros,
    rule_text,
    rules_of,
    state_of,
)
from scrapyd_dist.store.ports.throttle_store import ThrottleStore
from scrapyd_dist.store.redis.redis_link import RedisPort, by_word, whole, word
from scrapyd_dist.throttle.domain_status import DomainRules, span
from scrapyd_dist.throttle.permits import (
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
)

#: domains that are looked at in one step, when old ones are forgotten
_DOMAINS = 1_000


class RedisThrottle(RedisPort, ThrottleStore):
    """The port for the throttle on a Redis server."""

    @property
    def _throttle(self) -> str:
        return f"{self._server.prefix}t:"

    # permits

    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        """Let the script charge the keys of all asks in one step."""
        answer = self._server.step(
            "permits", self._throttle, known=known, asks=list(map(asdict, asks))
        )
        version = int(answer["version"])
        return TakenPermits(
            now=int(answer["now"]) / SECOND,
            version=version,
            changed=changed_since(known, version, answer["changes"]),
            answers=tuple(map(_reply, asks, answer["asks"])),
        )

    def return_permits(self, permits: Sequence[Permit]) -> None:
        """Give back permits that were not used."""
        rows = []
        for permit in permits:
            row = {
                "key": permit.key,
                "domain": domain_of(permit.key),
                "at": str(micros(permit.at)),
                "budget": permit.page_of,
            }
            rows.append(row)
        self._server.step("returned", self._throttle, permits=rows)

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        """Apply news of sites; without any, the version alone is read if that is enough."""
        if not news:
            current = int(self._query("GET", f"{self._throttle}version") or 0)
            if known in (None, current):
                return DomainLook(version=current)
        answer = self._server.step(
            "news", self._throttle, known=known, news=list(map(_news_row, news))
        )
        version = int(answer["version"])
        return DomainLook(version=version, changed=changed_since(known, version, answer["changes"]))

    # rules

    def rules(self) -> Rules:
        """Return all rules that can be kept to."""
        # The version first: newer rules under an older version are only read once more.
        version, rows = self._server.query_all(
            [("GET", f"{self._throttle}version"), ("HGETALL", f"{self._throttle}rules")]
        )
        rules = rules_of(self._door, by_word(rows).items())
        return Rules(version=whole(version, "the version of the throttle's rules"), rules=rules)

    def change_rules(self, changes: Mapping[str, Rule | None]) -> int:
        """Set or remove rules in one step, and return the new version."""
        rules = {domain: rule_text(rule) or "" for domain, rule in changes.items()}
        return int(self._server.step("rules", self._throttle, rules=rules)["version"])

    # domains

    def domain_states(self) -> list[DomainState]:
        """Return the state of every domain that can be read, by name."""
        base = self._throttle
        now = int(self._server.step("time", base)["now"])
        names = sorted(map(word, self._query("ZRANGE", f"{base}domains", 0, -1)))
        commands = []
        for name in names:
            commands.append(("HGETALL", f"{base}d:{name}"))
            commands.append(("HGETALL", f"{base}k:{name}"))
            commands.append(("HGETALL", f"{base}p:{name}"))
        answers = iter(self._server.query_all(commands))
        rows = [(name, now, *islice(answers, 3)) for name in names]

        def read_state(row: tuple[Any, ...]) -> DomainState:
            try:
                return self._state(*row)
            except (ValueError, TypeError, IndexError, OverflowError, UnicodeDecodeError):
                what = f"what is known of the domain {row[0][:100]!r}"
                raise foreign(what, "it is not what a domain has") from None

        return self._door.each(read_state, rows)

    def _state(self, domain: str, now: int, *hashes: Mapping[bytes, bytes]) -> DomainState:
        """Return a domain's state; the hashes are its standing, its keys and its pages."""
        standing, keys, pages = hashes
        spans: dict[str, int] = {}  # microseconds for which the grants of a key count
        for key, terms in keys.items():
            window_and_gap = terms.split()[3:5]
            spans[key.decode()] = max(map(int, window_and_gap))
        counts, latest = self._grants_of(spans, now)
        return state_of(
            domain,
            _standing_of(standing),
            now,
            keys=dict(sorted(counts.items())),
            latest=latest,
            pages=_integers(pages),
        )

    def _grants_of(self, spans: Mapping[str, int], now: int) -> tuple[dict[str, int], int]:
        """Return how many grants of each key count, and the latest of all, or 0."""
        commands: list[tuple[object, ...]] = []
        for key, span_of_key in spans.items():
            grants = self._grants_key(key)
            commands.append(("ZCOUNT", grants, f"({now - span_of_key}", now))
            commands.append(("ZRANGE", grants, -1, -1))
        answers = iter(self._server.query_all(commands))
        counts: dict[str, int] = {}
        latest = 0
        for key in spans:
            counts[key] = next(answers)
            last_members = next(answers)
            if last_members:
                latest = max(latest, int(last_members[0]))
        return counts, latest

    def _grants_key(self, key: str) -> str:
        return f"{self._throttle}g:{key}"

    def forget_pages(self, budgets: Collection[str]) -> None:
        """Remove the counts of these budgets from all domains, some at a time."""
        base = self._throttle
        cursor = None
        while cursor != 0 and budgets:
            cursor, found = self._query("ZSCAN", f"{base}domains", cursor or 0, "COUNT", _DOMAINS)
            self._server.query_all(
                ("HDEL", f"{base}p:{name.decode()}", *budgets) for name, _ in found
            )

    def forget_permits(self, before: float) -> None:
        """Remove domains that no worker has asked for since then, some in each step."""
        moment = str(micros(before))
        left = True
        while left:
            answer = self._server.step(
                "forget_permits", self._throttle, before=moment, most=_DOMAINS
            )
            left = answer["left"]


def _reply(request: PermitRequest, answer: Mapping[str, Any]) -> PermitReply:
    if "word" in answer:
        return PermitReply(free=answer["word"] == "free", held=answer["word"] == "held")
    return answer_of(request, map(int, answer["moments"]), answer["used"])


def _news_row(news: SiteNews) -> dict[str, object]:
    """Return news as the script takes them; moments and spans are microseconds."""
    return {
        "domain": news.domain,
        "refused": None if news.refused_at is None else micros(news.refused_at),
        "longest": span(news.longest_delay),
        "answered": news.answered,
        "rest": _span_or_none(news.retry_after),
        "delay": _span_or_none(news.crawl_delay),
        "target": _span_or_none(news.target_gap),
    }


def _span_or_none(seconds: float | None) -> int | None:
    return None if seconds is None else span(seconds)


def _standing_of(row: Mapping[bytes, bytes]) -> DomainRules:
    fields = dict(row)
    pace = float(fields.pop(b"pace", 1.0))
    return DomainRules(pace=pace, **_integers(fields))


def _integers(row: Mapping[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in row.items()}
