"""What all engines keep of the throttle alike: rules as JSON, moments in microseconds. No IO."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict

from scrapyd_dist.store.ports.judging import (
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
from scrapyd_dist.store.ports.rows import Door
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

#: changes that are remembered, for those who ask what has changed: more than come in between
CHANGES = 1000
#: microseconds after which a domain that is not asked for goes, unless something of it still counts
IDLE_STAYS = 3600 * SECOND
#: domains that are checked for that with each new one
CHECKED = 4
#: the fields of a rule, each with its check
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
    """Return the domains that have changed between the known version and that of now.

    There are none where no version is known. `changes` are version and domain of all remembered
    changes between the two. A missing version was too long ago: then `ALL` may have changed.
    """
    if known is None or known == version:
        return frozenset()
    versions = set()
    domains = set()
    for changed_version, domain in changes:
        versions.add(changed_version)
        domains.add(domain)
    if len(versions) != version - known:
        return frozenset({ALL})
    return frozenset(domains)


def rule_text(rule: Rule | None) -> str | None:
    """Return a rule as it is kept, the same one always as the same text; None stays None.

    Raises `ForeignRow` when the text would be refused when it is read.
    """
    if rule is None:
        return None
    text = json.dumps(asdict(rule), sort_keys=True)
    rule_of(text)
    return text


def rule_of(text: str | bytes) -> Rule:
    """Return the rule in a text; `ForeignRow` when it is none."""
    what = "a rule of the throttle"
    row = from_json(what, text)
    if not isinstance(row, dict):
        row = {"hits": row}  # which then is what is wrong
    rule = Rule(**judged(what, row, _RULE))
    if (rule.hits is None) != (rule.window is None):
        raise foreign(what, "it is half a limit")
    return rule


def rules_of(door: Door, rows: Iterable[tuple[str, str | bytes]]) -> dict[str, Rule]:
    """Return the rules that can be kept to, by domain."""

    def read_rule(row: tuple[str, str | bytes]) -> tuple[str, Rule]:
        domain, text = row
        checked = judged("a rule of the throttle", {"domain": domain}, {"domain": line()})
        return checked["domain"], rule_of(text)

    return dict(door.each(read_rule, rows))


def domain_of(key: str) -> str:
    """Return the domain of a key, `[spider|][address|]domain`."""
    return key.rpartition("|")[2]


def micros(seconds: float) -> int:
    """Convert seconds to whole microseconds."""
    return round(seconds * SECOND)


def answer_of(request: PermitRequest, moments: Iterable[int], used: int) -> PermitReply:
    """Return the reply to a request that got these moments; `used` are pages of its budget."""
    page_of = request.budget if request.pages is not None else ""
    permits = tuple(Permit(key=request.key, at=at / SECOND, page_of=page_of) for at in moments)
    return PermitReply(permits=permits, used_up=request.pages is not None and used >= request.pages)


def state_of(
    domain: str,
    standing: DomainRules,
    now: int,
    *,
    keys: Mapping[str, int],
    latest: int,
    pages: Mapping[str, int],
) -> DomainState:
    """Return a domain's state for display.

    `now` and `latest`, which is the last moment that was given out (or 0), are microseconds; `keys`
    is key -> grants that count, `pages` budget -> pages used.
    """
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
