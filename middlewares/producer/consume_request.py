"""Collect how a frontier is to be consumed, and refuse what does not go together."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from scrapy.settings import Settings

from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.frontier.backlog import UNFAIR
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.scrapyd.jobs import check_args

from .crawl_request import CrawlRequest, find_project
from .process import check_known
from .producer_options import read_options
from .strategy_process import StrategyRunner


@dataclass(frozen=True, kw_only=True)
class ConsumeRequest:
    """Says how a frontier is to be consumed; ConfigError if its parts do not go together."""

    settings: Settings
    crawl: CrawlRequest  #: `frontier_request` of these settings
    scaling: ScalingPolicy  #: but for the terms, which are settings
    command: str  #: takes up again what the process leaves
    merge: bool = True  #: whether the process stays for the items
    rows: bool = False  #: the frontier's rows are arguments, each of which is a job
    #: the process and machine that the row named when it was looked at
    before: tuple[int | None, str] = (None, "")
    strategy: StrategyRunner | None = None  #: decides beside the workers what is requested

    def __post_init__(self) -> None:
        fair = self.crawl.options.scaling.terms.fair
        if not self.rows and self.scaling.prefix and fair != UNFAIR:
            raise ConfigError(
                f"Workers that share slots fairly ({fair}: --fair, DISTRIBUTED_FAIR) take from all"
                f" of them, and --prefix {self.scaling.prefix} binds each to one. Leave out one of"
                " the two; `-s DISTRIBUTED_FAIR=` takes back what the project's settings say."
            )

    @property
    def frontier(self) -> str:
        """The name of the frontier."""
        return str(self.crawl.options.crawl)


def frontier_request(
    settings: Settings, spider: str, args: Mapping[str, str], given: Mapping[str, str]
) -> CrawlRequest:
    """Return what the workers of the frontier in DISTRIBUTED_CRAWL are asked to be.

    `args` are those of -a, `given` those of -s. The settings get the spider's own, below those of
    -s, as with Scrapy. ConfigError if a value makes no sense.
    """
    check_args(args)
    with suppress(DistError):  # where there is no such spider, the start says so
        check_known(settings, spider).update_settings(settings)
    return CrawlRequest(
        spider=spider,
        options=read_options(settings),
        project=find_project(settings),
        args=args,
        given=given,
    )
