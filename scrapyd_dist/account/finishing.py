"""What is asked of the end of a crawl: how many items it must have, and who is told. Values and decisions, no IO."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapyd_dist.batches import Crawl

#: earlier crawls that a new one is compared with, at most
RUNS = 20
#: of them, so many are needed
RUNS_NEEDED = 3
#: how far below the median is unusual: in median absolute deviations, scaled to be a standard deviation …
DEVIATIONS = 3.0
_SCALE = 1.4826
#: … and in parts of the median, so that a site which never changes does not raise an alarm over one item
PART = 0.8


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the person who started a crawl asked of its end."""

    on_finish: str = ""  #: a command or an http(s) address; empty for none
    min_items: int = 0

    def __post_init__(self) -> None:
        scheme, sign, _ = self.on_finish.strip().partition("://")
        if sign and scheme.isalnum() and not is_address(self.on_finish):
            raise ConfigError(
                f"--on-finish (DISTRIBUTED_ON_FINISH) takes a command, or an address that begins with http:// or"
                f" https://, and this one begins with {scheme}://."
            )
        if self.min_items < 0:
            raise ConfigError(f"--min-items (DISTRIBUTED_MIN_ITEMS) is {self.min_items}, and must be 0 or more.")
        if is_address(self.on_finish):
            shown(self.on_finish)


def is_address(on_finish: str) -> bool:
    """Whether it is an address to be told, not a command to be run."""
    return on_finish.strip().lower().startswith(("http://", "https://"))


def shown(address: str) -> str:
    """An address as it may be told: paths and queries of such addresses are often secrets, as user names are.

    Raises:
        ConfigError: it has no host.
    """
    try:
        parts = urlsplit(address.strip())
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    except ValueError:
        host = None
    if not host:
        raise ConfigError("The address of --on-finish (DISTRIBUTED_ON_FINISH) has no host, or a port that is none.")
    return f"{parts.scheme}://{host}/…"


def environment(document: Mapping[str, Any]) -> dict[str, str]:
    """What a command of --on-finish gets beside the summary on its standard input."""
    texts = {f"SDIST_{name.upper()}": str(document.get(name) or "") for name in ("crawl", "spider", "state")}
    numbers = {f"SDIST_{name.upper()}": str(document.get(name) or 0) for name in ("exit_code", "items")}
    return {**texts, **numbers}


def too_few(items: int, least: int) -> str:
    """Why these are too few items, in a sentence; empty where they are enough."""
    if items >= least:
        return ""
    return f"The crawl has {items:,} items, and at least {least:,} were asked for (--min-items, DISTRIBUTED_MIN_ITEMS)."


def earlier_items(crawl: str, args: Mapping[str, Any], rows: Iterable[Crawl], spider: str) -> list[int]:
    """How many items the last finished crawls of this spider with the same arguments had, newest first.

    Args:
        crawl: the one that is compared, which is not among them.
        args: its spider arguments.
        rows: all crawls, newest first.
        spider: its name.
    """
    like = (
        row
        for row in rows
        if row.id != crawl
        and row.spider == spider
        and row.state is CrawlState.FINISHED
        and dict(row.options.get("args") or {}) == dict(args)
        and not _is_limited(row)
    )
    return [int(row.summary["items"]) for row in like if isinstance(row.summary.get("items"), int)][:RUNS]


def _is_limited(row: Crawl) -> bool:
    """Whether it was a trial of some pages."""
    given = [row.options.get(name) or {} for name in ("settings", "spider_settings")]
    return any(str(settings.get("DISTRIBUTED_LIMIT") or "0") != "0" for settings in given)


def unusual(items: int, earlier: Sequence[int]) -> str:
    """Why these are unusually few items, in a sentence; empty where they are not, or nobody can know.

    Args:
        items: of this crawl.
        earlier: of the last finished ones of the same kind.
    """
    if len(earlier) < RUNS_NEEDED:
        return ""
    usual = median(earlier)
    spread = median(abs(one - usual) for one in earlier) * _SCALE
    if items >= usual - DEVIATIONS * spread or items >= PART * usual:
        return ""
    return (
        f"{items:,} items are unusually few: the median of the last {len(earlier)} crawls of this spider is"
        f" {usual:,.0f}."
    )
