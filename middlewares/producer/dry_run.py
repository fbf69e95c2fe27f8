"""Tell what a crawl would do without doing it (`sdist plan`): nodes are only asked."""

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
from scrapyd_dist.deploy.node_versions import NodeVersions, list_versions
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
from scrapyd_dist.scheduling.node_capacity import SLOTS_UNKNOWN
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.scrapyd.versions import version_name
from scrapyd_dist.settings import SettingReader, find_warnings
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
from .preflight import LOCAL_NODES, Prepared, eggs_kept, notes_on, prepare
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
    """Return the plan as a document, schema 1; DistError for all that would stop the crawl.

    The settings are the project's, with what was asked for; `code` is what is settled of the
    crawl's code; `probe` fetches pages of the site, for a forecast.
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
    stored = _read_store(request, crawler.settings)
    prepared = prepare(request, NodeSources(request).read(stored.records), code=code, dry_run=True)
    for member in prepared.members:
        member.capacity.recall(stored.slots.get(member.node.url, 0))
    warnings = [
        *find_warnings(crawler.settings, vars(made)),
        *guesses(target, crawler.settings),
        *prepared.warnings,
        *_reach_warnings(request, prepared, rules=stored.throttle["rules"]),
    ]
    answering = [found.asked for found in prepared.probes if found.error is None]
    deployed = list_versions(answering, request.project.name)
    version, name = _planned_version(code, prepared, deployed)
    nodes = _describe_nodes(prepared)
    output = _describe_output(request)
    optional: dict[str, Any] = {}
    if probe is not None:
        optional["forecast"] = _forecast(probe(), options, shards, nodes)
    return {
        "schema": 1,
        "spider": spider,
        "target": target.how,
        "project": request.project.name,
        "version": version,
        "deploy": _to_deploy(options, version, deployed),
        "nodes": nodes,
        "throttle": stored.throttle,
        "shards": _describe_shards(shards),
        "limit": options.limit or None,
        "goals": options.goals.limits,
        "batch_size": options.batch_size,
        "bytes_per_batch": _describe_batch(options, prepared.key),
        "output": output,
        "code": _code_notes(request, code, name, deployed),
        "differences": [difference.document for difference in differences],
        "warnings": [
            *warnings,
            *_load_warnings(crawler.settings, options, nodes),
            *_queue_warnings(request, prepared.members, stored),
        ],
        **optional,
    }


class StoreFacts(NamedTuple):
    """Holds what the store knows, as far as a plan needs it."""

    throttle: dict[str, Any]  #: how many rules there are, and whether the crawl would heed them
    slots: dict[str, int]  #: base address of a node -> process slots that it has shown
    records: tuple[NodeRecord, ...]  #: what it remembers of nodes, and those that were added
    crawled: set[str]  #: base addresses of the nodes that crawls have used


def _read_store(request: CrawlRequest, settings: BaseSettings) -> StoreFacts:
    """Read the store, if there is one; ConfigError if the crawl must heed its rules and cannot."""
    why = why_not_heeded(settings)
    rules = 0
    slots: dict[str, int] = {}
    crawled: set[str] = set()
    records: tuple[NodeRecord, ...] = ()
    if is_url(request.store) or Path(request.store).exists():
        with closing(open_store(request.store)) as store:
            rules = len(store.rules().rules)
            crawls = store.crawls()
            slots = learned_slots(crawls)
            for crawl in crawls:
                for node in crawl.summary.get("nodes") or ():
                    crawled.add(str(node.get("url")))
            records = tuple(store.nodes())
    if rules and why and request.options.heeds:
        raise ConfigError(
            f"The store has rules of `sdist throttle`, and this crawl could not heed them. {why}"
        )
    throttle = {"rules": rules, "heeded": not why, "reason": why}
    return StoreFacts(throttle=throttle, slots=slots, records=records, crawled=crawled)


def _reach_warnings(request: CrawlRequest, prepared: Prepared, *, rules: int) -> list[str]:
    """Warn of nodes whose workers do not reach the store, or could not heed its later rules."""
    ways = ways_to(request.store, prepared.key)
    warnings = check_reach(request.options, prepared.members, ways, rules=rules)
    for member in prepared.members:
        if member.readiness.throttle_problem:
            warnings.append(
                f"workers on {member.node.name} could not heed rules of `sdist throttle` that are"
                f" made while they run: {member.readiness.throttle_problem}"
            )
    return warnings


def _planned_version(
    code: CrawlCode, prepared: Prepared, deployed: Iterable[NodeVersions]
) -> tuple[str | None, str | None]:
    """Return the version that the crawl would run, and the name by which notes call its code.

    The version is None if it would get a new one. A name that is not made yet tells the content
    all the same, so the notes get the one that would be made now; None if there is no code here.
    """
    if prepared.egg is None:
        return code.version, None
    content = prepared.egg.content_hash
    known = [node.versions for node in deployed if node.error is None]
    version = code.version or common_name(known, content, for_crawl=True)
    name = version or version_name(content, datetime.now(timezone.utc), for_crawl=True)
    return version, name or None


def _to_deploy(
    options: ProducerOptions, version: str | None, deployed: Iterable[NodeVersions]
) -> list[str]:
    """Return the names of the nodes that would get the code."""
    if options.deploy == "never":
        return []
    return [node.node.name for node in deployed if version not in node.versions]


def _code_notes(
    request: CrawlRequest, code: CrawlCode, name: str | None, deployed: Iterable[NodeVersions]
) -> list[str]:
    versions = {node.node.name: node.versions for node in deployed}
    return notes_on(code, name, versions, eggs_kept(request.project))


def _describe_nodes(prepared: Prepared) -> list[dict[str, Any]]:
    """Return the nodes with their states, as the document lists them."""
    nodes = []
    for found, member in zip(prepared.probes, prepared.members, strict=True):
        node = {
            "name": found.asked.name,
            "url": found.asked.url,
            "state": "down" if found.error else "up",
            "reason": str(found.error or ""),
            "slots": found.asked.slots or member.capacity.learned or None,
            "logs": bool(found.value),
            "unreached": member.readiness.unreached,
        }
        nodes.append(node)
    return nodes


def _describe_shards(shards: Iterable[Shard]) -> list[dict[str, Any]]:
    """Return the shards that have an address, as the document lists them."""
    described = []
    for shard in shards:
        if not shard.url:
            continue
        row = {
            "number": shard.number,
            "url": shard.url,
            "first_page": shard.first_page,
            "last_page": shard.last_page,
        }
        described.append(row)
    return described


def _describe_batch(options: ProducerOptions, key: bytes | None) -> dict[str, Any]:
    """Describe how a batch of ordinary addresses would travel."""
    values = [{"url": SAMPLE_URL.format(number), "rule": 0} for number in range(options.batch_size)]
    return describe_payload(values, encode(values, key=key))


def _describe_output(request: CrawlRequest) -> list[str]:
    """Return where items would go: files and addresses, without the accounts that they may name.

    ConfigError if parts cannot be delivered as the options say.
    """
    options = request.options
    sink = open_sink(options.deliver, request.project.root) if options.deliver else None
    places = []
    for output in asked_outputs(options, f"{request.spider}-TIME"):
        path = str(output["path"])
        places.append(shown(path))
    if options.target_feed_url is not None:
        places.append(shown(options.target_feed_url))
    if sink is not None:
        places.append(sink.shown)
    return places


def _forecast(
    probed: Probed, options: ProducerOptions, shards: Sequence[Shard], nodes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the forecast as a document, with what it rests on."""
    processors = local_nodes.cores()
    up = [node for node in nodes if node["state"] == "up"]
    if not up:
        up = _nodes_to_start()
    local = filter(_is_on_this_machine, up)
    workers = _count_jobs(options, up)
    is_fixed = not (options.leases or options.batch_adapt)
    batch = options.batch_size if is_fixed else 0
    shape = CrawlShape(
        pages=IndexWalk(shards, template_of(options)).total,
        limit=options.limit,
        workers=workers,
        local=round(workers * _count_slots(local) / _count_slots(up)),
        cores=processors,
        batch=batch,
    )
    return {"probed": asdict(probed), **asdict(forecast(probed, shape)), "crawl": asdict(shape)}


