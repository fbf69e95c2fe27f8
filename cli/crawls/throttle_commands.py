"""`sdist throttle`: the rules and how domains stand, and the verbs that change the rules.

Each verb changes its own fields of a rule and no others; `apply` takes all of a file or none.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from scrapyd_dist.batches import Crawl
from scrapyd_dist.config import find_root, load
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.live_crawls import runs
from scrapyd_dist.fleet.project_store import find_store_address, maybe_store, project_store
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.settings import LONGEST_WINDOW, MOST_HITS
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE
from scrapyd_dist.throttle.domain_status import DomainRules, terms_of
from scrapyd_dist.throttle.permits import ALL, DomainState, PermitReply, PermitRequest, Rule
from scrapyd_dist.throttle.rules_file import SHORTEST_WINDOW, domain_of, merge_rules, read

from ..options import STDIN, DryRun, argument, domains, opened_file, option
from ..output import Output, say, table

#: how a domain can stand
WORDS = ("open", "blocked", "paused", "resting")
Domains = Annotated[
    list[str],
    argument(
        "DOMAIN",
        f"Registered domains, addresses, or hosts such as localhost; '{ALL}' is all domains.",
        domains,
    ),
]
SomeDomains = Annotated[
    list[str] | None, argument("DOMAIN", "Only these; all of them if left out.", domains)
]


def heedings(store: Store) -> list[dict[str, Any]]:
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


@dataclass(frozen=True, kw_only=True)
class Changed:
    """What a command did to the rules."""

    version: int  #: of the rules as they are now
    before: Mapping[str, Rule]
    changes: Mapping[str, Rule | None]  #: domain -> its new rule; None where it has none any more
    crawls: Sequence[Mapping[str, Any]] = ()  #: those that run, as `heedings` tells them

    @property
    def notice(self) -> str:
        """Return when, and where, the change is heeded, in a few sentences."""
        others = list(filter(None, map(unheeded, self.crawls)))
        if not others:
            return "Running crawls heed it within 2 seconds."
        return f"Running crawls heed it within 2 seconds, but for these: {' '.join(others)}"

    def document(self) -> dict[str, Any]:
        """Return what was changed, for `--json`."""
        changes = []
        for domain, rule in self.changes.items():
            before = self.before.get(domain)
            row = {
                "domain": domain,
                "was": before and asdict(before),
                "is": rule and asdict(rule),
            }
            changes.append(row)
        return {"version": self.version, "changes": changes, "crawls": list(self.crawls)}


def change(
    plan: Callable[[Mapping[str, Rule]], Mapping[str, Rule]], *, dry_run: bool = False
) -> Changed:
    """Change rules of this project's throttle; dry_run: change nothing.

    plan: gets the rules in force; gives the new rule of each domain that is to have one or to lose
    its own, as `Rule()`. Rules that are there already are left out of what is done.
    """
    store = open_throttle_store(make=not dry_run)
    if store is None:
        return Changed(version=0, before={}, changes=_needed(plan({}), {}))
    with closing(store):
        now = store.rules()
        changes = _needed(plan(now.rules), now.rules)
        version = store.change_rules(changes) if changes and not dry_run else now.version
        return Changed(version=version, before=now.rules, changes=changes, crawls=heedings(store))


def open_throttle_store(*, make: bool = False) -> Store | None:
    """Return the store of the throttle: the project's; outside of any, the environment's.

    Where there is none, one is made, or the answer is None.
    """
    outside = find_root() is None and bool(os.environ.get(VARIABLE))
    root = Path.cwd() if outside else load().root
    if not make:
        return maybe_store(root)
    if outside:
        return open_store(find_store_address(root))
    return project_store(root)


def _needed(wanted: Mapping[str, Rule], now: Mapping[str, Rule]) -> dict[str, Rule | None]:
    """Return the rules that have to change; None: the domain has none any more."""
    nothing = Rule()
    changes: dict[str, Rule | None] = {}
    for domain, rule in wanted.items():
        if now.get(domain, nothing) != rule:
            changes[domain] = None if rule == nothing else rule
    return changes


def names_of(domains: Sequence[str]) -> list[str]:
    """Return domains as the store calls them, each once; ConfigError if one of them is none."""
    return list(dict.fromkeys(map(domain_of, domains)))


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


def shorten_domains(domains: Sequence[str]) -> str:
    """Return domains as people are told of them; of many, the first."""
    return some_of(["all domains" if domain == ALL else domain for domain in domains])


class Row(NamedTuple):
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
        """Return its row in a table for people."""
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
    rows: list[Row] = []
    version = 0
    crawls: list[dict[str, Any]] = []
    if store := open_throttle_store():
        with closing(store):
            rows, version = rows_of(store)
            crawls = heedings(store)
    if names:
        rows = _rows_named(rows, names)
    totals = _totals(rows)
    document = {
        "version": version,
        "domains": list(map(Row.document, rows)),
        "totals": totals,
        "crawls": crawls,
    }
    if output.document(document):
        return
    if not rows:
        say(
            "No domain has a limit of its own, and none was asked for yet. `sdist throttle set` "
            "gives one a limit."
        )
    else:
        headings = ("domain", "limit", "state", "granted", "latest", "slower by", "pages")
        table(headings, list(map(Row.cells, rows)))
        _say_totals(totals)
        for heeding in crawls:
            whole = f"{heeding['crawl']} heeds the rules in all of its processes."
            say(unheeded(heeding) or whole)


def _rows_named(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    known = {row.domain: row for row in rows}
    found = []
    unknown = []
    for name in names:
        if name in known:
            found.append(known[name])
        else:
            unknown.append(name)
    if unknown:
        raise NothingMatched(
            f"{', '.join(unknown)}: no limit of its own, and no worker has asked for it lately."
            f"{did_you_mean(unknown[0], known)} `sdist throttle show` lists all that is known."
        )
    return found


def _totals(rows: Sequence[Row]) -> dict[str, int]:
    """Return numbers of domains, and how many permits they got within their last windows."""
    domains = 0
    limited = 0
    granted = 0
    for row in rows:
        if row.domain != ALL:
            domains += 1
            limited += row.rule.hits is not None
            granted += row.granted
    return {"domains": domains, "limited": limited, **standing(rows), "granted": granted}


def _say_totals(totals: Mapping[str, int]) -> None:
    pieces = [counted(totals["domains"], "domain")]
    for kind, count in totals.items():
        if count and kind != "domains":
            pieces.append(f"{count:,} {kind}")
    say(f"{', '.join(pieces)}.")


def rows_of(store: Store) -> tuple[list[Row], int]:
    """Return all domains of a store that have a rule or were asked for, and the rules' version.

    The rule of all domains comes first.
    """
    rules = store.rules()
    states = {state.domain: state for state in store.domain_states()}
    rows = []
    for name in sorted({*rules.rules, *states}, key=lambda name: (name != ALL, name)):
        state = states.get(name) or DomainState(domain=name)
        rows.append(Row(name, rules.rules, state))
    return rows, rules.version


def standing(rows: Sequence[Row]) -> dict[str, int]:
    """Return how many domains stand how, one of `WORDS`, and how many are slower than limits."""
    counts = {**dict.fromkeys(WORDS, 0), "slowed": 0}
    for row in rows:
        if row.domain != ALL:
            counts[row.word] += 1
            counts["slowed"] += bool(row.slower)
    return counts


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """The parts of a limit, as options of a command; None: not given."""

    hits: Annotated[
        int | None,
        option("Requests that may leave in any window.", metavar="N", min=1, max=MOST_HITS),
    ] = None
    window: Annotated[
        float | None,
        option("How long the window is.", metavar="TIME", min=SHORTEST_WINDOW, max=LONGEST_WINDOW),
    ] = None
    scale: Annotated[
        float | None,
        option("Part of the hits that counts, 0 to 1; 0 lets it rest.", metavar="X", min=0, max=1),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the parts that were given, by the names of the fields of a rule."""
        parts = {"hits": self.hits, "window": self.window, "scale": self.scale}
        return {name: value for name, value in parts.items() if value is not None}

    def limited(self, name: str, rule: Rule) -> Rule:
        """Return the rule of a domain with what was given; ConfigError if no limit comes of it."""
        changed = replace(rule, **self.given())
        if changed.hits is None or changed.window is None:
            raise ConfigError(
                f"{name} has no limit of its own yet: say both --hits N and --window SECONDS."
                " To let it rest: sdist throttle pause."
            )
        return changed


