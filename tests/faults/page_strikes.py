"""Pages that hang, block or raise, and handlers that never let the spider go."""

from collections.abc import Iterator
from contextlib import contextmanager

from faults.trial import Trial

#: the spider of the project, whose code does something odd at one page
ODD = "odd"
_ODD_SPIDER = """
import asyncio
import os
import signal
import time

from properties.spiders.easy import EasySpider


class OddSpider(EasySpider):
    name = "odd"
    rules = EasySpider.rules

    def parse_item(self, response):
        if response.url.endswith("{page}"):
            {deed}
        yield from super().parse_item(response)
"""
#: the spider of the project whose idle handler keeps it open for ever
OPEN = "open"
_OPEN_SPIDER = """
from scrapy import signals
from scrapy.exceptions import DontCloseSpider

from properties.spiders.easy import EasySpider


class OpenSpider(EasySpider):
    name = "open"
    rules = EasySpider.rules

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.stay, signals.spider_idle)
        return spider

    def stay(self):
        raise DontCloseSpider
"""
#: what is no `Exception`
RAISED = ("asyncio.CancelledError", "GeneratorExit", "KeyboardInterrupt", "SystemExit")


def nothing(trial: Trial) -> None:
    """The trouble is there from the start."""


def _choose_page(trial: Trial) -> str:
    """Return the path of the one page that has to be missed."""
    trial.missed = trial.dice.randrange(trial.site.site.items)
    return trial.site.site.detail_path(trial.missed)


@contextmanager
def hanging_page(trial: Trial) -> Iterator[None]:
    """One page hangs in every worker, from the start."""
    trial.hanging_page.write_text(_choose_page(trial))
    yield


@contextmanager
def blocking_page(trial: Trial) -> Iterator[None]:
    """The callback of one page never returns, and nothing else of its process runs meanwhile."""
    text = _ODD_SPIDER.format(page=_choose_page(trial), deed="time.sleep(10**6)")
    trial.project.spider(ODD, text)
    yield


@contextmanager
def raising_page(trial: Trial) -> Iterator[None]:
    """The callback of one page raises what is no `Exception`; the dice say which."""
    error = trial.dice.choice(RAISED)
    trial.reason = error.rpartition(".")[2]
    text = _ODD_SPIDER.format(page=_choose_page(trial), deed=f"raise {error}")
    trial.project.spider(ODD, text)
    yield


@contextmanager
def ending_page(trial: Trial) -> Iterator[None]:
    """The callback of one page sends its own process SIGTERM, as a library that gives up does; no page is missed."""
    page = trial.site.site.detail_path(trial.dice.randrange(trial.site.site.items))
    deed = "os.kill(os.getpid(), signal.SIGTERM)"
    trial.project.spider(ODD, _ODD_SPIDER.format(page=page, deed=deed))
    yield


@contextmanager
def open_spider(trial: Trial) -> Iterator[None]:
    """The project's idle handler raises `DontCloseSpider` whenever it is asked."""
    trial.project.spider(OPEN, _OPEN_SPIDER)
    yield
