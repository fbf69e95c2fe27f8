"""Read the settings of a producer into one frozen value."""

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
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.scheduling.scheduler_state import SchedulerLimits
from scrapyd_dist.settings import AUTO, SETTINGS, SettingReader, check_settings

from ..throttle.throttle_options import ThrottleOptions

#: requests in a batch of a fixed size, as in the book
BATCH_SIZE = 1000
#: requests in the largest batch, where sizes adapt: what is lost with a worker is minutes of work
#: all the same
LARGEST = 10_000
#: names of the one feed format that can be merged
LINES = ("jsonlines", "jsonl", "jl")


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Holds the settings of a producer.

    Seconds and counts are those of `docs/reference/settings.md`.
    """

    crawl: str | None = None
    #: targets of scrapy.cfg, addresses, `file:` and `cmd:` with what lists nodes
    nodes: tuple[str, ...] = ()
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
    outputs: tuple[Mapping[str, Any], ...] = ()
    deliver: str | None = None  #: the address of a sink for accepted parts
    deploy: str = "if-missing"
    unsendable: str = "local"
    placement: str = Placement.KINDS[0]
    max_failed: int = 0
    min_items: int = 0
    goals: Goals = field(default_factory=Goals)  #: of the whole crawl
    limit: int = 0  #: target requests that are handed out, the first ones; 0: all
    store: str | None = None
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    mode: str = "auto"
    leases: bool = True  #: workers lease batches, where they reach the store
    only_leased: str = ""  #: the settings, of those given, that only workers know which lease
    #: of workers that lease, and how sites share them
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    throttled: bool = False  #: workers ask the store for permits
    #: nothing was said of the throttle: the rules of the store hold, where it is reached
    heeds: bool = True

    @property
    def batch_size(self) -> int:
        """Return the maximum number of requests in a batch."""
        return self.scaling.terms.batch_size if self.leases else self.sent_size

    @property
    def sends(self) -> bool:
        """Return whether nodes whose workers do not reach the store are sent their batches."""
        return not self.leases or (self.mode == "auto" and not self.only_leased)

    @property
    def why_reach(self) -> str:
        """Return the settings by which workers need the store; empty when they can do without."""
        if not self.sends:
            return self.only_leased or "--pull, DISTRIBUTED_MODE"
        return "DISTRIBUTED_THROTTLE" if self.throttled else ""

    @property
    def sharded(self) -> bool:
        """Return whether the index pages are given, by a template or a file."""
        return self.index is not None or self.start_urls_file is not None


def read_options(settings: BaseSettings) -> ProducerOptions:
    """Return the options in these settings.

    ConfigError if a value is not of its kind, or two do not go together.
    """
    reader = SettingReader(settings)
    check_settings(settings)
    throttle = ThrottleOptions.from_settings(settings)
    values = reader.values_for(ProducerOptions)
    feed_url = values["target_feed_url"]
    values["crawl"] = values["crawl"] or None
    if values["crawl"] is not None:
        check_crawl_name(values["crawl"])
    if not reader.given("DISTRIBUTED_STORE"):
        values["store"] = None
    _check_feed_url(feed_url, reader)
    values |= {
        "sent_size": _sent_size(reader),
        "batch_adapt": _adapts(reader),
        "deliver": _check_revealed(values["deliver"], reader),
        "limits": SchedulerLimits(
            **reader.values_for(SchedulerLimits), poll=reader.value("DISTRIBUTED_POLL_INTERVAL")
        ),
        "leases": _leases(values["mode"], feed_url, reader),
        "only_leased": ", ".join(_given_pull_only(reader)),
        "scaling": _read_scaling(reader),
        "goals": Goals.from_settings(settings),
        "throttled": throttle.on,
        "heeds": throttle.heeds,
    }
    options = ProducerOptions(**values)
    _check_sources(options)
    _check_outputs(options)
    _check_shards(options)
    return options


def _fixed_size(reader: SettingReader) -> int | None:
    """Return the size of batches that the settings fix; None: sizes adapt."""
    size = reader.value("DISTRIBUTED_BATCH_SIZE")
    return None if size == AUTO else int(size)


def _adapts(reader: SettingReader) -> bool:
    """Return whether batches are as large as the fleet can use.

    A producer that does not wait cannot see how many requests fit.
    """
    return _fixed_size(reader) is None and bool(reader.value("DISTRIBUTED_WAIT"))


def _sent_size(reader: SettingReader) -> int:
    """Return the maximum number of requests in a batch that is sent."""
    usual = LARGEST if _adapts(reader) else BATCH_SIZE
    return _fixed_size(reader) or usual


def _leases(mode: str, feed_url: str | None, reader: SettingReader) -> bool:
    """Return whether workers lease batches, where they reach the store."""
    if mode != "auto":
        return mode == "pull"
    # What a job writes to a feed URL would have items of lost leases; without waiting, all is sent
    # at once.
    return not feed_url and bool(reader.value("DISTRIBUTED_WAIT"))


def _given_pull_only(reader: SettingReader) -> list[str]:
    """Return the settings, of those given, that only workers know which lease."""
    return [name for name, row in SETTINGS.items() if row.pull_only and reader.value(name)]


def _read_scaling(reader: SettingReader) -> ScalingPolicy:
    """Return the allowed number of workers, and the terms that each gets."""
    terms = reader.values_for(WorkerRequest)
    usual = FAIR_SIZE if terms["fair"] else LEASED
    terms["batch_size"] = _fixed_size(reader) or usual
    return ScalingPolicy(most=reader.value("DISTRIBUTED_MAX_JOBS"), terms=WorkerRequest(**terms))


def _check_sources(options: ProducerOptions) -> None:
    """Raise ConfigError if the options that name index pages do not go together."""
    if options.index is None:
        return
    if options.start_urls_file is not None:
        raise ConfigError(
            "Give either index pages (--index, DISTRIBUTED_INDEX) or a list of them (--start-urls),"
            " not both."
        )
    if options.pages is None:
        raise ConfigError(
            "An index address needs the number of its pages: --pages N (DISTRIBUTED_PAGES)."
        )


def _check_outputs(options: ProducerOptions) -> None:
    """Raise ConfigError if the places for items do not go together, or not with the mode."""
    if options.target_feed_url and options.outputs and options.target_feed_format not in LINES:
        raise ConfigError(
            f"Feeds in the format {options.target_feed_format!r} (DISTRIBUTED_TARGET_FEED_FORMAT)"
            " cannot be merged into one item file, only JSON lines can. Leave out -o, or the"
            " format."
        )
    if options.target_feed_url is None:
        return
    if options.deliver:
        raise ConfigError(
            "Items are delivered (--deliver, DISTRIBUTED_DELIVER) when they are home, and a feed"
            " URL (--feed, DISTRIBUTED_TARGET_FEED_URL) keeps them from coming home. Leave out one"
            " of the two."
        )
    if options.mode == "pull":
        raise ConfigError(
            "Workers that lease (--pull, DISTRIBUTED_MODE) bring items home batch by batch, and a"
            " feed URL (--feed, DISTRIBUTED_TARGET_FEED_URL) is written job by job: what a lost"
            " lease leaves in it would count twice. Leave out one of the two."
        )


def _check_shards(options: ProducerOptions) -> None:
    """Raise ConfigError if pages or shards are given without the index pages that they count."""
    if options.index is not None:
        return
    if options.pages is not None:
        raise ConfigError(
            "A number of pages needs the address of the index: --index TEMPLATE"
            " (DISTRIBUTED_INDEX)."
        )
    if options.start_urls_file is None and options.shards != 1:
        raise ConfigError(
            "Shards need to know the index pages: --index TEMPLATE --pages P, or --start-urls FILE"
            " (DISTRIBUTED_INDEX, DISTRIBUTED_PAGES, DISTRIBUTED_START_URLS_FILE)."
        )


def _check_revealed(address: str | None, reader: SettingReader) -> str | None:
    """Return the address of --deliver; ConfigError if others could read a password in it."""
    is_on_command_line = reader.on_command_line("DISTRIBUTED_DELIVER")
    if address and password_in(address) and is_on_command_line:
        raise ConfigError(REVEALED)
    return address


def _check_feed_url(feed_url: str | None, reader: SettingReader) -> None:
    """Raise ConfigError for a feed URL that cannot be read, or has a password on a command line."""
    if feed_url is None:
        return
    parts = split(feed_url, "The feed URL (DISTRIBUTED_TARGET_FEED_URL, --feed)")
    if parts.password is not None and reader.on_command_line("DISTRIBUTED_TARGET_FEED_URL"):
        raise ConfigError(
            "The feed URL has a password, and a job's settings can be read in its node's process"
            " list and job list. Put DISTRIBUTED_TARGET_FEED_URL into the project's settings.py,"
            " which is deployed, not on the command line."
        )
