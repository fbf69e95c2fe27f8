"""`sdist throttle`: the rules and how domains stand, and the verbs that change the rules.

Each verb changes its own fields of a rule and no others; `apply` takes all of a file or none.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from scrapyd_dist.batches import Crawl
from scrapyd_dist.config import find_root, load
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.plurals import counted
from scrapyd_dist.settings import LONGEST_WINDOW, MOST_HITS
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE
from scrapyd_dist.throttle.domain_status import DomainRules, terms_of
from scrapyd_dist.throttle.permits import ALL, DomainState, PermitReply, PermitRequest, Rule
from scrapyd_dist.throttle.rules_file import SHORTEST_WINDOW, domain_of, read, wanted

from ..context import maybe_store, project_store, where
from ..options import STDIN, DryRun, argument, domains, opened_file, option
from ..output import Output, say, some_of, table
from .producer_process import runs

_HELP = f"A registered domain, an address, or a host such as localhost; '{ALL}' is all domains."
Domains = Annotated[list[str], argument("DOMAIN", "Registered domains, addresses, hosts.", domains)]
SomeDomains = Annotated[
    list[str] | None, argument("DOMAIN", "Only these; all of them if left out.", domains)
]


def heedings(store: Store) -> list[dict[str, Any]]:
    """How the crawls and frontiers that a process works on heed the rules, as documents tell it.

    `reason`: why none of its processes does; `nodes`: those whose workers do not, and why.
    """
    return [_heeding(row) for row in store.crawls() if runs(row)]


def _heeding(row: Crawl) -> dict[str, Any]:
    told = row.summary.get("throttle")
    if not isinstance(told, dict):  # it has sent nothing yet, and looks for rules before it does
        told = {}
    reason, nodes = str(told.get("reason") or ""), dict(told.get("nodes") or {})
    return {"crawl": row.id, "heeded": not (reason or nodes), "reason": reason, "nodes": nodes}


def unheeded(heeding: Mapping[str, Any]) -> str:
    """What of a crawl does not heed the rules, in a sentence; empty when all does."""
    crawl, nodes = heeding["crawl"], heeding["nodes"]
    if heeding["reason"]:
        return f"{crawl} does not: {heeding['reason'].rstrip('.')}."
    why = "; ".join(dict.fromkeys(reason.rstrip(".") for reason in nodes.values()))
    return f"{crawl} does not on {', '.join(nodes)}: {why}." if nodes else ""


@dataclass(frozen=True, kw_only=True)
class Changed:
    """What a command did to the rules."""

    version: int  #: of the rules as they are now
    before: Mapping[str, Rule]
    changes: Mapping[str, Rule | None]  #: domain -> its new rule; None where it has none any more
    crawls: Sequence[Mapping[str, Any]] = ()  #: those that run, as `heedings` tells them

    @property
    def notice(self) -> str:
        """When, and where, it is heeded."""
        others = list(filter(None, map(unheeded, self.crawls)))
        return " ".join(
            [
                f"Running crawls heed it within 2 seconds{', but for these:' if others else '.'}",
                *others,
            ]
        )

    def document(self) -> dict[str, Any]:
        def row(domain: str, was: Rule | None, rule: Rule | None) -> dict[str, Any]:
            return {"domain": domain, "was": was and asdict(was), "is": rule and asdict(rule)}

        changes = [
            row(domain, self.before.get(domain), rule) for domain, rule in self.changes.items()
        ]
        return {"version": self.version, "changes": changes, "crawls": list(self.crawls)}


def change(
    plan: Callable[[Mapping[str, Rule]], Mapping[str, Rule]], *, dry_run: bool = False
) -> Changed:
    """Change rules of this project's throttle; dry_run: change nothing.

    plan: gets the rules in force; gives the new rule of each domain that is to have one or to lose its own, as
    `Rule()`. Rules that are there already are left out of what is done.
    """
    store = opened(make=not dry_run)
    if store is None:
        return Changed(version=0, before={}, changes=_needed(plan({}), {}))
    with closing(store):
        now = store.rules()
        changes = _needed(plan(now.rules), now.rules)
        version = store.change_rules(changes) if changes and not dry_run else now.version
        return Changed(version=version, before=now.rules, changes=changes, crawls=heedings(store))


def opened(*, make: bool = False) -> Store | None:
    """The store whose throttle is meant: the project's; outside of any project, the one that the environment names.

    Where there is none, one is made, or the answer is None.
    """
    outside = find_root() is None and bool(os.environ.get(VARIABLE))
    root = Path.cwd() if outside else load().root
    if not make:
        return maybe_store(root)
    return open_store(where(root)) if outside else project_store(root)


def _needed(wanted: Mapping[str, Rule], now: Mapping[str, Rule]) -> dict[str, Rule | None]:
    nothing = Rule()
    return {
        domain: rule if rule != nothing else None
        for domain, rule in wanted.items()
        if now.get(domain, nothing) != rule
    }


def names_of(domains: Sequence[str]) -> list[str]:
    """Domains as the store calls them, each once; ConfigError if one of them is none."""
    return list(dict.fromkeys(domain_of(text) for text in domains))


def is_held(domain: str, rules: Mapping[str, Rule]) -> bool:
    """Whether the rules let nothing leave for a domain; a scale can leave it nothing, too."""
    answer = terms_of(PermitRequest(key=domain, domain=domain), rules, DomainRules(), 0)
    return isinstance(answer, PermitReply) and answer.held


def limit_of(rule: Rule) -> str:
    """A limit in words: 10 in 60 s, scaled 0.5; empty for none."""
    if rule.hits is None or rule.window is None:
        return ""
    return f"{rule.hits:,} in {rule.window:g} s" + (
        f", scaled {rule.scale:g}" if rule.scale < 1 else ""
    )


def named(domains: Sequence[str]) -> str:
    return some_of(["all domains" if domain == ALL else domain for domain in domains])


#: how a domain can stand
WORDS = ("open", "blocked", "paused", "resting")


class Row(NamedTuple):
    """One domain, or all of them."""

    domain: str
    rules: Mapping[str, Rule]  #: all that hold
    state: DomainState

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
        return sum(self.state.keys.values())

    @property
    def latest(self) -> float | None:
        """Seconds until the latest moment that was given out; negative since then."""
        return self.state.next_at - self.state.now if self.state.next_at else None

    @property
    def rests_for(self) -> float:
        """Seconds, as the site asked."""
        return max(0.0, self.state.rest_until - self.state.now)

    @property
    def slower(self) -> str:
        """What makes it slower than its limit."""
        parts = {
            f"rests {self.rests_for:.1f} s": self.rests_for > 0,
            f"pace {self.state.pace:.3g}": self.state.pace < 1,
            f"delay {self.state.delay:g} s": self.state.delay > 0,
            f"gap {self.state.gap:.3g} s": self.state.gap > 0,
        }
        return ", ".join(text for text, holds in parts.items() if holds)

    def cells(self) -> tuple[object, ...]:
        pages = ", ".join(
            f"{number:,} of {budget or 'all'}"
            for budget, number in sorted(self.state.pages.items())
        )
        at = self.latest
        latest = "-" if at is None else f"in {at:.1f} s" if at > 0 else f"{-at:.1f} s ago"
        return (self.domain, self.limit, self.word, self.granted, latest, self.slower, pages)

    def document(self) -> dict[str, Any]:
        limit = {"hits": self.rule.hits, "window": self.rule.window, "scale": self.rule.scale}
        return {
            "domain": self.domain,
            "state": self.word,
            "limit": limit if self.rule.hits is not None else None,
            "blocked": self.rule.blocked,
            "paused": self.rule.paused,
            "granted": self.granted,
            "keys": dict(self.state.keys),
            "latest_in": None if self.latest is None else round(self.latest, 3),
            "rests_for": round(self.rests_for, 3),
            "pace": self.state.pace,
            "delay": self.state.delay,
            "gap": self.state.gap,
            "pages": dict(sorted(self.state.pages.items())),
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
    rows, version, crawls = list[Row](), 0, list[dict[str, Any]]()
    if store := opened():
        with closing(store):
            (rows, version), crawls = rows_of(store), heedings(store)
    if names:
        known = {row.domain: row for row in rows}
        if unknown := [name for name in names if name not in known]:
            raise NothingMatched(
                f"{', '.join(unknown)}: no limit of its own, and no worker has asked for it lately."
                " `sdist throttle show` lists all that is known."
            )
        rows = [known[name] for name in names]
    own = [row for row in rows if row.domain != ALL]
    limited, granted = (
        sum(row.rule.hits is not None for row in own),
        sum(row.granted for row in own),
    )
    total = {"domains": len(own), "limited": limited, **standing(own), "granted": granted}
    documents = [row.document() for row in rows]
    if output.document(
        {"version": version, "domains": documents, "totals": total, "crawls": crawls}
    ):
        return
    if not rows:
        say(
            "No domain has a limit of its own, and none was asked for yet. `sdist throttle set` gives one a limit."
        )
    else:
        headings = ("domain", "limit", "state", "granted", "latest", "slower by", "pages")
        table(headings, [row.cells() for row in rows])
        found = [
            f"{number:,} {kind}" for kind, number in total.items() if number and kind != "domains"
        ]
        say(", ".join([counted(total["domains"], "domain"), *found]) + ".")
        for one in crawls:
            say(unheeded(one) or f"{one['crawl']} heeds the rules in all of its processes.")


def rows_of(store: Store) -> tuple[list[Row], int]:
    """All domains of a store that have a rule or were asked for, the rule of all first; and the rules' version."""
    rules = store.rules()
    states = {state.domain: state for state in store.domain_states()}
    names = sorted({*rules.rules, *states}, key=lambda name: (name != ALL, name))
    return [
        Row(name, rules.rules, states.get(name) or DomainState(domain=name)) for name in names
    ], rules.version


