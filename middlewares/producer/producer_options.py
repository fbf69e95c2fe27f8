"""What a producer was asked to do: the `DISTRIBUTED_` settings as one frozen value, checked at this one door."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapyd_dist.batches import check_crawl_name
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import FAIR, UNFAIR
from scrapyd_dist.frontier.intake import BATCH_SIZE as LEASED
from scrapyd_dist.frontier.intake import FAIR_SIZE
from scrapyd_dist.scheduling.base import SchedulerLimits
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.scheduling.worker_request import WorkerRequest

from ..profile import PROFILES, USUAL
from ..setting_reader import SettingReader
from ..throttle.throttle_options import ThrottleOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy.settings import BaseSettings

#: requests in a batch of a fixed size, as in the book
BATCH_SIZE = 1000
#: requests in the largest batch, where sizes adapt: what is lost with a worker is minutes of work all the same
LARGEST = 10_000
DEPLOY_MODES = ("if-missing", "never")
#: names of the one feed format that can be merged
LINES = ("jsonlines", "jsonl", "jl")
#: what becomes of a request that cannot travel
STAY_MODES = ("local", "refuse")
_CMDLINE = 40  # Scrapy's priority of -s
#: whether batches are sent to the nodes, or leased by workers there
MODES = ("push", "pull")
#: what becomes of the spider's own start requests in a worker that leases
START_MODES = ("skip", "first")


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """The settings of a producer. Seconds and counts as in `docs/settings.md`."""

    crawl: str | None = None
    nodes: tuple[str, ...] = ()  #: named on the command line: targets of scrapy.cfg, or addresses
    hosts: tuple[str, ...] = ()  #: DISTRIBUTED_TARGET_HOSTS
    nodes_file: str | None = None  #: a list of nodes, read again when it changes
    nodes_command: str | None = None  #: prints a list of nodes
    nodes_every: float = 10.0  #: seconds after which commands and names are asked again
    index: str | None = None
    pages: int | None = None
    first_page: int = 0
    shards: int = 1
    start_urls_file: str | None = None
    batch_size: int = LARGEST
    batch_adapt: bool = True  #: batches are as large as the fleet can use, batch_size at most
    batch_max_age: float = 30.0
    feed_url: str | None = None
    feed_format: str = "jsonlines"
    send_feed_url: bool = False  #: whether the feed URL may travel as a setting
    outputs: tuple[Mapping[str, Any], ...] = ()
    deploy: str = "if-missing"
    stay: str = "local"
    placement: str = Placement.KINDS[0]
    profile: str = USUAL
    max_failed: int = 0
    limit: int = 0  #: target requests that are handed out, the first ones; 0: all
    store: str | None = None
    lease: float = 60.0  #: for which a worker that reaches the store has its work
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    mode: str = MODES[0]
    fair: str = UNFAIR  #: how sites share batches and workers, one of `frontier.values.FAIR`
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)  #: of workers that lease
    throttled: bool = False  #: workers ask the store for permits
    heeds: bool = True  #: nothing was said of the throttle: the rules of the store hold, where it is reached

    @property
    def pull(self) -> bool:
        """Whether workers lease the batches."""
        return self.mode == "pull"

    @property
    def why_reach(self) -> str:
        """Which of the settings makes that workers need the store; empty when they can do without."""
        return "--pull, DISTRIBUTED_MODE" if self.pull else "DISTRIBUTED_THROTTLE" if self.throttled else ""

    @property
    def sharded(self) -> bool:
        return self.index is not None or self.start_urls_file is not None


def read_options(settings: BaseSettings) -> ProducerOptions:
    """The options in these settings.

    Raises:
        ConfigError: a value is not of its kind, or two do not go together.
    """
    reader = SettingReader(settings)
    feed_url, throttle = settings.get("DISTRIBUTED_TARGET_FEED_URL"), ThrottleOptions.from_settings(settings)
    options = ProducerOptions(
        crawl=check_crawl_name(settings["DISTRIBUTED_CRAWL"]) if settings.get("DISTRIBUTED_CRAWL") else None,
        nodes=tuple(settings.getlist("DISTRIBUTED_NODES")),
        hosts=tuple(settings.getlist("DISTRIBUTED_TARGET_HOSTS")),
        nodes_file=settings.get("DISTRIBUTED_NODES_FILE") or None,
        nodes_command=settings.get("DISTRIBUTED_NODES_COMMAND") or None,
        nodes_every=reader.seconds("DISTRIBUTED_NODES_EVERY", 10.0),
        index=settings.get("DISTRIBUTED_INDEX"),
        pages=reader.whole("DISTRIBUTED_PAGES", None),
        first_page=reader.whole("DISTRIBUTED_FIRST_PAGE", 0) or 0,
        shards=reader.whole("DISTRIBUTED_SHARDS", 1),
        start_urls_file=settings.get("DISTRIBUTED_START_URLS_FILE"),
        batch_size=_batch_size(reader),
        batch_adapt=_adapts(reader),
        batch_max_age=reader.seconds("DISTRIBUTED_BATCH_MAX_AGE", 30.0),
        feed_url=feed_url,
        send_feed_url=_may_travel(feed_url, settings),
        feed_format=str(settings.get("DISTRIBUTED_TARGET_FEED_FORMAT", "jsonlines")),
        outputs=tuple(settings.getlist("DISTRIBUTED_OUTPUTS")),
        deploy=reader.one_of("DISTRIBUTED_DEPLOY", DEPLOY_MODES),
        stay=reader.one_of("DISTRIBUTED_UNSENDABLE", STAY_MODES),
        placement=reader.one_of("DISTRIBUTED_PLACEMENT", Placement.KINDS),
        profile=reader.one_of("DISTRIBUTED_PROFILE", PROFILES),
        max_failed=reader.at_least("DISTRIBUTED_MAX_FAILED", 0, 0),
        limit=reader.at_least("DISTRIBUTED_LIMIT", 0, 0),
        store=settings.get("DISTRIBUTED_STORE"),
        lease=reader.seconds("DISTRIBUTED_LEASE", 60.0),
        limits=_limits(reader),
        mode=reader.one_of("DISTRIBUTED_MODE", MODES),
        fair=_fair(reader),
        scaling=_scaling(reader),
        throttled=throttle.on,
        heeds=throttle.heeds,
    )
    _check_together(options)
    return options


def _adapts(reader: SettingReader) -> bool:
    """A size that somebody has given is meant, unless they say so; and who leaves at once cannot see what fits."""
    given = reader.whole("DISTRIBUTED_BATCH_SIZE", None) is not None
    adapts = reader.yes_no("DISTRIBUTED_BATCH_ADAPT", not given)
    return adapts and reader.settings.getbool("DISTRIBUTED_WAIT", True)


def _batch_size(reader: SettingReader) -> int:
    pull = reader.one_of("DISTRIBUTED_MODE", MODES) == "pull"
    usual = _leased(reader) if pull else LARGEST if _adapts(reader) else BATCH_SIZE
    return reader.at_least("DISTRIBUTED_BATCH_SIZE", usual, 1)


def _leased(reader: SettingReader) -> int:
    return FAIR_SIZE if _fair(reader) else LEASED


def _fair(reader: SettingReader) -> str:
    value = str(reader.settings.get("DISTRIBUTED_FAIR") or UNFAIR)
    if value not in FAIR:
        raise ConfigError(f"DISTRIBUTED_FAIR is {value!r}; it can be {' or '.join(filter(None, FAIR))}.")
    return value


def _scaling(reader: SettingReader) -> ScalingPolicy:
    """How many workers there may be, and what each is told."""
    most = reader.at_least("DISTRIBUTED_WORKERS", 0, 0)
    jobs = reader.at_least("DISTRIBUTED_MAX_JOBS", 0, 0)
    terms = WorkerRequest(
        lease=reader.seconds("DISTRIBUTED_LEASE", WorkerRequest.lease),
        max_batches=reader.at_least("DISTRIBUTED_MAX_BATCHES", 0, 0),
        max_requests=reader.at_least("DISTRIBUTED_MAX_REQUESTS", 0, 0),
        max_time=reader.seconds("DISTRIBUTED_MAX_TIME", 0.0, least=0.0),
        idle=reader.seconds("DISTRIBUTED_IDLE", 0.0, least=0.0),
        batch_size=reader.at_least("DISTRIBUTED_BATCH_SIZE", _leased(reader), 1),
        fair=_fair(reader),
        start=reader.one_of("DISTRIBUTED_START", START_MODES),
    )
    return ScalingPolicy(most=min(filter(None, (most, jobs)), default=0), terms=terms)


def _limits(reader: SettingReader) -> SchedulerLimits:
    usual = SchedulerLimits()
    return SchedulerLimits(
        poll=reader.seconds("DISTRIBUTED_POLL_INTERVAL", usual.poll),
        request_timeout=reader.seconds("DISTRIBUTED_REQUEST_TIMEOUT", usual.request_timeout),
        node_timeout=reader.seconds("DISTRIBUTED_NODE_TIMEOUT", usual.node_timeout),
        fleet_timeout=reader.seconds("DISTRIBUTED_FLEET_TIMEOUT", usual.fleet_timeout),
        start_timeout=reader.seconds("DISTRIBUTED_START_TIMEOUT", usual.start_timeout),
        max_attempts=reader.at_least("DISTRIBUTED_MAX_ATTEMPTS", usual.max_attempts, 1),
        max_jobs=reader.at_least("DISTRIBUTED_MAX_JOBS", 0, 0),
        wait=reader.settings.getbool("DISTRIBUTED_WAIT", True),
    )


def _check_together(options: ProducerOptions) -> None:
    if options.index is not None and options.start_urls_file is not None:
        raise ConfigError(
            "Give either index pages (--index, DISTRIBUTED_INDEX) or a list of them (--start-urls), not both."
        )
    if options.index is not None and options.pages is None:
        raise ConfigError("An index address needs the number of its pages: --pages N (DISTRIBUTED_PAGES).")
    if options.feed_url and options.outputs and options.feed_format not in LINES:
        raise ConfigError(
            f"Feeds in the format {options.feed_format!r} (DISTRIBUTED_TARGET_FEED_FORMAT) cannot be merged into one"
            " item file, only JSON lines can. Leave out -o, or the format."
        )
    if options.pull and options.feed_url is not None:
        raise ConfigError(
            "Workers that lease (--pull, DISTRIBUTED_MODE) bring items home batch by batch, and a feed URL (--feed,"
            " DISTRIBUTED_TARGET_FEED_URL) is written job by job: what a lost lease leaves in it would count twice."
            " Leave out one of the two."
        )
    if options.index is None and options.pages is not None:
        raise ConfigError("A number of pages needs the address of the index: --index TEMPLATE (DISTRIBUTED_INDEX).")
    if options.index is None and options.start_urls_file is None and options.shards != 1:
        raise ConfigError(
            "Shards need to know the index pages: --index TEMPLATE --pages P, or --start-urls FILE"
            " (DISTRIBUTED_INDEX, DISTRIBUTED_PAGES, DISTRIBUTED_START_URLS_FILE)."
        )


def _may_travel(feed_url: str | None, settings: BaseSettings) -> bool:
    """Whether the feed URL can be sent as a setting; one with a password must be on the nodes already."""
    if feed_url is None:
        return False
    if not _has_password(feed_url):
        return True
    if (settings.getpriority("DISTRIBUTED_TARGET_FEED_URL") or 0) >= _CMDLINE:
        raise ConfigError(
            "The feed URL has a password, and a job's settings can be read in its node's process list and job list. Put"
            " DISTRIBUTED_TARGET_FEED_URL into the project's settings.py, which is deployed, not on the command line."
        )
    return False


def _has_password(feed_url: str) -> bool:
    try:
        parts = urlsplit(feed_url)
        _ = parts.port  # reading it is what fails
    except ValueError:
        # The URL itself is not shown: what looks like a bad port may be half a password.
        raise ConfigError(
            "The feed URL (DISTRIBUTED_TARGET_FEED_URL, --feed) cannot be read: its host or port is none. In a user"
            " name or a password, write : as %3A, @ as %40 and / as %2F."
        ) from None
    return parts.password is not None
