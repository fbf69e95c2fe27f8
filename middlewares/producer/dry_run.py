"""What a crawl would do, without doing it: `sdist plan`. Nothing is sent to a node but questions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings, Settings
from scrapy.spiderloader import SpiderLoader
from scrapyd_dist.deploy import local_nodes
from scrapyd_dist.deploy.node_versions import look
from scrapyd_dist.deploy.rollout import common_name

from scrapyd_dist.batches import Shard
from scrapyd_dist.diagnostics import LATE, POLL_REMEDY, is_local
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.forecast import CrawlShape, Probed, forecast
from scrapyd_dist.items.sink import open_sink
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.payload import describe as describe_payload
from scrapyd_dist.payload import encode
from scrapyd_dist.progress import learned_slots
from scrapyd_dist.scheduling.node_state import SLOTS_UNKNOWN, NodeState
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.scrapyd.versions import version_name
from scrapyd_dist.settings import SettingReader, complaints
from scrapyd_dist.store import open_store
from scrapyd_dist.store.address import is_url
from scrapyd_dist.store.reach import ways_to

from ..targets import find_target, guesses, take_only_callback
from ..throttle.install import why_not_heeded
from .completion_hooks import read_on_finish
from .crawl_code import TODAYS, CrawlCode
from .crawl_nodes import NodeSources, check_reach
from .crawl_repository import asked_outputs
from .crawl_request import (
    CrawlRequest,
    check_crawl,
    find_project,
    for_target,
    make_as_job,
    shards_of,
    template_of,
)
from .difference_finder import kept_by_callbacks
from .discovery import IndexWalk
from .feed_outputs import shown
from .preflight import LOCAL_NODES, eggs_kept, notes_on, prepare
from .producer_options import ProducerOptions, read_options

#: what stands for a detail page that has not been found yet
SAMPLE_URL = "https://example.com/section/a-page-with-a-name-of-its-own-{:07d}.html"


def plan(
    settings: Settings,
    spider: str,
    args: Mapping[str, str],
    code: CrawlCode = TODAYS,
    probe: Callable[[], Probed] | None = None,
) -> dict[str, Any]:
    """The plan as a document, schema 1; DistError for all that would stop the crawl before its start.

    The settings are the project's, with what was asked for; `code` is settled of the crawl's code; `probe` fetches
    pages of the site, for a forecast.
    """
    check_args(args)
    crawler = Crawler(SpiderLoader.from_settings(settings).load(spider), settings)
    made = make_as_job(crawler, args)
    crawler.addons.load_settings(crawler.settings)
    read_on_finish(crawler.settings)
    options = read_options(crawler.settings)
    check_args(SettingReader(crawler.settings).value("DISTRIBUTED_SPIDER_ARGS"))
    differences = check_crawl(options, crawler.settings, made, args)
    take_only_callback(made, crawler.settings)
    target = find_target(made, crawler.settings)
    options = for_target(options, target, crawler.settings)
    differences += kept_by_callbacks(crawler.spidercls, target.methods(made))
    shards = shards_of(options, made)
    request = CrawlRequest(spider=spider, options=options, project=find_project(settings))
    stored = _of_store(request, crawler.settings)
    throttle = stored.throttle
    prepared = prepare(request, NodeSources(request).read(stored.records), code=code, dry_run=True)
    ways, members = ways_to(request.store, prepared.key), prepared.members
    for member in members:
        member.recall(stored.slots.get(member.node.url, 0))
    warnings = [
        *complaints(crawler.settings, vars(made)),
        *guesses(target, crawler.settings),
        *prepared.warnings,
        *check_reach(options, members, ways, rules=throttle["rules"]),
        *(
            f"workers on {member.node.name} could not heed rules of `sdist throttle` that are made while they run:"
            f" {member.deaf}"
            for member in members
            if member.deaf
        ),
    ]
    there = look([p.asked for p in prepared.probes if p.error is None], request.project.name)
    version, shown = code.version, ""  # None: it would get a new one
    if prepared.egg is not None:
        content, known = (
            prepared.egg.content_hash,
            [one.versions for one in there if one.error is None],
        )
        version = version or common_name(known, content, for_crawl=True)
        # a name that is not made yet tells the content all the same
        shown = version or version_name(content, datetime.now(timezone.utc), for_crawl=True)
    versions = {one.node.name: one.versions for one in there}
    nodes = [
        {
            "name": found.asked.name,
            "url": found.asked.url,
            "state": "down" if found.error else "up",
            "reason": str(found.error or ""),
            "slots": found.asked.slots or member.learned or None,
            "logs": bool(found.value),
            "unreached": member.unreached,
        }
        for found, member in zip(prepared.probes, members, strict=True)
    ]
    # How a batch of ordinary addresses would travel.
    values = [{"url": SAMPLE_URL.format(number), "rule": 0} for number in range(options.batch_size)]
    sink = open_sink(options.deliver, request.project.root) if options.deliver else None
    found = {} if probe is None else {"forecast": _forecast(probe(), options, shards, nodes)}
    return {
        "schema": 1,
        "spider": spider,
        "target": target.how,
        "project": request.project.name,
        "version": version,
        "deploy": [
            one.node.name
            for one in there
            if version not in one.versions and options.deploy != "never"
        ],
        "nodes": nodes,
        "throttle": throttle,
        "shards": [
            {
                "number": one.number,
                "url": one.url,
                "first_page": one.first_page,
                "last_page": one.last_page,
            }
            for one in shards
            if one.url
        ],
        "limit": options.limit or None,
        "goals": options.goals.limits,
        "batch_size": options.batch_size,
        "bytes_per_batch": describe_payload(values, encode(values, key=prepared.key)),
        "output": [*_paths(options, f"{spider}-TIME"), *([sink.shown] if sink else ())],
        "code": notes_on(code, shown or None, versions, eggs_kept(request.project)),
        "differences": [one.document for one in differences],
        "warnings": [
            *warnings,
            *_warnings(crawler.settings, options, nodes),
            *_late(request, members, stored),
        ],
        **found,
    }


def _paths(options: ProducerOptions, crawl: str) -> list[str]:
    """The merged files, and the address of feeds, without its account."""
    paths = [shown(str(one["path"])) for one in asked_outputs(options, crawl)]
    if options.target_feed_url is not None:
        paths.append(shown(options.target_feed_url))
    return paths


def _forecast(
    probed: Probed, options: ProducerOptions, shards: Sequence[Shard], nodes: list[dict[str, Any]]
) -> dict[str, Any]:
    """The forecast as a document, with what it rests on."""
    processors = local_nodes.cores()
    up = [node for node in nodes if node["state"] == "up"] or _to_start()
    local = [node for node in up if is_local(urlsplit(node["url"]).hostname or "")]
    workers = _jobs(options, up)
    shape = CrawlShape(
        pages=IndexWalk(shards, template_of(options)).total,
        limit=options.limit,
        workers=workers,
        local=round(workers * _slots(local) / _slots(up)),
        cores=processors,
        batch=0 if options.leases or options.batch_adapt else options.batch_size,
    )
    return {"probed": asdict(probed), **asdict(forecast(probed, shape)), "crawl": asdict(shape)}


class StoreFacts(NamedTuple):
    """What the store knows, as far as a plan needs it."""

    throttle: dict[str, Any]  #: how many rules there are, and whether the crawl would heed them
    slots: dict[str, int]  #: base address of a node -> process slots that it has shown
    records: tuple[NodeRecord, ...]  #: what it remembers of nodes, and those that were added
    crawled: set[str]  #: base addresses of the nodes that crawls have used


def _of_store(request: CrawlRequest, settings: BaseSettings) -> StoreFacts:
    """Read the store, if there is one; ConfigError if the crawl has to heed its rules, and cannot."""
    where, why = request.store, why_not_heeded(settings)
    rules, slots, crawled = 0, dict[str, int](), set[str]()
    records: tuple[NodeRecord, ...] = ()
    if is_url(where) or Path(where).exists():
        with closing(open_store(where)) as store:
            rules, crawls = len(store.rules().rules), store.crawls()
            slots = learned_slots(crawls)
            crawled = {
                str(node.get("url")) for one in crawls for node in one.summary.get("nodes") or ()
            }
            records = tuple(store.nodes())
    if rules and why and request.options.heeds:
        raise ConfigError(
            f"The store has rules of `sdist throttle`, and this crawl could not heed them. {why}"
        )
    throttle = {"rules": rules, "heeded": not why, "reason": why}
    return StoreFacts(throttle=throttle, slots=slots, records=records, crawled=crawled)


def _late(request: CrawlRequest, members: Sequence[NodeState], stored: StoreFacts) -> list[str]:
    """A warning of nodes that look at their queue seldom; those that `sdist nodes up` started do not."""
    own = local_nodes.running(request.project.state)
    others = [member.node for member in members if member.up and member.node not in own]
    delays = {record.name: record.start_delay for record in stored.records}
    slow = {node.name: delay for node in others if (delay := delays.get(node.name, 0.0)) >= LATE}
    if slow:
        late = ", ".join(f"on {name} up to {delay:.0f} s late" for name, delay in slow.items())
        return [f"poll_interval: jobs began {late}. {POLL_REMEDY}"]
    if any(node.url not in stored.crawled for node in others):
        return [
            f"poll_interval: a node looks at its queue every 5 s by default, and jobs wait for that. {POLL_REMEDY}"
        ]
    return []


def _warnings(
    settings: BaseSettings, options: ProducerOptions, nodes: list[dict[str, Any]]
) -> list[str]:
    warnings = [_site_load(settings, options, nodes or _to_start())]
    if not nodes:
        warnings.insert(
            0,
            f"no node is named: the crawl starts {LOCAL_NODES} on this machine, as `sdist nodes up` does.",
        )
    return warnings


def _to_start() -> list[dict[str, Any]]:
    """The local nodes that a crawl without nodes starts."""
    return [
        {"url": "http://localhost", "slots": max(1, local_nodes.cores() // LOCAL_NODES)}
    ] * LOCAL_NODES


def _slots(nodes: Iterable[Mapping[str, Any]]) -> int:
    return sum(node["slots"] or SLOTS_UNKNOWN for node in nodes)


def _jobs(options: ProducerOptions, nodes: Iterable[Mapping[str, Any]]) -> int:
    """How many jobs run at the same time, at most."""
    jobs = _slots(nodes)
    return min(jobs, (options.scaling.most if options.leases else options.limits.max_jobs) or jobs)


def _site_load(
    settings: BaseSettings, options: ProducerOptions, nodes: list[dict[str, Any]]
) -> str:
    jobs = _jobs(options, nodes)
    each = min(
        settings.getint("CONCURRENT_REQUESTS"), settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
    )
    delay = settings.getfloat("DOWNLOAD_DELAY")
    rate = (
        f", and {jobs / delay:.1f} requests/s at most (DOWNLOAD_DELAY {delay:g} s in each job)"
        if delay
        else ""
    )
    guess = (
        ""
        if all(node["slots"] for node in nodes)
        else f" (a node that does not say has {SLOTS_UNKNOWN} slots)"
    )
    return (
        f"The site sees up to {jobs} jobs x {each} = {jobs * each} requests at the same time{rate}{guess}."
        " --max-jobs N lowers it."
    )
