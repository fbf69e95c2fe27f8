"""`sdist crawls show`: how a crawl stands, as for `sdist status`, its batches, or its misses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from scrapyd_dist.batches import BatchState, Crawl, MissKind
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.batch_listing import choose_batches, choose_misses
from scrapyd_dist.fleet.live_crawls import alive_state, describe_crawl
from scrapyd_dist.fleet.missing import missing_rows

from .context import Context
from .crawls import crawl_lists, watcher, wording
from .crawls.crawl import SomeCrawl
from .crawls.producer_process import crawl_or_latest
from .frontier import frontier_list
from .options import option
from .output import Output, put, put_text


@dataclass(frozen=True, kw_only=True)
class ListOptions(Output):
    """Which list of a crawl is shown, and what of it; a field is a parameter of the command."""

    batches: Annotated[
        bool, option("List its batches: how each stands, its attempts, and why they failed.")
    ] = False
    misses: Annotated[bool, option("List the URLs that gave no result so far, and why.")] = False
    state: Annotated[
        list[BatchState] | None,
        option("With --batches: only those in this state. Repeatable.", metavar="STATE"),
    ] = None
    batch: Annotated[
        list[int] | None, option("With --batches: only this one. Repeatable.", metavar="N", min=1)
    ] = None
    kind: Annotated[
        list[MissKind] | None,
        option("With --misses: only gone, failed, dead or index. Repeatable.", metavar="KIND"),
    ] = None
    urls: Annotated[
        bool, option("With --batches or --misses: print the URLs only, one a line.")
    ] = False

    def check(self) -> None:
        """Refuse two forms of output at once, and what chooses from a list that is not shown."""
        if self.batches and self.misses:
            raise ConfigError("--batches and --misses are two lists: give one of the two.")
        if (self.state or self.batch) and not self.batches:
            raise ConfigError("--state and --batch choose batches: add --batches.")
        if self.kind and not self.misses:
            raise ConfigError("--kind chooses URLs without a result: add --misses.")
        if self.urls:
            self._check_urls()

    def _check_urls(self) -> None:
        if not (self.batches or self.misses):
            raise ConfigError("--urls prints the URLs of a list: add --batches or --misses.")
        if self.as_json:
            raise ConfigError("--urls prints lines, and --json a document: give one of the two.")


def show(context: Context, listed: ListOptions, crawl: SomeCrawl = None) -> None:
    """Show a crawl or a frontier: how it stands, its batches, or its URLs without a result.

    A batch is sealed (waits for a node), sent, running, done, failed (waits for its
    next attempt), dead (no attempts left; `sdist retry` gives it new ones) or split
    (its requests are in smaller batches, because one of them killed its workers).
    A URL without a result is gone (the site does not give it, or `scrapy crawl` drops
    it as well), failed (it may be there), dead (given up: with its batch, or since the
    spider has no such callback) or of the index (a failed index page). `sdist retry
    CRAWL --failed-urls`, and of a frontier `sdist frontier requeue FRONTIER
    --failed-urls`, let those wait again that failed or are dead. Failed index pages
    need a new crawl.

    Example: sdist crawls show easy-20260102T030405Z --misses --kind dead
    Example: sdist crawls show easy-20260102T030405Z --batches --state dead --urls
    """
    listed.check()
    row = crawl_or_latest(context.store, crawl)
    if listed.batches:
        _show_batches(context, listed, row.id)
    elif listed.misses:
        _show_misses(context, listed, row.id)
    else:
        show_standing(context, row, listed)


def _show_batches(context: Context, listed: ListOptions, crawl: str) -> None:
    store = context.store
    rows = choose_batches(store, crawl, listed.state or (), listed.batch or ())
    if listed.urls:
        crawl_lists.put_urls(store, context.root, crawl, rows)
    else:
        crawl_lists.list_batches(store, crawl, rows, listed)


def _show_misses(context: Context, listed: ListOptions, crawl: str) -> None:
    kinds = {chosen.value for chosen in listed.kind or MissKind}
    found = choose_misses(context.store, context.root, crawl, kinds)
    if listed.urls:
        for miss in found:
            if miss.url:  # a batch that cannot be read has none
                put(miss.url)
    else:
        crawl_lists.list_misses(crawl, found, listed)


def show_standing(context: Context, row: Crawl, output: Output) -> None:
    """Say how a crawl or a frontier stands now, or how it ended."""
    if row.kind == "frontier":
        frontier_list.status(context.store, row, output)
    elif not output.document(describe_crawl(row)):
        for line in _lines(context, row):
            put_text(line)
        if alive_state(row) == "died":
            put_text(watcher.describe_death(context.root, row))


def _lines(context: Context, row: Crawl) -> Iterable[str]:
    if not row.state.ended:
        return wording.standing(row)
    return wording.closing(row, missing_rows(context.store, context.root, row))