def standing(rows: Sequence[Row]) -> dict[str, int]:
    """How many domains stand how, one of `WORDS`; and how many are slower than their limits."""
    own = [row for row in rows if row.domain != ALL]
    words = Counter(row.word for row in own)
    return {**{word: words[word] for word in WORDS}, "slowed": sum(bool(row.slower) for row in own)}


def set_(
    domain: Annotated[str, argument("DOMAIN", _HELP, domains)],
    hits: Annotated[
        int | None,
        option("Requests that may leave in any window.", metavar="N", min=1, max=MOST_HITS),
    ] = None,
    window: Annotated[
        float | None,
        option("How long the window is.", metavar="TIME", min=SHORTEST_WINDOW, max=LONGEST_WINDOW),
    ] = None,
    scale: Annotated[
        float | None,
        option("Part of the hits that counts, 0 to 1; 0 lets it rest.", metavar="X", min=0, max=1),
    ] = None,
    output: Output = Output(),
) -> None:
    """Set how many requests a domain gets, over all workers and hosts of it.

    It goes before the workers' settings, and for a domain before what is said of
    all. What is left out stays as it was. Crawls that run go on with the new
    limit at once.

    Example: sdist throttle set example.com --hits 60 --window 60
    """
    if hits is None and window is None and scale is None:
        raise ConfigError(
            "Nothing to set: say --hits N and --window SECONDS, or one of them, or --scale X."
        )
    name = domain_of(domain)
    changed = change(lambda now: {name: _limited(name, now.get(name, Rule()), hits, window, scale)})
    if not output.document(changed.document()):
        rule = changed.changes.get(name) or changed.before[name]
        whose = "All domains" if name == ALL else name
        rests = ""
        if rule.blocked:
            rests = " It is blocked, though; `sdist throttle unblock` ends that."
        elif rule.paused:
            rests = " It is paused, though; `sdist throttle resume` ends that."
        elif is_held(name, {name: rule}):
            rests = " That leaves it none: it rests."
        say(f"{whose}: {limit_of(rule)}.{rests} {changed.notice}")


