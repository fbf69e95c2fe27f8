"""`sdist throttle show`: what is said of each domain, and how it stands now. Rule: looking changes nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.throttle.permits import ALL, DomainState, Rule

from ..crawls.wording import counted
from ..output import Output, say, table
from .throttle_rules import SomeDomains, heedings, is_held, limit_document, limit_of, names_of, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.store import Store

    from .throttle_rules import Heeding

#: how a domain can stand
WORDS = ("open", "blocked", "paused", "resting")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One domain, or all of them."""

    domain: str
    rules: Mapping[str, Rule]  #: all that hold
    state: DomainState | None  #: None: it was never asked for
    now: float  #: the store's clock

    @property
    def rule(self) -> Rule:
        return self.rules.get(self.domain, Rule())

    @property
    def all(self) -> Rule:
        return self.rules.get(ALL, Rule())

    @property
    def word(self) -> str:
        """How it stands, one of `WORDS`."""
        if self.rule.blocked or self.all.blocked:
            return "blocked"
        if is_held(self.domain, self.rules):
            return "paused"
        return "resting" if self.rests_for > 0 else "open"

    @property
    def limit(self) -> str:
        """Its limit in words, and whose that is where it is not its own."""
        own, common = limit_of(self.rule), limit_of(self.all)
        return own or (f"{common} ({ALL})" if common else "settings")

    @property
    def granted(self) -> int:
        """Permits within the last window, over all its keys."""
        return sum(self.state.keys.values()) if self.state else 0

    @property
    def latest(self) -> float | None:
        """Seconds until the latest moment that was given out; negative since then."""
        return self.state.next_at - self.now if self.state and self.state.next_at else None

    @property
    def rests_for(self) -> float:
        """Seconds, as the site asked."""
        return max(0.0, self.state.rest_until - self.now) if self.state else 0.0

    @property
    def slower(self) -> str:
        """What makes it slower than its limit."""
        state = self.state
        if state is None:
            return ""
        parts = {
            f"rests {self.rests_for:.1f} s": self.rests_for > 0,
            f"pace {state.pace:.3g}": state.pace < 1,
            f"delay {state.delay:g} s": state.delay > 0,
            f"gap {state.gap:.3g} s": state.gap > 0,
        }
        return ", ".join(text for text, holds in parts.items() if holds)

    def cells(self) -> tuple[object, ...]:
        pages = ", ".join(f"{number:,} of {budget or 'all'}" for budget, number in _pages(self.state).items())
        return (self.domain, self.limit, self.word, self.granted, _when(self.latest), self.slower, pages)

    def document(self) -> dict[str, Any]:
        state = self.state
        return {
            "domain": self.domain,
            "state": self.word,
            "limit": limit_document(self.rule) if self.rule.hits is not None else None,
            "blocked": self.rule.blocked,
            "paused": self.rule.paused,
            "granted": self.granted,
            "keys": dict(state.keys) if state else {},
            "latest_in": None if self.latest is None else round(self.latest, 3),
            "rests_for": round(self.rests_for, 3),
            "pace": state.pace if state else 1.0,
            "delay": state.delay if state else 0.0,
            "gap": state.gap if state else 0.0,
            "pages": _pages(state),
        }


def show(domain: SomeDomains = None, output: Output = Output()) -> None:
    """Show the limit of each domain that has one or was asked for, and how it stands.

    LIMIT is its own, that of all domains (*), or what the settings of the workers
    say. A domain is open, blocked, paused (also by a scale that leaves it nothing),
    or resting, because its site asked for that. GRANTED are the requests of its
    last window, over all workers; LATEST is the last moment that was given out,
    SLOWER BY what makes it slower than its limit: refusals (pace), its robots.txt
    (delay), the wanted concurrency (gap). Below it stands which of the crawls that
    run heed the rules, and which cannot.

    Example: sdist throttle show example.com
    """
    names = names_of(domain or [])
    rows, version, crawls = _known()
    if names:
        rows = _only(rows, names)
    total = _total(rows)
    told = [one.document() for one in crawls]
    shown = {"version": version, "domains": [row.document() for row in rows], "totals": total, "crawls": told}
    if output.document(shown):
        return
    if not rows:
        say("No domain has a limit of its own, and none was asked for yet. `sdist throttle set` gives one a limit.")
    else:
        headings = ("domain", "limit", "state", "granted", "latest", "slower by", "pages")
        table(headings, [row.cells() for row in rows])
        found = [f"{number:,} {kind}" for kind, number in total.items() if number and kind != "domains"]
        say(", ".join([counted(total["domains"], "domain"), *found]) + ".")
        for one in crawls:
            say(one.said or f"{one.crawl} heeds the rules in all of its processes.")


def _known() -> tuple[list[Row], int, list[Heeding]]:
    store = opened()
    if store is None:
        return [], 0, []
    with closing(store):
        return *rows_of(store), heedings(store)


def rows_of(store: Store) -> tuple[list[Row], int]:
    """All domains of a store that have a rule or were asked for, the rule of all first; and the rules' version."""
    rules = store.rules()
    states = {state.domain: state for state in store.domain_states()}
    now = store.take_permits([]).now
    names = sorted({*rules.rules, *states}, key=lambda name: (name != ALL, name))
    return [Row(domain=name, rules=rules.rules, state=states.get(name), now=now) for name in names], rules.version


def standing(rows: Sequence[Row]) -> dict[str, int]:
    """How many domains stand how, one of `WORDS`; and how many are slower than their limits."""
    own = [row for row in rows if row.domain != ALL]
    words = Counter(row.word for row in own)
    return {**{word: words[word] for word in WORDS}, "slowed": sum(bool(row.slower) for row in own)}


def _only(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows of these domains.

    Raises:
        NothingMatched: nothing is known of one.
    """
    known = {row.domain: row for row in rows}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise NothingMatched(
            f"{', '.join(unknown)}: no limit of its own, and no worker has asked for it lately."
            " `sdist throttle show` lists all that is known."
        )
    return [known[name] for name in names]


def _total(rows: Sequence[Row]) -> dict[str, int]:
    """Kind -> domains of it, without the rule of all; and the permits granted."""
    own = [row for row in rows if row.domain != ALL]
    limited = sum(row.rule.hits is not None for row in own)
    return {
        "domains": len(own), "limited": limited, **standing(own), "granted": sum(row.granted for row in own),
    }  # fmt: skip


def _pages(state: DomainState | None) -> Mapping[str, int]:
    return dict(sorted(state.pages.items())) if state else {}


def _when(latest: float | None) -> str:
    if latest is None:
        return "-"
    return f"in {latest:.1f} s" if latest > 0 else f"{-latest:.1f} s ago"
