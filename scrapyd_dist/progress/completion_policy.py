"""Decides what happens at the end of a crawl: the notification, and whether there are too few items. No IO."""

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

#: maximum number of earlier crawls to compare with
RUNS = 20
#: minimum number of earlier crawls for a comparison
RUNS_NEEDED = 3
#: items are unusually few below the median minus this many scaled median absolute deviations …
DEVIATIONS = 3.0
_SCALE = 1.4826
#: … and below this fraction of the median, so that a site that never changes raises no alarm over one item
PART = 0.8


@dataclass(frozen=True, kw_only=True)
class CompletionPolicy:
    """The options of a crawl that concern its end."""

    on_finish: str = ""  #: a command or an http(s) URL to notify; empty for none
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
    """Whether it is a URL to notify, not a command to run."""
    return on_finish.strip().lower().startswith(("http://", "https://"))


def shown(address: str) -> str:
    """Return a URL without path, query and credentials, which are often secret.

    Raises:
        ConfigError: the URL has no host, or an invalid port.
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
    """Return the environment variables for an --on-finish command, which gets the summary on its standard input."""
    texts = {f"SDIST_{name.upper()}": str(document.get(name) or "") for name in ("crawl", "spider", "state")}
    numbers = {f"SDIST_{name.upper()}": str(document.get(name) or 0) for name in ("exit_code", "items")}
    return {**texts, **numbers}


def too_few(items: int, least: int) -> str:
    """Return a warning if there are fewer items than required, else ""."""
    if items >= least:
        return ""
    return f"The crawl has {items:,} items, and at least {least:,} were asked for (--min-items, DISTRIBUTED_MIN_ITEMS)."


def earlier_items(crawl: str, args: Mapping[str, Any], rows: Iterable[Crawl], spider: str) -> list[int]:
    """Return item counts of the last finished crawls of this spider with the same arguments, newest first.

    Args:
        crawl: the crawl to compare, which is left out.
        args: its spider arguments.
        rows: all crawls, newest first.
        spider: the spider's name.
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
    """Whether it was a trial run with DISTRIBUTED_LIMIT."""
    given = [row.options.get(name) or {} for name in ("settings", "spider_settings")]
    return any(str(settings.get("DISTRIBUTED_LIMIT") or "0") != "0" for settings in given)


def unusual(items: int, earlier: Sequence[int]) -> str:
    """Return a warning if there are unusually few items; "" if not, or with too few earlier crawls.

    Args:
        items: items of this crawl.
        earlier: items of earlier comparable crawls.
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
