"""The verbs of `sdist throttle` that change the rule of a domain; each changes its own fields and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.throttle.permits import ALL, Rule
from scrapyd_dist.throttle.rules_file import check_hits, check_scale, check_window

from ..selectors import Json
from .throttle_rules import Domains, OneDomain, SomeDomains, change, is_held, limit_of, named, names_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .throttle_rules import Changed


def set_(
    domain: OneDomain,
    hits: Annotated[Optional[int], typer.Option(metavar="N", help="Requests that may leave in any window.")] = None,
    window: Annotated[Optional[float], typer.Option(metavar="SECONDS", help="How long the window is.")] = None,
    scale: Annotated[
        Optional[float], typer.Option(metavar="X", help="The part of the hits that is used, 0 to 1; 0 lets it rest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set how many requests a domain gets, over all workers and hosts of it.

    It goes before the workers' settings, and for a domain before what is said of
    all. What is left out stays as it was. Crawls that run go on with the new
    limit at once.

    Example: sdist throttle set example.com --hits 60 --window 60
    """
    from ..output import put_json, say

    if hits is None and window is None and scale is None:
        raise ConfigError("Nothing to set: say --hits N and --window SECONDS, or one of them, or --scale X.")
    (name,) = names_of([domain])

    def plan(now: Mapping[str, Rule]) -> Mapping[str, Rule]:
        return {name: _limited(name, now.get(name, Rule()), hits, window, scale)}

    changed = change(plan)
    if as_json:
        put_json(changed.document())
        return
    rule, whose = changed.after(name), named([name]).capitalize() if name == ALL else name
    say(f"{whose}: {limit_of(rule)}.{_rests(name, rule)} {changed.notice}")


def _limited(name: str, rule: Rule, hits: int | None, window: float | None, scale: float | None) -> Rule:
    """The rule with what was said of its limit.

    Raises:
        ConfigError: something of it cannot be, or a limit would be half a one.
    """
    hits, window = rule.hits if hits is None else hits, rule.window if window is None else window
    if hits is None or window is None:
        raise ConfigError(
            f"{name} has no limit of its own yet: say both --hits N and --window SECONDS."
            " To let it rest: sdist throttle pause."
        )
    return replace(
        rule,
        hits=check_hits(hits),
        window=check_window(window),
        scale=check_scale(rule.scale if scale is None else scale),
    )


def _rests(name: str, rule: Rule) -> str:
    """Why nothing leaves for it all the same, if so."""
    if rule.blocked:
        return " It is blocked, though; `sdist throttle unblock` ends that."
    if rule.paused:
        return " It is paused, though; `sdist throttle resume` ends that."
    return " That leaves it none: it rests." if is_held(name, {name: rule}) else ""


def unset(domain: Domains, as_json: Json = False) -> None:
    """Remove the limits of domains: what is said of all holds for them, else the workers' settings.

    What is blocked or paused stays so.

    Example: sdist throttle unset example.com
    """
    from ..output import put_json

    names = names_of(domain)

    def plan(now: Mapping[str, Rule]) -> Mapping[str, Rule]:
        return {name: replace(now[name], hits=None, window=None, scale=1.0) for name in names if name in now}

    changed = change(plan)
    if as_json:
        put_json(changed.document())
        return
    _say_what_changed(changed, names, done="No limit of its own any more", already="Had no limit of its own")


def block(domain: Domains, as_json: Json = False) -> None:
    """Put domains on the blacklist: nothing leaves for them any more.

    What waits for them in workers stays there, and goes when they are unblocked.
    `sdist throttle apply` makes the blacklist that of its file.

    Example: sdist throttle block example.com
    """
    names = names_of(domain)
    if ALL in names:
        raise ConfigError("All domains cannot be blocked; to let all of them rest: sdist throttle pause.")
    _set(names, {"blocked": True}, done="Blocked", already="Was blocked already", as_json=as_json)


def unblock(domain: Domains, as_json: Json = False) -> None:
    """Take domains off the blacklist.

    Example: sdist throttle unblock example.com
    """
    _set(names_of(domain), {"blocked": False}, done="Unblocked", already="Was not blocked", as_json=as_json)


def pause(domain: SomeDomains = None, as_json: Json = False) -> None:
    """Let domains rest, or all of them: nothing leaves for them until `sdist throttle resume`.

    `sdist throttle apply` does not end a pause.

    Example: sdist throttle pause example.com
    """
    names = names_of(domain or [ALL])
    _set(names, {"paused": True}, done="Paused", already="Was paused already", as_json=as_json)


def resume(domain: SomeDomains = None, as_json: Json = False) -> None:
    """End the pause of domains; without names, the one of all. Domains paused by name go on resting then.

    Example: sdist throttle resume example.com
    """
    names = names_of(domain or [ALL])
    _set(names, {"paused": False}, done="Resumed", already="Was not paused", as_json=as_json)


def _set(names: Sequence[str], fields: Mapping[str, Any], *, done: str, already: str, as_json: bool) -> None:
    """Set fields of the rules of these domains, and tell what became of each."""
    from ..output import put_json, say

    changed = change(lambda now: {name: replace(now.get(name, Rule()), **fields) for name in names})
    if as_json:
        put_json(changed.document())
        return
    _say_what_changed(changed, names, done=done, already=already)
    rules = {**changed.before, **changed.changes}
    still = [domain for domain, rule in rules.items() if rule is not None and rule.paused]
    if fields == {"paused": False} and still:
        say(f"Still paused: {named(sorted(still))}.")


def _say_what_changed(changed: Changed, names: Sequence[str], *, done: str, already: str) -> None:
    from ..output import say

    if changed.changes:
        say(f"{done}: {named(list(changed.changes))}. {changed.notice}")
    others = [name for name in names if name not in changed.changes]
    if others:
        say(f"{already}: {named(others)}.")
