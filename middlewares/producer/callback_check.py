"""Judge before the start whether a spider has the callbacks of what waits in a frontier.

The rule it keeps: no page is fetched for a spider that can make nothing of any of them. It looks at
a few requests only; where the spider can make some, the others are listed as misses, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from scrapyd_dist.errors import ConfigError, ForeignRow
from scrapyd_dist.frontier.backlog import OTHER_SPIDER
from scrapyd_dist.payload import PayloadError, RequestValue, decode
from scrapyd_dist.store import Store

from ..codec import from_value
from ..targets import callbacks_of, has_parse, with_target
from .spider_check import make_as_job

#: maximum number of slots that are looked at
SLOTS = 20
#: maximum number of batches that are looked at in each slot
BATCHES = 2


def job_crawler(kind: type[Spider], settings: Settings, args: Mapping[str, str]) -> Crawler | None:
    """Return a crawler with its spider, made as that of a job.

    None if the spider cannot be made here, which its jobs tell.
    """
    own = settings.copy()
    own.frozen = False
    crawler = Crawler(kind, own)
    try:
        crawler.spider = make_as_job(crawler, args)
    except Exception:  # noqa: BLE001  (the project's code may raise anything)
        return None
    return crawler


def check_callbacks(
    store: Store, frontier: str, crawler: Crawler, *, key: bytes, prefix: str = ""
) -> None:
    """Raise ConfigError if the crawler's spider can make none of the first requests that wait.

    Blocking. Only slots whose names begin with `prefix` count.
    """
    problems = []
    for value in _first_waiting(store, frontier, key, prefix):
        problem = _find_problem(value, crawler)
        if not problem:
            return
        problems.append(problem)
    if problems:
        kind = crawler.spidercls
        raise ConfigError(
            f"The spider {kind.name} has no callback for what waits in {frontier}: {problems[0]}."
            f" Nothing was started, and no page was fetched.{callbacks_of(kind)} Name one for"
            " requests that have none: -s DISTRIBUTED_TARGET_CALLBACKS=NAME. A name that is wrong"
            " in the frontier is put right by filling another one: sdist frontier add FRONTIER FILE"
            " --spider-callback NAME."
        )


def _first_waiting(store: Store, frontier: str, key: bytes, prefix: str) -> Iterator[RequestValue]:
    """Generate the first requests that wait.

    What cannot be read here is left out, since a worker says why.
    """
    slots = []
    for backlog in store.backlog(frontier).slots:
        is_others = backlog.slot.startswith(OTHER_SPIDER)
        if backlog.waiting and backlog.slot.startswith(prefix) and not is_others:
            slots.append(backlog.slot)
    for slot in slots[:SLOTS]:
        for batch in store.peek(frontier, slot, BATCHES)[:BATCHES]:
            try:
                yield from decode(store.payload(frontier, batch.number).get, key=key)
            except (ForeignRow, PayloadError):
                continue


def _find_problem(value: RequestValue, crawler: Crawler) -> str:
    """Say why the crawler's spider cannot make this request, or has nothing for its page.

    Empty if it has.
    """
    spider = crawler.spider
    assert spider is not None
    try:
        targeted = with_target(value, crawler)
        request = from_value(targeted, spider)
    except (ValueError, TypeError, AttributeError) as error:
        return str(error)
    needs_parse = request.callback is None or targeted.get("callback") == "parse"
    if needs_parse and not has_parse(spider):
        return f"the spider {spider.name} has no method 'parse'"
    return ""
