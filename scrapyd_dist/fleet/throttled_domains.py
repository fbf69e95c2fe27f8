"""How domains stand under the throttle, and which crawls heed its rules: for table, JSON, page."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scrapyd_dist.batches import Crawl
from scrapyd_dist.fleet.live_crawls import runs
from scrapyd_dist.store import Store
from scrapyd_dist.throttle.domain_status import DomainRules, terms_of
from scrapyd_dist.throttle.permits import ALL, DomainState, PermitReply, PermitRequest, Rule

#: how a domain can stand
WORDS = ("open", "blocked", "paused", "resting")
#: what stands above `ThrottledDomain.cells`
HEADINGS = ("domain", "limit", "state", "granted", "latest", "slower by", "pages")


def list_heedings(store: Store) -> list[dict[str, Any]]:
    """Return how the crawls and frontiers that a process works on heed the rules, as documents.

    `reason`: why none of its processes does; `nodes`: those whose workers do not, and why.
    """
    return [_heeding(row) for row in store.crawls() if runs(row)]


def _heeding(row: Crawl) -> dict[str, Any]:
    throttle = row.summary.get("throttle")
    # A crawl that has sent nothing yet looks for rules before it does.
    known = throttle if isinstance(throttle, dict) else {}
    reason = str(known.get("reason") or "")
    nodes = dict(known.get("nodes") or {})
    return {"crawl": row.id, "heeded": not (reason or nodes), "reason": reason, "nodes": nodes}


def unheeded(heeding: Mapping[str, Any]) -> str:
    """Return what of a crawl does not heed the rules, in a sentence; empty when all does."""
    if heeding["reason"]:
        return f"{heeding['crawl']} does not: {heeding['reason'].rstrip('.')}."
    nodes = heeding["nodes"]
    if not nodes:
        return ""
    reasons = dict.fromkeys(reason.rstrip(".") for reason in nodes.values())
    return f"{heeding['crawl']} does not on {', '.join(nodes)}: {'; '.join(reasons)}."


def is_held(domain: str, rules: Mapping[str, Rule]) -> bool:
    """Return whether the rules let nothing leave for a domain; a scale can do that, too."""
    answer = terms_of(PermitRequest(key=domain, domain=domain), rules, DomainRules(), 0)
    return isinstance(answer, PermitReply) and answer.held


def limit_of(rule: Rule) -> str:
    """Return a limit in words: 10 in 60 s, scaled 0.5; empty for none."""
    if rule.hits is None or rule.window is None:
        return ""
    text = f"{rule.hits:,} in {rule.window:g} s"
    if rule.scale < 1:
        text += f", scaled {rule.scale:g}"
    return text


class ThrottledDomain(NamedTuple):
    """One domain, or all of them."""

    domain: str
    rules: Mapping[str, Rule]  #: all that hold
    state: DomainState

    @property
    def rule(self) -> Rule:
        """Return its own rule, an empty one where it has none."""
        return self.rules.get(self.domain, Rule())

    @property
    def all(self) -> Rule:
        """Return the rule of all domains."""
        return self.rules.get(ALL, Rule())

    @property
    def word(self) -> str:
        """Return how it stands, one of `WORDS`."""
        if self.rule.blocked or self.all.blocked:
            return "blocked"
        if is_held(self.domain, self.rules):
            return "paused"
        if self.rests_for > 0:
            return "resting"
        return "open"

    @property
    def limit(self) -> str:
        """Return its limit in words, and whose that is where it is not its own."""
        own = limit_of(self.rule)
        if own:
            return own
        common = limit_of(self.all)
        if common:
            return f"{common} ({ALL})"
        return "settings"

    @property
    def granted(self) -> int:
        """Return the number of permits within the last window, over all its keys."""
        return sum(self.state.keys.values())

    @property
    def latest(self) -> float | None:
        """Return the seconds until the latest moment that was given out; negative since then."""
        if self.state.next_at:
            return self.state.next_at - self.state.now
        return None

    @property
    def rests_for(self) -> float:
        """Return for how many seconds it still rests, as the site asked."""
        return max(0.0, self.state.rest_until - self.state.now)

    @property
    def slower(self) -> str:
        """Return what makes it slower than its limit, in words; empty for nothing."""
        parts = []
        if self.rests_for > 0:
            parts.append(f"rests {self.rests_for:.1f} s")
        if self.state.pace < 1:
            parts.append(f"pace {self.state.pace:.3g}")
        if self.state.delay > 0:
            parts.append(f"delay {self.state.delay:g} s")
        if self.state.gap > 0:
            parts.append(f"gap {self.state.gap:.3g} s")
        return ", ".join(parts)

    def cells(self) -> tuple[object, ...]:
        """Return its row in a table for people, below `HEADINGS`."""
        pages = []
        for budget, number in sorted(self.state.pages.items()):
            pages.append(f"{number:,} of {budget or 'all'}")
        return (
            self.domain,
            self.limit,
            self.word,
            self.granted,
            self._latest_in_words(),
            self.slower,
            ", ".join(pages),
        )

    def _latest_in_words(self) -> str:
        at = self.latest
        if at is None:
            return "-"
        if at > 0:
            return f"in {at:.1f} s"
        return f"{-at:.1f} s ago"

    def document(self) -> dict[str, Any]:
        """Return how it stands, for `--json`."""
        rule = self.rule
        limit = None
        if rule.hits is not None:
            limit = {"hits": rule.hits, "window": rule.window, "scale": rule.scale}
        return {
            "domain": self.domain,
            "state": self.word,
            "limit": limit,
            "blocked": rule.blocked,
            "paused": rule.paused,
            "granted": self.granted,
            "keys": dict(self.state.keys),
            "latest_in": None if self.latest is None else round(self.latest, 3),
            "rests_for": round(self.rests_for, 3),
            "pace": self.state.pace,
            "delay": self.state.delay,
            "gap": self.state.gap,
            "pages": dict(sorted(self.state.pages.items())),
        }


def count_domains(rows: Sequence[ThrottledDomain]) -> dict[str, int]:
    """Return numbers of domains, and how many permits they got within their last windows."""
    domains = 0
    limited = 0
    granted = 0
    for row in rows:
        if row.domain != ALL:
            domains += 1
            limited += row.rule.hits is not None
            granted += row.granted
    return {"domains": domains, "limited": limited, **count_standing(rows), "granted": granted}


def list_domains(store: Store) -> tuple[list[ThrottledDomain], int]:
    """Return all domains of a store that have a rule or were asked for, and the rules' version.

    The rule of all domains comes first.
    """
    rules = store.rules()
    states = {state.domain: state for state in store.domain_states()}
    rows = []
    for name in sorted({*rules.rules, *states}, key=lambda name: (name != ALL, name)):
        state = states.get(name) or DomainState(domain=name)
        rows.append(ThrottledDomain(name, rules.rules, state))
    return rows, rules.version


def count_standing(rows: Sequence[ThrottledDomain]) -> dict[str, int]:
    """Return how many domains stand how, one of `WORDS`, and how many are slower than limits."""
    counts = {**dict.fromkeys(WORDS, 0), "slowed": 0}
    for row in rows:
        if row.domain != ALL:
            counts[row.word] += 1
            counts["slowed"] += bool(row.slower)
    return counts


def throttle_document(
    rows: Sequence[ThrottledDomain], version: int, heedings: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return how these domains stand as `sdist throttle show --json` gives it.

    version: of the rules; heedings: of `list_heedings`.
    """
    return {
        "version": version,
        "domains": list(map(ThrottledDomain.document, rows)),
        "totals": count_domains(rows),
        "crawls": list(heedings),
    }