def set_(
    domain: Domains,
    limit: LimitOptions,
    block: Annotated[
        bool, option("Put them on the blacklist: nothing leaves for them any more.")
    ] = False,
    unblock: Annotated[bool, option("Take them off the blacklist.")] = False,
    unset: Annotated[
        bool, option("Remove their limits: that of all domains holds, else the workers' settings.")
    ] = False,
    output: Output = Output(),
) -> None:
    """Set how many requests domains get, over all workers and hosts of each, or block them.

    A limit goes before the workers' settings, and for a domain before what is said
    of all. What is left out stays as it was, and crawls that run heed it at once.
    What waits in workers for a domain that is blocked stays there, and goes when it
    is unblocked. Blacklist, limit and pause of a domain do not touch each other;
    `sdist throttle apply` makes limits and blacklist those of its file.

    Example: sdist throttle set example.com --hits 60 --window 60
    Example: sdist throttle set example.com --block
    """
    _check_one_change(limit, block=block, unblock=unblock, unset=unset)
    names = names_of(domain)
    if block:
        _block(names, output)
    elif unblock:
        _change(names, output, "Unblocked", "Was not blocked", blocked=False)
    elif unset:
        done = "No limit of its own any more"
        _change(names, output, done, "Had no limit of its own", hits=None, window=None, scale=1.0)
    else:
        _set_limit(names, limit, output)