def _limited(
    name: str, rule: Rule, hits: int | None, window: float | None, scale: float | None
) -> Rule:
    """The rule with what was given of its limit."""
    hits, window = rule.hits if hits is None else hits, rule.window if window is None else window
    if hits is None or window is None:
        raise ConfigError(
            f"{name} has no limit of its own yet: say both --hits N and --window SECONDS."
            " To let it rest: sdist throttle pause."
        )
    return replace(rule, hits=hits, window=window, scale=rule.scale if scale is None else scale)


def unset(domain: Domains, output: Output = Output()) -> None:
    """Remove the limits of domains: what is said of all holds for them, else the workers' settings.

    What is blocked or paused stays so.

    Example: sdist throttle unset example.com
    """
    none = {"hits": None, "window": None, "scale": 1.0}
    _change(
        names_of(domain), output, "No limit of its own any more", "Had no limit of its own", **none
    )


def block(domain: Domains, output: Output = Output()) -> None:
    """Put domains on the blacklist: nothing leaves for them any more.

    What waits for them in workers stays there, and goes when they are unblocked.
    `sdist throttle apply` makes the blacklist that of its file.

    Example: sdist throttle block example.com
    """
    names = names_of(domain)
    if ALL in names:
        raise ConfigError(
            "All domains cannot be blocked; to let all of them rest: sdist throttle pause."
        )
    _change(names, output, "Blocked", "Was blocked already", blocked=True)


