"""Push and pull: all in which the two differ is here, so that the life of a crawl is one.

In push a coordinator sends each batch to a node as a job; in pull a manager keeps workers running, which lease batches.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.scheduling.batcher import Batcher, SlotBatcher
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.pull import PullScheduler
from scrapyd_dist.scheduling.push import PushScheduler
from scrapyd_dist.settings import SETTINGS, Travels, travelling

from ..setting_reader import SettingReader, uploading_feeds
from ..slot_routing import SlotHome, SlotRouting
from ..throttle.throttle_client import options_of
from ..throttle.throttle_options import SWITCH
from ..throttle.throttle_options import given as throttle_given
from .discovery import Capture

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from scrapyd_dist.scheduling.batcher import Demand
    from scrapyd_dist.scheduling.job_request import JobRequest
    from scrapyd_dist.scheduling.node_state import NodeState
    from scrapyd_dist.transports import AsyncSender

    from .crawl_nodes import CrawlNodes
    from .crawl_repository import CrawlRepository
    from .producer_options import ProducerOptions

#: what sees to the batches of a crawl
AnyCoordinator: TypeAlias = "PushScheduler | PullScheduler"
#: the name under which the process of a crawl fills the crawl's own frontier; the one that goes on with it has the same
PRODUCER = "producer"
_CMDLINE = 40  # Scrapy's priority of -s


def check_mode(options: ProducerOptions, settings: BaseSettings) -> None:
    """Refuse what goes with one mode only.

    Raises:
        ConfigError: feeds that are uploaded when a job closes, and workers that lease; slots that cannot be; or what
            only workers that lease know of, and batches that are sent.
    """
    if not options.pull:
        _check_push(settings)
        return
    SlotRouting.from_settings(settings)
    if options.sharded and settings.getbool("DISTRIBUTED_SEEDS"):
        raise ConfigError(
            "Start requests of a spider can go to the workers (DISTRIBUTED_SEEDS), but index pages (--index,"
            " --start-urls) are walked by the producer, each shard by itself. Leave out one of the two."
        )
    if options.limit and settings.getbool("DISTRIBUTED_SEEDS"):
        raise ConfigError(
            "Start requests that go to the workers (DISTRIBUTED_SEEDS) leave the finding to them, each for itself, and"
            " a limit (--limit, DISTRIBUTED_LIMIT) counts what the producer finds. Leave out one of the two."
        )
    uploads = uploading_feeds(settings)
    if uploads:
        raise ConfigError(
            f"The setting FEEDS has {', '.join(uploads)}, which a job uploads when it closes. A worker that leases"
            " (--pull, DISTRIBUTED_MODE) closes after many batches, and those that it lost on the way would be in the"
            " upload all the same. Take it out of FEEDS, or crawl without --pull."
        )


def _check_push(settings: BaseSettings) -> None:
    reader = SettingReader(settings)
    there = [name for name, row in SETTINGS.items() if row.pull_only and reader.value(name)]
    if there:
        raise ConfigError(
            f"{', '.join(there)}: only workers that lease their batches know of it, and this crawl sends its batches to"
            ' the nodes. Add --pull (DISTRIBUTED_MODE = "pull"), or take it out of the settings.'
        )


def worker_settings(options: ProducerOptions, settings: BaseSettings) -> dict[str, str]:
    """Of the settings given on the command line, those of ours that workers need."""
    if not options.pull:
        return {}
    ours = travelling(Travels.LEASING, Travels.SLOTS)
    given = (name for name in ours if (settings.getpriority(name) or 0) >= _CMDLINE)
    return {name: _as_text(settings[name]) for name in given if settings[name] is not None}


def shared_settings(settings: BaseSettings) -> dict[str, str]:
    """What workers of another project have to heed too: where requests lie, and the limits of this crawl."""
    # Those without a value too: that project's own slots are for its own frontiers.
    slots = {name: _as_text(settings[name] or "") for name in travelling(Travels.SLOTS)}
    throttle = options_of(settings)
    # Where nothing was said, that project's own settings hold.
    limits = throttle_given(settings) if throttle.on else {} if throttle.heeds else {SWITCH: False}
    return {**slots, **{name: _as_text(value) for name, value in limits.items()}}


def _as_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))  # as Scrapy reads a list
    return json.dumps(dict(value)) if hasattr(value, "items") else str(value)


def new_capture(
    options: ProducerOptions, crawler: Crawler, demand: Callable[[], Demand], *, project: str, key: bytes | None
) -> Capture:
    """What sorts the target requests of this crawl and cuts them into batches; `demand` tells what can be used now."""
    spider = crawler.spider
    assert spider
    size, age, adapt = options.batch_size, options.batch_max_age, options.batch_adapt
    if not options.pull:
        cutter = Batcher(size=size, max_age=age, demand=demand if adapt else None, fair=options.fair)
        return Capture(crawler, spider, cutter, key=key, stay=options.stay)
    idle = (lambda: demand().idle) if adapt else None
    slots = SlotBatcher(size=size, max_age=age, idle=idle, many_slots=bool(options.fair))
    slotting = SlotRouting.from_settings(crawler.settings, home=SlotHome(project=project, spider=spider.name))
    return Capture(crawler, spider, slots, key=key, stay=options.stay, slotting=slotting)


def new_coordinator(
    options: ProducerOptions,
    spec: JobRequest,
    *,
    fleet: CrawlNodes,
    members: list[NodeState],
    repository: CrawlRepository,
    sender: AsyncSender,
) -> AnyCoordinator:
    """What sees to it that the batches of this crawl are worked on, and come home."""
    if options.pull:
        return PullScheduler(
            spec=spec,
            members=members,
            store=repository.thread,
            sender=sender,
            folder=repository.parts,
            prepare=fleet.bring,
            reach=fleet.ways,
            scaling=options.scaling,
            limits=options.limits,
            key=fleet.prepared.key,
            listed=fleet.listed,
            producer=PRODUCER,
        )
    return PushScheduler(
        spec=spec,
        members=members,
        store=repository.thread,
        sender=sender,
        folder=repository.parts,
        prepare=fleet.bring,
        listed=fleet.listed,
        key=fleet.prepared.key,
        limits=options.limits,
        placement=Placement(options.placement),
    )


def stop_code(coordinator: AnyCoordinator) -> int:
    """The exit code of a coordinator that has stopped before the end: what there is to be set right, or to go on."""
    if coordinator.unreached:
        return 2
    return 1 if coordinator.failed else 3
