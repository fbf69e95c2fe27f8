"""`sdist throttle block`, `unblock`, `pause`, `resume`: domains for which nothing leaves. Rule: their limits stay."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.throttle.values import ALL, Rule

from ..choosing import Json
from .rules import Domains, SomeDomains, change, named, names_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    from ..speaking import put_json, say

    changed = change(lambda now: {name: replace(now.get(name, Rule()), **fields) for name in names})
    if as_json:
        put_json(changed.document())
        return
    if changed.changes:
        say(f"{done}: {named(list(changed.changes))}. {changed.notice}")
    others = [name for name in names if name not in changed.changes]
    if others:
        say(f"{already}: {named(others)}.")
    rules = {**changed.before, **changed.changes}
    still = [domain for domain, rule in rules.items() if rule is not None and rule.paused]
    if fields == {"paused": False} and still:
        say(f"Still paused: {named(sorted(still))}.")
