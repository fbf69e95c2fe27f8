"""The settings of a producer as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scrapy.settings import BaseSettings

from scrapyd_dist.batches import check_crawl_name
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import WorkerRequest
from scrapyd_dist.frontier.intake import BATCH_SIZE as LEASED
from scrapyd_dist.frontier.intake import FAIR_SIZE
from scrapyd_dist.goals import Goals
from scrapyd_dist.items.sink import REVEALED, password_in, split
from scrapyd_dist.scheduling.base import SchedulerLimits
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.settings import AUTO, SETTINGS, SettingReader, judge

from ..throttle.throttle_options import ThrottleOptions

#: requests in a batch of a fixed size, as in the book
BATCH_SIZE = 1000
#: requests in the largest batch, where sizes adapt: what is lost with a worker is minutes of work all the same
LARGEST = 10_000
#: names of the one feed format that can be merged
LINES = ("jsonlines", "jsonl", "jl")
CMDLINE = 40  #: Scrapy's priority of -s


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """The settings of a producer. Seconds and counts as in `docs/reference/settings.md`."""

    crawl: str | None = None
    nodes: tuple[
        str, ...
    ] = ()  #: targets of scrapy.cfg, addresses, `file:` and `cmd:` with what lists nodes
    target_hosts: tuple[str, ...] = ()  #: addresses of nodes, where `nodes` is empty
    nodes_every: float = 10.0  #: seconds after which commands and names are asked again
    index: str | None = None
    pages: int | None = None
    first_page: int = 0
    shards: int = 1
    start_urls_file: str | None = None
    sent_size: int = LARGEST  #: requests in a batch that is sent, at most
    batch_adapt: bool = True  #: batches are as large as the fleet can use, batch_size at most
    batch_max_age: float = 30.0
    target_feed_url: str | None = None
    target_feed_format: str = "jsonlines"
    send_feed_url: bool = False  #: whether the feed URL may travel as a setting
    outputs: tuple[Mapping[str, Any], ...] = ()
    deliver: str | None = None  #: the address of a sink for accepted parts
    deploy: str = "if-missing"
    unsendable: str = "local"
    placement: str = Placement.KINDS[0]
    profile: str = "usual"
    max_failed: int = 0
    min_items: int = 0
    goals: Goals = field(default_factory=Goals)  #: of the whole crawl
    goal_depth: int = 0
    limit: int = 0  #: target requests that are handed out, the first ones; 0: all
    labels: tuple[str, ...] = ()
    store: str | None = None
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    mode: str = "auto"
    leases: bool = True  #: workers lease batches, where they reach the store
    only_leased: str = ""  #: the settings, of those given, that only workers know which lease
    scaling: ScalingPolicy = field(
        default_factory=ScalingPolicy
    )  #: of workers that lease, and how sites share them
    throttled: bool = False  #: workers ask the store for permits
    heeds: bool = (
        True  #: nothing was said of the throttle: the rules of the store hold, where it is reached
    )

    @property
    def batch_size(self) -> int:
        """Requests in a batch, at most."""
        return self.scaling.terms.batch_size if self.leases else self.sent_size

    @property
    def sends(self) -> bool:
        """Whether nodes whose workers do not reach the store are sent their batches."""
        return not self.leases or (self.mode == "auto" and not self.only_leased)

    @property
    def why_reach(self) -> str:
        """Which of the settings makes that workers need the store; empty when they can do without."""
        if not self.sends:
            return self.only_leased or "--pull, DISTRIBUTED_MODE"
        return "DISTRIBUTED_THROTTLE" if self.throttled else ""

    @property
    def sharded(self) -> bool:
        return self.index is not None or self.start_urls_file is not None


def read_options(settings: BaseSettings) -> ProducerOptions:
    """The options in these settings; ConfigError if a value is not of its kind, or two do not go together."""
    reader = SettingReader(settings)
    judge(settings)
    throttle = ThrottleOptions.from_settings(settings)
    read, values = reader.value, reader.values_for(ProducerOptions)
    crawl, mode, feed_url, adapts = (
        values["crawl"],
        values["mode"],
        values["target_feed_url"],
        _adapts(reader),
    )
    # What a job writes to a feed URL would have items of lost leases; without waiting, all is sent at once.
    may_lease = not feed_url and read("DISTRIBUTED_WAIT")
    options = ProducerOptions(
        **{
            **values,
            "crawl": check_crawl_name(crawl) if crawl else None,
            "sent_size": _fixed_size(reader) or (LARGEST if adapts else BATCH_SIZE),
            "batch_adapt": adapts,
            "send_feed_url": _may_travel(feed_url, settings),
            "deliver": _without_secret(values["deliver"], settings),
            "store": values["store"] if reader.given("DISTRIBUTED_STORE") else None,
            "limits": SchedulerLimits(
                **reader.values_for(SchedulerLimits), poll=read("DISTRIBUTED_POLL_INTERVAL")
            ),
            "leases": mode == "pull" or (mode == "auto" and may_lease),
            "only_leased": ", ".join(
                name for name, row in SETTINGS.items() if row.pull_only and reader.value(name)
            ),
            "scaling": _scaling(reader),
            "goals": Goals.from_settings(settings),
            "throttled": throttle.on,
            "heeds": throttle.heeds,
        }
    )
    _check_together(options)
    return options


def _fixed_size(reader: SettingReader) -> int | None:
    size = reader.value("DISTRIBUTED_BATCH_SIZE")
    return None if size == AUTO else int(size)


def _adapts(reader: SettingReader) -> bool:
    """A producer that does not wait cannot see how many requests fit."""
    return _fixed_size(reader) is None and bool(reader.value("DISTRIBUTED_WAIT"))


def _scaling(reader: SettingReader) -> ScalingPolicy:
    """The allowed number of workers, and what each is told."""
    terms = reader.values_for(WorkerRequest)
    terms["batch_size"] = _fixed_size(reader) or (FAIR_SIZE if terms["fair"] else LEASED)
    return ScalingPolicy(most=reader.value("DISTRIBUTED_MAX_JOBS"), terms=WorkerRequest(**terms))


def _check_together(options: ProducerOptions) -> None:
    if options.index is not None and options.start_urls_file is not None:
        raise ConfigError(
            "Give either index pages (--index, DISTRIBUTED_INDEX) or a list of them (--start-urls), not both."
        )
    if options.index is not None and options.pages is None:
        raise ConfigError(
            "An index address needs the number of its pages: --pages N (DISTRIBUTED_PAGES)."
        )
    if options.target_feed_url and options.outputs and options.target_feed_format not in LINES:
        raise ConfigError(
            f"Feeds in the format {options.target_feed_format!r} (DISTRIBUTED_TARGET_FEED_FORMAT) cannot be merged into"
            " one item file, only JSON lines can. Leave out -o, or the format."
        )
    if options.deliver and options.target_feed_url is not None:
        raise ConfigError(
            "Items are delivered (--deliver, DISTRIBUTED_DELIVER) when they are home, and a feed URL (--feed,"
            " DISTRIBUTED_TARGET_FEED_URL) keeps them from coming home. Leave out one of the two."
        )
    if options.mode == "pull" and options.target_feed_url is not None:
        raise ConfigError(
            "Workers that lease (--pull, DISTRIBUTED_MODE) bring items home batch by batch, and a feed URL (--feed,"
            " DISTRIBUTED_TARGET_FEED_URL) is written job by job: what a lost lease leaves in it would count twice."
            " Leave out one of the two."
        )
    if options.index is None and options.pages is not None:
        raise ConfigError(
            "A number of pages needs the address of the index: --index TEMPLATE (DISTRIBUTED_INDEX)."
        )
    if options.index is None and options.start_urls_file is None and options.shards != 1:
        raise ConfigError(
            "Shards need to know the index pages: --index TEMPLATE --pages P, or --start-urls FILE"
            " (DISTRIBUTED_INDEX, DISTRIBUTED_PAGES, DISTRIBUTED_START_URLS_FILE)."
        )


def _without_secret(address: str | None, settings: BaseSettings) -> str | None:
    """The address of --deliver; ConfigError if a password in it could be read by others."""
    if (
        address
        and password_in(address)
        and (settings.getpriority("DISTRIBUTED_DELIVER") or 0) >= CMDLINE
    ):
        raise ConfigError(REVEALED)
    return address


def _may_travel(feed_url: str | None, settings: BaseSettings) -> bool:
    """Whether the feed URL can be sent as a setting; one with a password must be on the nodes already."""
    if feed_url is None:
        return False
    parts = split(feed_url, "The feed URL (DISTRIBUTED_TARGET_FEED_URL, --feed)")
    if parts.password is None:
        return True
    if (settings.getpriority("DISTRIBUTED_TARGET_FEED_URL") or 0) >= CMDLINE:
        raise ConfigError(
            "The feed URL has a password, and a job's settings can be read in its node's process list and job list. Put"
            " DISTRIBUTED_TARGET_FEED_URL into the project's settings.py, which is deployed, not on the command line."
        )
    return False
