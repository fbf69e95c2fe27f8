"""The Redis store's verbs about the throttle: script/7_throttle.lua computes, by the server's clock."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from scrapyd_dist.store.judging import foreign
from scrapyd_dist.store.redis_crawls import whole, word
from scrapyd_dist.store.redis_link import RedisLink
from scrapyd_dist.store.throttle_rows import answer_of, changed_since, domain_of, micros, rule_texts, rules_of, state_of
from scrapyd_dist.throttle.standing import Standing, span, target_of
from scrapyd_dist.throttle.values import Answer, DomainState, Look, Rules, Taken
from scrapyd_dist.throttle.windows import SECOND

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from scrapyd_dist.throttle.values import Ask, Permit, Rule, SiteNews

#: domains that are looked at in one step, when old ones are forgotten
_DOMAINS = 1_000


class RedisThrottle(RedisLink):
    """Limits of requests, and the permits that were given out."""

    @property
    def _throttle(self) -> str:
        return f"{self.prefix}t:"

    # permits

    def take_permits(self, asks: Sequence[Ask], known: int | None = None) -> Taken:
        asked = (word for ask in asks for word in _words(ask))
        _, now, version, *rest = self.step("permits", self._throttle, _or_empty(known), len(asks), *asked)
        words = iter(rest)
        changed = changed_since(known, int(version), _changes(words))
        answers = tuple(_answer(ask, words) for ask in asks)
        return Taken(now=int(now) / SECOND, version=int(version), changed=changed, answers=answers)

    def return_permits(self, permits: Sequence[Permit]) -> None:
        words = (
            word
            for permit in permits
            for word in (permit.key, domain_of(permit.key), micros(permit.at), permit.page_of)
        )
        self.step("returned", self._throttle, len(permits), *words)

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> Look:
        if not news:
            there = int(self.read(lambda: self._client.get(f"{self._throttle}version")) or 0)
            if known in (None, there):
                return Look(version=there)
        told = (_or_empty(word) for one in news for word in _told(one))
        _, version, *changes = self.step("news", self._throttle, _or_empty(known), len(news), *told)
        return Look(version=int(version), changed=changed_since(known, int(version), _changes(iter(changes))))

    # rules

    def rules(self) -> Rules:
        # The version first: newer rules under an older version are only read once more.
        version, rows = self.ask([("GET", f"{self._throttle}version"), ("HGETALL", f"{self._throttle}rules")])
        rules = rules_of(self._door, ((word(domain), text) for domain, text in rows.items()))
        return Rules(version=whole(version, "the version of the throttle's rules"), rules=rules)

    def change_rules(self, changes: Mapping[str, Rule | None], *, replace: bool = False) -> int:
        words = (word for domain, text in rule_texts(changes).items() for word in (domain, text or ""))
        return int(self.step("rules", self._throttle, int(replace), len(changes), *words)[1])

    # looking

    def domain_states(self) -> list[DomainState]:
        base = self._throttle
        seconds, micro = self.read(self._client.time)
        names = sorted(map(word, self.read(lambda: self._client.zrange(f"{base}domains", 0, -1))))
        found = iter(self.ask([("HGETALL", f"{base}{kind}:{name}") for name in names for kind in ("d", "k", "p")]))
        rows = [(name, seconds * SECOND + micro, *islice(found, 3)) for name in names]
        return self._door.each(lambda row: self._readable(*row), rows)

    def _readable(self, domain: str, now: int, *rows: Mapping[bytes, bytes]) -> DomainState:
        try:
            return self._state(domain, now, *rows)
        except (ValueError, TypeError, IndexError, OverflowError, UnicodeDecodeError):
            raise foreign(f"what is known of the domain {domain[:100]!r}", "it is not what a domain has") from None

    def _state(
        self,
        domain: str,
        now: int,
        standing: Mapping[bytes, bytes],
        keys: Mapping[bytes, bytes],
        pages: Mapping[bytes, bytes],
    ) -> DomainState:
        spans = {key.decode(): max(map(int, terms.split()[3:5])) for key, terms in keys.items()}
        looks = [("ZCOUNT", self._grants(key), f"({now - some}", now) for key, some in spans.items()]
        lasts = [("ZRANGE", self._grants(key), -1, -1) for key in spans]
        answers = self.ask([*looks, *lasts])
        counts, latest = answers[: len(spans)], [int(one[0]) for one in answers[len(spans) :] if one]
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
        base, cursor = self._throttle, -1
        while cursor != 0 and budgets:
            at = max(cursor, 0)
            cursor, found = self.read(lambda at=at: self._client.zscan(f"{base}domains", at, count=_DOMAINS))  # type: ignore[misc]  # a default binds it
            self.ask(("HDEL", f"{base}p:{name.decode()}", *budgets) for name, _ in found)

    def forget_permits(self, before: float) -> None:
        while int(self.step("forget_permits", self._throttle, micros(before), _DOMAINS)[1]):
            pass


def _words(ask: Ask) -> Iterator[object]:
    yield from (ask.key, ask.domain, ask.count)
    limit = ask.limit
    if limit is None:
        yield from ("", "", int(ask.moderated))
    else:
        yield from (limit.hits, max(1, micros(limit.window)), int(limit.moderated))
    yield from (_or_empty(ask.pages), ask.budget)


def _answer(ask: Ask, words: Iterator[str]) -> Answer:
    word, used, count = next(words), int(next(words)), int(next(words))
    moments = [int(at) for at in islice(words, count)]
    if word != "-":
        return Answer(free=word == "free", held=word == "held")
    return answer_of(ask, moments, None if ask.pages is None else used)


def _changes(words: Iterator[str]) -> list[tuple[int, str]]:
    """The changes that are next in an answer: how many, and of each its version and its domain."""
    return [(int(next(words)), next(words)) for _ in range(int(next(words)))]


def _told(news: SiteNews) -> tuple[object, ...]:
    """As the script reads it; None: not told."""
    refused, rest, delay = news.refused_at, news.retry_after, news.crawl_delay
    return (
        news.domain,
        None if refused is None else micros(refused),
        None if rest is None else span(rest),
        None if delay is None else span(delay),
        target_of(news),
        span(news.longest_delay),
        int(news.answered),
    )


def _or_empty(value: object) -> object:
    return "" if value is None else value


def _standing_of(row: Mapping[bytes, bytes]) -> Standing:
    kept = {name.decode(): value for name, value in row.items()}
    pace = float(kept.pop("pace", 1.0))
    return Standing(pace=pace, **{name: int(value) for name, value in kept.items()})
