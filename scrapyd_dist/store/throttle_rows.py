"""What every engine keeps of the throttle alike: rules as JSON, moments as whole microseconds. No IO."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict

from scrapyd_dist.store.judging import (
    LATEST,
    flag,
    foreign,
    from_json,
    judged,
    line,
    maybe,
    number,
    whole,
)
from scrapyd_dist.store.rows import Door
from scrapyd_dist.throttle.domain_status import DomainRules
from scrapyd_dist.throttle.permits import (
    ALL,
    SECOND,
    DomainState,
    Permit,
    PermitReply,
    PermitRequest,
    Rule,
)

#: changes that are remembered, for those who ask what has changed since: more than come between two looks
CHANGES = 1000
_RULE = {
    "hits": maybe(whole(1)),
    "window": maybe(number(1e-6, LATEST)),
    "scale": number(0, 1),
    "blocked": flag,
    "paused": flag,
}


def changed_since(
    known: int | None, version: int, changes: Collection[tuple[int, str]]
) -> frozenset[str]:
    """Which domains have changed since the known version, up to that of now; none where no version is known.

    `changes` are version and domain of all changes between them that are remembered. Where a version is missing, it is
    too long ago: then it is all of them.
    """
    if known is None or known == version:
        return frozenset()
    complete = len({number for number, _ in changes}) == version - known
    return frozenset(domain for _, domain in changes) if complete else frozenset({ALL})


def rule_text(rule: Rule | None) -> str | None:
    """As it is kept, the same rule always as the same text; None where one is to be removed.

    Raises `ForeignRow` when it would not be one as it is read.
    """
    text = None if rule is None else json.dumps(asdict(rule), sort_keys=True)
    if text is not None:
        rule_of(text)
    return text


def rule_of(text: str | bytes) -> Rule:
    """The rule; `ForeignRow` when it is none."""
    what = "a rule of the throttle"
    said = from_json(what, text)
    rule = Rule(**judged(what, said if isinstance(said, dict) else {"hits": said}, _RULE))
    if (rule.hits is None) != (rule.window is None):
        raise foreign(what, "it is half a limit")
    return rule


def rules_of(door: Door, rows: Iterable[tuple[str, str | bytes]]) -> dict[str, Rule]:
    """Those rules that can be kept to, by domain."""

    def one(row: tuple[str, str | bytes]) -> tuple[str, Rule]:
        domain, text = row
        return judged("a rule of the throttle", {"domain": domain}, {"domain": line()})[
            "domain"
        ], rule_of(text)

    return dict(door.each(one, rows))


def domain_of(key: str) -> str:
    """The domain of a key, `[spider|][address|]domain`."""
    return key.rpartition("|")[2]


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


def answer_of(ask: PermitRequest, moments: Iterable[int], used: int) -> PermitReply:
    """What the ask is told of the moments that it got; `used`: pages of its budget."""
    page_of = ask.budget if ask.pages is not None else ""
    permits = tuple(Permit(key=ask.key, at=at / SECOND, page_of=page_of) for at in moments)
    return PermitReply(permits=permits, used_up=ask.pages is not None and used >= ask.pages)


def state_of(
    domain: str,
    standing: DomainRules,
    now: int,
    *,
    keys: Mapping[str, int],
    latest: int,
    pages: Mapping[str, int],
) -> DomainState:
    """For display; `now` and `latest`, the last moment that was given out (or 0), are microseconds."""
    return DomainState(
        domain=domain,
        now=now / SECOND,
        keys=keys,
        next_at=latest / SECOND,
        rest_until=standing.rest_until / SECOND,
        pace=standing.pace_at(now),
        delay=standing.delay / SECOND,
        gap=standing.gap / SECOND,
        pages=pages,
    )
