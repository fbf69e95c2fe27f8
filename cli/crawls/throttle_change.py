"""`sdist throttle`: each verb changes its own fields of a rule and no others; `apply` takes all of a file or none."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any, Optional

import typer

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.throttle.permits import ALL, Rule
from scrapyd_dist.throttle.rules_file import check_hits, check_scale, check_window, read, wanted

from ..options import STDIN, DryRun, group, opened_file
from ..output import Output, say
from . import throttle_rules
from .throttle_rules import Changed, Domains, OneDomain, SomeDomains, change, is_held, limit_of, named, names_of

#: exit code: a dry run found something to do
WOULD_CHANGE = 10


def set_(
    domain: OneDomain,
    hits: Annotated[Optional[int], typer.Option(metavar="N", help="Requests that may leave in any window.")] = None,
    window: Annotated[Optional[float], typer.Option(metavar="SECONDS", help="How long the window is.")] = None,
    scale: Annotated[
        Optional[float], typer.Option(metavar="X", help="The part of the hits that is used, 0 to 1; 0 lets it rest.")
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
        raise ConfigError("Nothing to set: say --hits N and --window SECONDS, or one of them, or --scale X.")
    (name,) = names_of([domain])
    changed = change(lambda now: {name: _limited(name, now.get(name, Rule()), hits, window, scale)})
    if not output.document(changed.document()):
        rule = changed.changes.get(name) or changed.before[name]
        whose = named([name]).capitalize() if name == ALL else name
        rests = ""
        if rule.blocked:
            rests = " It is blocked, though; `sdist throttle unblock` ends that."
        elif rule.paused:
            rests = " It is paused, though; `sdist throttle resume` ends that."
        elif is_held(name, {name: rule}):
            rests = " That leaves it none: it rests."
        say(f"{whose}: {limit_of(rule)}.{rests} {changed.notice}")


def _limited(name: str, rule: Rule, hits: int | None, window: float | None, scale: float | None) -> Rule:
    """The rule with what was given of its limit."""
    hits, window = rule.hits if hits is None else hits, rule.window if window is None else window
    if hits is None or window is None:
        raise ConfigError(
            f"{name} has no limit of its own yet: say both --hits N and --window SECONDS."
            " To let it rest: sdist throttle pause."
        )
    scale = check_scale(rule.scale if scale is None else scale)
    return replace(rule, hits=check_hits(hits), window=check_window(window), scale=scale)


def unset(domain: Domains, output: Output = Output()) -> None:
    """Remove the limits of domains: what is said of all holds for them, else the workers' settings.

    What is blocked or paused stays so.

    Example: sdist throttle unset example.com
    """
    none = {"hits": None, "window": None, "scale": 1.0}
    _change(names_of(domain), output, "No limit of its own any more", "Had no limit of its own", **none)


def block(domain: Domains, output: Output = Output()) -> None:
    """Put domains on the blacklist: nothing leaves for them any more.

    What waits for them in workers stays there, and goes when they are unblocked.
    `sdist throttle apply` makes the blacklist that of its file.

    Example: sdist throttle block example.com
    """
    names = names_of(domain)
    if ALL in names:
        raise ConfigError("All domains cannot be blocked; to let all of them rest: sdist throttle pause.")
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


def _change(names: Sequence[str], output: Output, done: str, already: str, **fields: Any) -> Changed:
    """Give the rules of these domains these fields, and tell what became of each."""
    changed = change(lambda now: {name: replace(now.get(name, Rule()), **fields) for name in names})
    if not output.document(changed.document()):
        if changed.changes:
            say(f"{done}: {named(list(changed.changes))}. {changed.notice}")
        if others := [name for name in names if name not in changed.changes]:
            say(f"{already}: {named(others)}.")
    return changed


def apply(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML, as Scrapy Cluster has it; - is standard input.")],
    dry_run: DryRun = False,
    output: Output = Output(),
) -> None:
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
            kinds["removed" if rule is None else "changed" if domain in changed.before else "new"].append(domain)
        for kind, domains in kinds.items():
            if domains:
                say(f"{kind}: {named(domains)}")
        if not changed.changes:
            say(f"The rules are those of {shown} already.")
        elif dry_run:
            say(f"Nothing was changed; without --dry-run the rules would be those of {shown}.")
        else:
            say(f"The rules are those of {shown} now. {changed.notice}")
    raise typer.Exit(WOULD_CHANGE if dry_run and changed.changes else 0)


throttle = group(
    "Set, show and change while crawls run how many requests each domain gets.",
    show=throttle_rules.show, apply=apply, set=set_, unset=unset, block=block, unblock=unblock, pause=pause,
    resume=resume,
)  # fmt: skip
