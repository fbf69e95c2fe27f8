"""`sdist throttle`: the rules and how domains stand, and the verbs that change the rules.

Each verb changes its own fields of a rule and no others; `apply` takes all of a file or none.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.config import find_root, load
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.project_store import find_store_address, maybe_store, project_store
from scrapyd_dist.fleet.throttled_domains import (
    HEADINGS,
    ThrottledDomain,
    is_held,
    limit_of,
    list_domains,
    list_heedings,
    throttle_document,
    unheeded,
)
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.settings import LONGEST_WINDOW, MOST_HITS
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE
from scrapyd_dist.throttle.permits import ALL, Rule
from scrapyd_dist.throttle.rules_file import SHORTEST_WINDOW, domain_of, merge_rules, read

from ..options import STDIN, DryRun, argument, domains, opened_file, option
from ..output import Output, say, table

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


@dataclass(frozen=True, kw_only=True)
class Changed:
    """What a command did to the rules."""

    version: int  #: of the rules as they are now
    before: Mapping[str, Rule]
    changes: Mapping[str, Rule | None]  #: domain -> its new rule; None where it has none any more
    crawls: Sequence[Mapping[str, Any]] = ()  #: those that run, as `list_heedings` tells them

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
        return Changed(
            version=version, before=now.rules, changes=changes, crawls=list_heedings(store)
        )


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


def shorten_domains(domains: Sequence[str]) -> str:
    """Return domains as people are told of them; of many, the first."""
    return some_of(["all domains" if domain == ALL else domain for domain in domains])


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
    rows: list[ThrottledDomain] = []
    version = 0
    crawls: list[dict[str, Any]] = []
    if store := open_throttle_store():
        with closing(store):
            rows, version = list_domains(store)
            crawls = list_heedings(store)
    if names:
        rows = _rows_named(rows, names)
    document = throttle_document(rows, version, crawls)
    if output.document(document):
        return
    if not rows:
        say(
            "No domain has a limit of its own, and none was asked for yet. `sdist throttle set` "
            "gives one a limit."
        )
    else:
        table(HEADINGS, list(map(ThrottledDomain.cells, rows)))
        _say_totals(document["totals"])
        for heeding in crawls:
            whole = f"{heeding['crawl']} heeds the rules in all of its processes."
            say(unheeded(heeding) or whole)


def _rows_named(rows: Sequence[ThrottledDomain], names: Sequence[str]) -> list[ThrottledDomain]:
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


def _say_totals(totals: Mapping[str, int]) -> None:
    pieces = [counted(totals["domains"], "domain")]
    for kind, count in totals.items():
        if count and kind != "domains":
            pieces.append(f"{count:,} {kind}")
    say(f"{', '.join(pieces)}.")


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