def _is_on_this_machine(node: Mapping[str, Any]) -> bool:
    return is_local(urlsplit(node["url"]).hostname or "")


def _queue_warnings(
    request: CrawlRequest, members: Sequence[NodeState], stored: StoreFacts
) -> list[str]:
    """Warn of nodes that look at their queue seldom; those of `sdist nodes up` do not."""
    own = local_nodes.running(request.project.state)
    delays = {record.name: record.start_delay for record in stored.records}
    late: dict[str, str] = {}
    is_any_new = False
    for member in members:
        node = member.node
        if not member.up or node in own:
            continue
        delay = delays.get(node.name, 0.0)
        if delay >= LATE:
            late[node.name] = f"on {node.name} up to {delay:.0f} s late"
        is_any_new |= node.url not in stored.crawled
    if late:
        return [f"poll_interval: jobs began {', '.join(late.values())}. {POLL_REMEDY}"]
    if is_any_new:
        warning = (
            "poll_interval: a node looks at its queue every 5 s by default, and jobs wait for that."
            f" {POLL_REMEDY}"
        )
        return [warning]
    return []


def _load_warnings(
    settings: BaseSettings, options: ProducerOptions, nodes: list[dict[str, Any]]
) -> list[str]:
    """Tell how much the site has to bear, and which nodes would be started if none is named."""
    if nodes:
        return [_describe_load(settings, options, nodes)]
    unnamed = (
        f"no node is named: the crawl starts {LOCAL_NODES} on this machine, as `sdist nodes up`"
        " does."
    )
    return [unnamed, _describe_load(settings, options, _nodes_to_start())]


def _describe_load(
    settings: BaseSettings, options: ProducerOptions, nodes: list[dict[str, Any]]
) -> str:
    jobs = _count_jobs(options, nodes)
    each = min(
        settings.getint("CONCURRENT_REQUESTS"), settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
    )
    delay = settings.getfloat("DOWNLOAD_DELAY")
    rate = ""
    if delay:
        rate = (
            f", and {jobs / delay:.1f} requests/s at most (DOWNLOAD_DELAY {delay:g} s in each job)"
        )
    guess = ""
    slots = [node["slots"] for node in nodes]
    if not all(slots):
        guess = f" (a node that does not say has {SLOTS_UNKNOWN} slots)"
    return (
        f"The site sees up to {jobs} jobs x {each} = {jobs * each} requests at the same"
        f" time{rate}{guess}. --max-jobs N lowers it."
    )


def _nodes_to_start() -> list[dict[str, Any]]:
    """Return the local nodes that a crawl without nodes starts."""
    slots = max(1, local_nodes.cores() // LOCAL_NODES)
    return [{"url": "http://localhost", "slots": slots}] * LOCAL_NODES


def _count_slots(nodes: Iterable[Mapping[str, Any]]) -> int:
    return sum(node["slots"] or SLOTS_UNKNOWN for node in nodes)


def _count_jobs(options: ProducerOptions, nodes: Iterable[Mapping[str, Any]]) -> int:
    """Return how many jobs run at the same time, at most."""
    jobs = _count_slots(nodes)
    most = options.scaling.most if options.leases else options.limits.max_jobs
    return min(jobs, most or jobs)
