"""The Redis store's verbs about the throttle: script/7_throttle.lua computes, by the server's clock."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from scrapyd_dist.store.base import ThrottleStore
from scrapyd_dist.store.judging import foreign
from scrapyd_dist.store.redis_link import RedisPort, whole, word
from scrapyd_dist.store.throttle_rows import (
    answer_of,
    changed_since,
    domain_of,
    micros,
    rule_text,
    rules_of,
    state_of,
)
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
    @property
    def _throttle(self) -> str:
        return f"{self._server.prefix}t:"

    # permits

    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        answer = self._server.step(
            "permits", self._throttle, known=known, asks=[asdict(ask) for ask in asks]
        )
        version = int(answer["version"])
        answers = tuple(_answer(*pair) for pair in zip(asks, answer["asks"], strict=True))
        changed = changed_since(known, version, answer["changes"])
        return TakenPermits(
            now=int(answer["now"]) / SECOND, version=version, changed=changed, answers=answers
        )

    def return_permits(self, permits: Sequence[Permit]) -> None:
        told = [
            {
                "key": one.key,
                "domain": domain_of(one.key),
                "at": str(micros(one.at)),
                "budget": one.page_of,
            }
            for one in permits
        ]
        self._server.step("returned", self._throttle, permits=told)

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        if not news:
            there = int(self._look("GET", f"{self._throttle}version") or 0)
            if known in (None, there):
                return DomainLook(version=there)
        answer = self._server.step(
            "news", self._throttle, known=known, news=[_told(one) for one in news]
        )
        version = int(answer["version"])
        return DomainLook(version=version, changed=changed_since(known, version, answer["changes"]))

    # rules

    def rules(self) -> Rules:
        # The version first: newer rules under an older version are only read once more.
        version, rows = self._server.ask(
            [("GET", f"{self._throttle}version"), ("HGETALL", f"{self._throttle}rules")]
        )
        rules = rules_of(self._door, ((word(domain), text) for domain, text in rows.items()))
        return Rules(version=whole(version, "the version of the throttle's rules"), rules=rules)

    def change_rules(self, changes: Mapping[str, Rule | None]) -> int:
        rules = {domain: rule_text(rule) or "" for domain, rule in changes.items()}
        return int(self._server.step("rules", self._throttle, rules=rules)["version"])

    # looking

    def domain_states(self) -> list[DomainState]:
        base = self._throttle
        now = int(self._server.step("time", base)["now"])
        names = sorted(map(word, self._look("ZRANGE", f"{base}domains", 0, -1)))
        found = iter(
            self._server.ask(
                [("HGETALL", f"{base}{kind}:{name}") for name in names for kind in ("d", "k", "p")]
            )
        )
        rows = [(name, now, *islice(found, 3)) for name in names]

        def readable(row: tuple[Any, ...]) -> DomainState:
            try:
                return self._state(*row)
            except (ValueError, TypeError, IndexError, OverflowError, UnicodeDecodeError):
                raise foreign(
                    f"what is known of the domain {row[0][:100]!r}", "it is not what a domain has"
                ) from None

        return self._door.each(readable, rows)

    def _state(self, domain: str, now: int, *hashes: Mapping[bytes, bytes]) -> DomainState:
        standing, keys, pages = hashes
        spans = {key.decode(): max(map(int, terms.split()[3:5])) for key, terms in keys.items()}
        looks = [
            ("ZCOUNT", self._grants(key), f"({now - some}", now) for key, some in spans.items()
        ]
        lasts = [("ZRANGE", self._grants(key), -1, -1) for key in spans]
        answers = self._server.ask([*looks, *lasts])
        counts, latest = (
            answers[: len(spans)],
            [int(one[0]) for one in answers[len(spans) :] if one],
        )
        return state_of(
            domain,
            _standing_of(standing),
            now,
            keys=dict(sorted(zip(spans, counts, strict=True))),
            latest=max(latest, default=0),
            pages={budget.decode(): int(used) for budget, used in pages.items()},
        )

    def _grants(self, key: str) -> str:
        return f"{self._throttle}g:{key}"

    def forget_pages(self, budgets: Collection[str]) -> None:
        base, cursor = self._throttle, None
        while cursor != 0 and budgets:
            cursor, found = self._look("ZSCAN", f"{base}domains", cursor or 0, "COUNT", _DOMAINS)
            self._server.ask(("HDEL", f"{base}p:{name.decode()}", *budgets) for name, _ in found)

    def forget_permits(self, before: float) -> None:
        moment = str(micros(before))
        while self._server.step("forget_permits", self._throttle, before=moment, most=_DOMAINS)[
            "left"
        ]:
            pass


def _answer(ask: PermitRequest, told: Mapping[str, Any]) -> PermitReply:
    if "word" in told:
        return PermitReply(free=told["word"] == "free", held=told["word"] == "held")
    return answer_of(ask, map(int, told["moments"]), told["used"])


def _told(news: SiteNews) -> dict[str, object]:
    """Moments and spans are microseconds."""
    spans = {"rest": news.retry_after, "delay": news.crawl_delay, "target": news.target_gap}
    told = {name: None if seconds is None else span(seconds) for name, seconds in spans.items()}
    refused = None if news.refused_at is None else micros(news.refused_at)
    longest = span(news.longest_delay)
    return {
        "domain": news.domain,
        "refused": refused,
        "longest": longest,
        "answered": news.answered,
        **told,
    }


def _standing_of(row: Mapping[bytes, bytes]) -> DomainRules:
    kept = {name.decode(): value for name, value in row.items()}
    pace = float(kept.pop("pace", 1.0))
    return DomainRules(pace=pace, **{name: int(value) for name, value in kept.items()})
