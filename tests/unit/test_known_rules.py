"""What is known of a store's rules, and when the store has lost some."""

import json

import pytest

from scrapyd_dist.throttle.known_rules import TRAVELLING, KnownRules
from scrapyd_dist.throttle.permits import ALL, Rule, Rules

KNOWN = KnownRules(version=5, domains=frozenset({"a.example", "b.example"}))


def _rules(version: int, *domains: str) -> Rules:
    return Rules(version=version, rules={domain: Rule(paused=True) for domain in domains})


@pytest.mark.parametrize(
    ("version", "domains", "changed", "missing"),
    [
        (0, (), {ALL}, ["a.example", "b.example"]),
        (4, ("a.example",), {ALL}, ["b.example"]),
        (4, ("a.example", "b.example"), {ALL}, []),
        (5, (), (), ["a.example", "b.example"]),
        (6, ("a.example",), {"b.example"}, []),
        (6, ("a.example",), {"c.example"}, ["b.example"]),
        (2000, (), {ALL}, []),
    ],
)
def test_a_rule_is_lost_that_was_not_removed(
    version: int, domains: tuple[str, ...], changed: set[str], missing: list[str]
) -> None:
    rules = _rules(version, *domains)
    assert KNOWN.missing_in(rules, changed) == missing


def test_it_travels_as_json_and_stays_small() -> None:
    assert KnownRules.from_document(json.loads(json.dumps(KNOWN.document))) == KNOWN
    assert KnownRules.from_document({}) == KnownRules()
    assert KnownRules(version=7).document == {}
    many = KnownRules(version=1, domains=frozenset({ALL, *(f"d{n}.example" for n in range(999))}))
    travelling = many.document["domains"]
    assert len(travelling) == TRAVELLING
    assert travelling[0] == ALL
