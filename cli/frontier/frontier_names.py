"""Finds the frontier and the slots that a command names; an error suggests similar names."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, SlotCount
from scrapyd_dist.frontier.intake import check_frontier_name

from ..candidates import frontiers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy.settings import Settings

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.store import Store

    from ..context import Context

#: names that are listed where one is not found
_LISTED = 10
FrontierName = Annotated[
    str,
    typer.Argument(
        metavar="FRONTIER", autocompletion=frontiers, help="The frontier's name, as `sdist frontier list` shows it."
    ),
]
Prefix = Annotated[Optional[str], typer.Option("--prefix", metavar="P", help="Only slots whose name begins like this.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def opened(context: Context, name: str) -> tuple[Store, Crawl]:
    """The project's store and a frontier in it; a crawl is one as well.

    Raises:
        ConfigError: nothing can be called so.
        NothingMatched: nothing is.
    """
    check_frontier_name(name)
    store = context.store_if_any
    if store is None:
        raise NothingMatched(f"There is no frontier {name}, and nothing else in {context.root} yet. {_HOW}")
    return store, _found(store, name)


_HOW = "`sdist frontier add FRONTIER FILE` makes one, and so does a producer's first write."


def _found(store: Store, name: str) -> Crawl:
    rows = {crawl.id: crawl for crawl in store.crawls()}
    if name in rows:
        return rows[name]
    near = difflib.get_close_matches(name, rows, 1)
    frontiers = [crawl.id for crawl in rows.values() if crawl.kind == "frontier"]
    hint = f" Did you mean {near[0]}?" if near else ""
    raise NothingMatched(f"There is no frontier {name}.{hint} The frontiers are: {listed(frontiers)}. {_HOW}")


def listed(names: Sequence[str]) -> str:
    """Return some names for a sentence."""
    if not names:
        return "none"
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(name or "'' (the slot without a name)" for name in names[:_LISTED]) + more


def with_prefix(counts: Sequence[SlotCount], frontier: str, prefix: str) -> list[SlotCount]:
    """The slots whose names begin so.

    Raises:
        NothingMatched: there is none.
    """
    found = [count for count in counts if count.slot.startswith(prefix)]
    if not found:
        raise NothingMatched(
            f"The frontier {frontier} has no slot whose name begins with {prefix!r}."
            f" Its slots are: {listed([count.slot for count in counts])}."
        )
    return found


def matching(counts: Sequence[SlotCount], frontier: str, pattern: str) -> list[SlotCount]:
    """The slots whose names a regular expression fits, as a whole.

    Raises:
        ConfigError: it is none.
        NothingMatched: it fits no slot.
    """
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--regex {pattern!r} is no regular expression: {error}.") from None
    found = [count for count in counts if wanted.fullmatch(count.slot)]
    if not found:
        raise NothingMatched(
            f"No slot of the frontier {frontier} fits {pattern!r}."
            f" Its slots are: {listed([count.slot for count in counts])}."
        )
    return found


def slot_of(counts: Sequence[SlotCount], frontier: str, name: str) -> SlotCount:
    """The slot of that name.

    Raises:
        NothingMatched: there is none.
    """
    for count in counts:
        if count.slot == name:
            return count
    near = difflib.get_close_matches(name, [count.slot for count in counts], 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise NothingMatched(
        f"The frontier {frontier} has no slot {name!r}.{hint}"
        f" Its slots are: {listed([count.slot for count in counts])}."
    )


def check_own_slot(name: str) -> None:
    """Refuse slots of other spiders, because their names say which spider crawls them.

    Raises:
        ConfigError: it is one of these.
    """
    if name.startswith(OTHER_SPIDER):
        raise ConfigError(
            f"{name!r} names slots of other spiders: the name says which spider crawls what lies there, so their"
            " requests cannot be moved from or to them."
        )


def settings_of(ours: Mapping[str, Any]) -> Settings:
    """The project's settings, with ours on top of them; its code runs in this process.

    Raises:
        ConfigError: they cannot be loaded.
    """
    from scrapyd_dist.middlewares.producer.process import broken, project_settings

    try:
        return project_settings(ours)
    except Exception as error:
        raise ConfigError(broken(error)) from error
