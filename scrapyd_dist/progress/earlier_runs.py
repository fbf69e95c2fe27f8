"""Says which earlier crawls one can be compared with: for its warning, report and page. No IO."""

import json
from collections.abc import Iterable

from scrapyd_dist.batches import Crawl, CrawlState

#: maximum number of earlier runs to compare with
RUNS = 20


def earlier_runs(crawls: Iterable[Crawl], last: Crawl) -> tuple[Crawl, ...]:
    """Return the last whole runs of its kind before this crawl, oldest first."""
    kind = kind_of(last)
    runs = []
    for crawl in crawls:
        if crawl.id == last.id or crawl.created > last.created:
            continue
        if kind_of(crawl) == kind and is_whole(crawl):
            runs.append(crawl)
    runs.sort(key=lambda crawl: crawl.created)
    return tuple(runs[-RUNS:])


def kind_of(crawl: Crawl) -> tuple[str, str, str]:
    """Return what crawls that may be compared have in common: project, spider and arguments."""
    args = dict(crawl.options.get("args") or {})
    return crawl.project, crawl.spider, json.dumps(args, sort_keys=True, default=str)


def is_whole(crawl: Crawl) -> bool:
    """Say whether a crawl came to its end with all; a trial run says nothing of the site."""
    summary = crawl.summary
    if crawl.state is not CrawlState.FINISHED or not isinstance(summary.get("items"), int):
        return False
    if summary.get("goal") or summary.get("closed_by"):
        return False
    for name in ("settings", "spider_settings"):
        settings = crawl.options.get(name) or {}
        if str(settings.get("DISTRIBUTED_LIMIT") or "0") != "0":
            return False
    return True
