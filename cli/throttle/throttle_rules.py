"""The rules of the project's throttle, as its commands read and change them, and which running crawls heed them.

The rule it keeps: what one command changes goes into the store in one step, and what it does not name stays.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.config import find_root, load
from scrapyd_dist.store import open_store
from scrapyd_dist.store.address import VARIABLE
from scrapyd_dist.throttle.domain_status import DomainRules, terms_of
from scrapyd_dist.throttle.permits import ALL, PermitReply, PermitRequest, Rule
from scrapyd_dist.throttle.rules_file import domain_of

from ..candidates import domains
from ..crawls.watcher import alive_state
from ..project_store import maybe_store, project_store, where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.store import Store

    Changes = Mapping[str, Rule | None]

#: how long it takes until every process that heeds the rules heeds a change
NOTICE = "Running crawls heed it within 2 seconds"
#: domains that are named in a sentence
_NAMED = 10
_HELP = f"A registered domain, an address, or a host such as localhost; '{ALL}' is all domains."
OneDomain = Annotated[str, typer.Argument(metavar="DOMAIN", autocompletion=domains, help=_HELP)]
Domains = Annotated[
    list[str], typer.Argument(metavar="DOMAIN", autocompletion=domains, help="Registered domains, addresses, hosts.")
]
SomeDomains = Annotated[
    Optional[list[str]],
    typer.Argument(metavar="DOMAIN", autocompletion=domains, help="Only these; all of them if left out."),
]


@dataclass(frozen=True, kw_only=True)
class Heeding:
    """How one running crawl heeds the rules."""

    crawl: str
    reason: str = ""  #: why none of its processes does
    nodes: Mapping[str, str] = field(default_factory=dict)  #: those whose workers do not, and why

    @property
    def heeded(self) -> bool:
        return not self.reason and not self.nodes

    @property
    def said(self) -> str:
        """What does not, in a sentence; empty when all do."""
        if self.reason:
            return f"{self.crawl} does not: {self.reason.rstrip('.')}."
        if self.nodes:
            why = "; ".join(dict.fromkeys(reason.rstrip(".") for reason in self.nodes.values()))
            return f"{self.crawl} does not on {', '.join(self.nodes)}: {why}."
        return ""

    def document(self) -> dict[str, Any]:
        return {"crawl": self.crawl, "heeded": self.heeded, "reason": self.reason, "nodes": dict(self.nodes)}


def heedings(store: Store) -> list[Heeding]:
    """The crawls and frontiers that a process works on."""
    rows = (row for row in store.crawls() if not row.state.ended)
    return [_heeding(row) for row in rows if alive_state(row) in set(CrawlState)]


def _heeding(row: Crawl) -> Heeding:
    said = row.summary.get("throttle")
    if isinstance(said, dict):
        return Heeding(crawl=row.id, reason=str(said.get("reason") or ""), nodes=dict(said.get("nodes") or {}))
    if row.summary:
        return Heeding(crawl=row.id, reason="it was begun by an older scrapyd-dist")
    return Heeding(crawl=row.id)  # it has sent nothing yet, and looks for rules before it does


@dataclass(frozen=True, kw_only=True)
class Changed:
    """What a command did to the rules."""

    version: int  #: of the rules as they are now
    before: Mapping[str, Rule]
    changes: Changes  #: domain -> its new rule; None where it has none any more
    crawls: Sequence[Heeding] = ()  #: those that run

    @property
    def notice(self) -> str:
        """When, and where, it is heeded."""
        others = [one.said for one in self.crawls if not one.heeded]
        return " ".join([f"{NOTICE}{', but for these:' if others else '.'}", *others])

    def document(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "changes": [
                {"domain": domain, "was": _rule(self.before.get(domain)), "is": _rule(rule)}
                for domain, rule in self.changes.items()
            ],
            "crawls": [one.document() for one in self.crawls],
        }

    def after(self, domain: str) -> Rule:
        """The rule of a domain as it is now."""
        changed = self.changes.get(domain) if domain in self.changes else self.before.get(domain)
        return changed or Rule()


def change(plan: Callable[[Mapping[str, Rule]], Mapping[str, Rule]], *, dry_run: bool = False) -> Changed:
    """Change rules of this project's throttle.

    Args:
        plan: gets the rules in force; gives the new rule of each domain that is to have one or to lose its own, as
            `Rule()`. Rules that are there already are left out of what is done.
        dry_run: change nothing.
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

    Args:
        make: make one when there is none; else the answer is None then.
    """
    outside = find_root() is None and bool(os.environ.get(VARIABLE))
    root = Path.cwd() if outside else load().root
    if not make:
        return maybe_store(root)
    return open_store(where(root)) if outside else project_store(root)


def _needed(wanted: Mapping[str, Rule], now: Mapping[str, Rule]) -> dict[str, Rule | None]:
    nothing = Rule()
    return {
        domain: rule if rule != nothing else None for domain, rule in wanted.items() if now.get(domain, nothing) != rule
    }


def names_of(domains: Sequence[str]) -> list[str]:
    """Domains as the store calls them, each once.

    Raises:
        ConfigError: one of them is none; nothing was changed.
    """
    return list(dict.fromkeys(domain_of(text) for text in domains))


def is_held(domain: str, rules: Mapping[str, Rule]) -> bool:
    """Whether the rules let nothing leave for a domain; a scale can leave it nothing, too."""
    answer = terms_of(PermitRequest(key=domain, domain=domain), rules, DomainRules(), 0)
    return isinstance(answer, PermitReply) and answer.held


def limit_of(rule: Rule) -> str:
    """A limit in words: 10 in 60 s, scaled 0.5; empty for none."""
    if rule.hits is None or rule.window is None:
        return ""
    return f"{rule.hits:,} in {rule.window:g} s" + (f", scaled {rule.scale:g}" if rule.scale < 1 else "")


def named(domains: Sequence[str]) -> str:
    shown = ", ".join("all domains" if domain == ALL else domain for domain in domains[:_NAMED])
    return f"{shown} and {len(domains) - _NAMED:,} more" if len(domains) > _NAMED else shown


def _rule(rule: Rule | None) -> dict[str, Any] | None:
    return None if rule is None else {**limit_document(rule), "blocked": rule.blocked, "paused": rule.paused}


def limit_document(rule: Rule) -> dict[str, Any]:
    return {"hits": rule.hits, "window": rule.window, "scale": rule.scale}