def unblock(domain: Domains, output: Output = Output()) -> None:
    """Take domains off the blacklist.

    Example: sdist throttle unblock example.com
    """
    _change(names_of(domain), output, "Unblocked", "Was not blocked", blocked=False)


def pause(domain: SomeDomains = None, output: Output = Output()) -> None:
    """Let domains rest, or all of them: nothing leaves for them until `sdist throttle resume`.

    `sdist throttle apply` does not end a pause.

    Example: sdist throttle pause example.com
    """
    _change(names_of(domain or [ALL]), output, "Paused", "Was paused already", paused=True)


def resume(domain: SomeDomains = None, output: Output = Output()) -> None:
    """End the pause of domains; without names, the one of all. Domains paused by name go on resting then.

    Example: sdist throttle resume example.com
    """
    changed = _change(names_of(domain or [ALL]), output, "Resumed", "Was not paused", paused=False)
    rules = {**changed.before, **changed.changes}
    still = sorted(domain for domain, rule in rules.items() if rule is not None and rule.paused)
    if still and not output.as_json:
        say(f"Still paused: {named(still)}.")


def _change(
    names: Sequence[str], output: Output, done: str, already: str, **fields: Any
) -> Changed:
    """Give the rules of these domains these fields, and tell what became of each."""
    changed = change(lambda now: {name: replace(now.get(name, Rule()), **fields) for name in names})
    if not output.document(changed.document()):
        if changed.changes:
            say(f"{done}: {named(list(changed.changes))}. {changed.notice}")
        if others := [name for name in names if name not in changed.changes]:
            say(f"{already}: {named(others)}.")
    return changed


def apply(
    file: Annotated[str, argument("FILE", "YAML, as Scrapy Cluster has it; - is standard input.")],
    dry_run: DryRun = False,
    output: Output = Output(),
) -> int:
    """Make limits and blacklist those of a file; what it does not name loses its own.

    `domains:` has hits, window (in seconds) and, if wanted, scale for each
    domain; `blacklist:` is a list of domains. A file with one mistake is refused
    whole, and each mistake is named with its line. A domain that is
    paused stays paused.

    Example: sdist throttle apply limits.yml --dry-run
    """
    shown = "standard input" if file == STDIN else file
    with ExitStack() as stack:
        rules = read(opened_file(stack, file).read(), shown)
    changed = change(lambda now: wanted(rules, now), dry_run=dry_run)
    if not output.document({"file": file, "dry_run": dry_run, **changed.document()}):
        kinds: dict[str, list[str]] = {"new": [], "changed": [], "removed": []}
        for domain, rule in changed.changes.items():
            kinds[
                "removed" if rule is None else "changed" if domain in changed.before else "new"
            ].append(domain)
        for kind, domains in kinds.items():
            if domains:
                say(f"{kind}: {named(domains)}")
        if not changed.changes:
            say(f"The rules are those of {shown} already.")
        elif dry_run:
            say(f"Nothing was changed; without --dry-run the rules would be those of {shown}.")
        else:
            say(f"The rules are those of {shown} now. {changed.notice}")
    return 10 if dry_run and changed.changes else 0