def _check_one_change(limit: LimitOptions, **flags: bool) -> None:
    """Refuse a command that says nothing of domains, or more than one thing at once."""
    changes = [f"--{name}" for name, is_given in flags.items() if is_given]
    parts = [f"--{name}" for name in limit.given()]
    if parts:
        changes.append(" ".join(parts))
    if not changes:
        raise ConfigError(
            "Nothing to set: say --hits N and --window SECONDS, or one of them, or --scale X; or"
            " --block, --unblock or --unset."
        )
    if len(changes) > 1:
        raise ConfigError(
            f"{', '.join(changes)}: that is more than one change. A limit (--hits, --window,"
            " --scale), --block, --unblock and --unset each go alone."
        )


def _set_limit(names: Sequence[str], limit: LimitOptions, output: Output) -> None:
    """Give domains what was said of a limit, and say what it is now; ConfigError if it is none."""
    changed = change(
        lambda now: {name: limit.limited(name, now.get(name, Rule())) for name in names}
    )
    if output.document(changed.document()):
        return
    lines = []
    for name in names:
        rule = changed.changes.get(name) or changed.before[name]
        whose = "All domains" if name == ALL else name
        lines.append(f"{whose}: {limit_of(rule)}.{_rest_of(name, rule)}")
    shown = "\n".join(lines)
    say(f"{shown} {changed.notice}")


def _rest_of(name: str, rule: Rule) -> str:
    """Return why nothing leaves for a domain in spite of its limit; empty where something does."""
    if rule.blocked:
        return f" It is blocked, though; `sdist throttle set {name} --unblock` ends that."
    if rule.paused:
        return " It is paused, though; `sdist throttle resume` ends that."
    if is_held(name, {name: rule}):
        return " That leaves it none: it rests."
    return ""


def _block(names: Sequence[str], output: Output) -> None:
    if ALL in names:
        raise ConfigError(
            "All domains cannot be blocked; to let all of them rest: sdist throttle pause."
        )
    _change(names, output, "Blocked", "Was blocked already", blocked=True)


def pause(domain: SomeDomains = None, output: Output = Output()) -> None:
    """Let domains rest, or all of them: nothing leaves for them until `sdist throttle resume`.

    `sdist throttle apply` does not end a pause.

    Example: sdist throttle pause example.com
    """
    _change(names_of(domain or [ALL]), output, "Paused", "Was paused already", paused=True)


def resume(domain: SomeDomains = None, output: Output = Output()) -> None:
    """End the pause of domains; without names, the one of all. Domains paused by name go on \
resting then.

    Example: sdist throttle resume example.com
    """  # noqa: D205  # the summary is one line of the help
    changed = _change(names_of(domain or [ALL]), output, "Resumed", "Was not paused", paused=False)
    rules = {**changed.before, **changed.changes}
    still = sorted(name for name, rule in rules.items() if rule is not None and rule.paused)
    if still and not output.as_json:
        say(f"Still paused: {shorten_domains(still)}.")


def _change(
    names: Sequence[str], output: Output, done: str, already: str, **fields: Any
) -> Changed:
    """Give the rules of these domains these fields, and tell what became of each."""
    changed = change(lambda now: {name: replace(now.get(name, Rule()), **fields) for name in names})
    if not output.document(changed.document()):
        if changed.changes:
            say(f"{done}: {shorten_domains(list(changed.changes))}. {changed.notice}")
        if others := [name for name in names if name not in changed.changes]:
            say(f"{already}: {shorten_domains(others)}.")
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
    changed = change(lambda now: merge_rules(rules, now), dry_run=dry_run)
    if not output.document({"file": file, "dry_run": dry_run, **changed.document()}):
        _say_applied(changed, shown, dry_run=dry_run)
    if dry_run and changed.changes:
        return 10
    return 0


def _say_applied(changed: Changed, file: str, *, dry_run: bool) -> None:
    kinds: dict[str, list[str]] = {"new": [], "changed": [], "removed": []}
    for domain, rule in changed.changes.items():
        if rule is None:
            kinds["removed"].append(domain)
        elif domain in changed.before:
            kinds["changed"].append(domain)
        else:
            kinds["new"].append(domain)
    for kind, names in kinds.items():
        if names:
            say(f"{kind}: {shorten_domains(names)}")
    if not changed.changes:
        say(f"The rules are those of {file} already.")
    elif dry_run:
        say(f"Nothing was changed; without --dry-run the rules would be those of {file}.")
    else:
        say(f"The rules are those of {file} now. {changed.notice}")
