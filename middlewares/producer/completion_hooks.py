"""Judge the number of a finished crawl's items, and notify `DISTRIBUTED_ON_FINISH`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from scrapy.settings import BaseSettings

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import DistError
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.earlier_runs import earlier_runs
from scrapyd_dist.progress.summary_document import SCHEMA, UNUSUAL, count_in
from scrapyd_dist.settings import SettingReader
from scrapyd_dist.transports.event_hook import EventHook

from .crawl_repository import CrawlRepository
from .producer_options import ProducerOptions

#: minimum number of earlier crawls for a comparison
RUNS_NEEDED = 3
#: items are unusually few below the median minus this many scaled median absolute deviations …
DEVIATIONS = 3.0
#: makes of a median absolute deviation the standard deviation of a normal distribution
_SCALE = 1.4826
#: … and below this fraction of the median, so that a site that never changes raises no alarm over
#: one item
PART = 0.8


def hook_of(on_finish: str) -> EventHook:
    """Return what is notified at the end, by the value of DISTRIBUTED_ON_FINISH."""
    return EventHook(
        target=on_finish, option="--on-finish (DISTRIBUTED_ON_FINISH)", event="the end of the crawl"
    )


def read_on_finish(settings: BaseSettings) -> str:
    """Return the command to run or the http(s) URL to notify at the end, empty for none.

    ConfigError if the setting can be neither.
    """
    on_finish: str = SettingReader(settings).value("DISTRIBUTED_ON_FINISH") or ""
    hook_of(on_finish).check()
    return on_finish


def environment(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables for an --on-finish command.

    It gets the summary on its standard input, too.
    """
    usual = {"crawl": "", "spider": "", "state": "", "exit_code": 0, "items": 0}
    variables = {}
    for name, default in usual.items():
        variables[f"SDIST_{name.upper()}"] = str(document.get(name) or default)
    return variables


def too_few(items: int, least: int) -> str:
    """Return a warning if there are fewer items than required, else ""."""
    if items >= least:
        return ""
    return (
        f"The crawl has {counted(items, 'item')}, and at least {least:,} were asked for"
        " (--min-items, DISTRIBUTED_MIN_ITEMS)."
    )


def unusual(items: int, earlier: Sequence[int]) -> str:
    """Return a warning if there are unusually few items.

    Empty if not, or with too few comparable earlier crawls.
    """
    if len(earlier) < RUNS_NEEDED:
        return ""
    usual = median(earlier)
    spread = median(abs(count - usual) for count in earlier) * _SCALE
    if items >= usual - DEVIATIONS * spread or items >= PART * usual:
        return ""
    return (
        f"{counted(items, 'item')} {UNUSUAL}: the median of the last {len(earlier)} crawls of this"
        f" spider is {usual:,.0f}."
    )


def refusal(crawl: str | None, spider: str, error: DistError) -> dict[str, Any]:
    """Return the summary of a crawl that was refused before there was anything to sum up."""
    return {
        "schema": SCHEMA,
        "crawl": crawl or "",
        "spider": spider,
        "state": CrawlState.REFUSED.value,
        "exit_code": error.exit_code,
        "message": str(error),
        "items": 0,
    }


async def judge_items(
    options: ProducerOptions, repository: CrawlRepository, items: int
) -> tuple[list[str], str]:
    """Return warnings of an unusual number of items, and why it is too small, if it is."""
    warnings: list[str] = []
    if not options.limit:  # a limited crawl says nothing of the site
        store = repository.thread.store
        row = await repository.read_row()
        crawls = await repository.thread(store.crawls)
        counts = [count_in(run.summary, "items") for run in earlier_runs(crawls, row)]
        if warning := unusual(items, counts):
            warnings.append(warning)
    return warnings, too_few(items, options.min_items)


def notify_on_finish(on_finish: str, document: Mapping[str, Any]) -> str:
    """Notify DISTRIBUTED_ON_FINISH, if it is set, of the end that this summary describes.

    Returns what went wrong, empty if nothing did.
    """
    return hook_of(on_finish).notify(document, environment(document))
