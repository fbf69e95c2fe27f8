"""Tell what a crawl would do without doing it (`sdist plan`): nodes are only asked.

It goes the way of a crawl (`crawl_check`, then the nodes), and stops before the first write.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings, Settings
from scrapyd_dist.deploy import local_nodes
from scrapyd_dist.deploy.node_versions import NodeVersions, list_versions
from scrapyd_dist.deploy.rollout import common_name

from scrapyd_dist.batches import Shard
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.findings import LATE, POLL_REMEDY
from scrapyd_dist.forecast import CrawlShape, Probed, forecast
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.items.sink import open_sink
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.payload import describe as describe_payload
from scrapyd_dist.payload import encode
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.summary_document import learned_slots
from scrapyd_dist.project_names import common_project
from scrapyd_dist.scheduling.node_capacity import SLOTS_UNKNOWN
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.scrapyd.versions import version_name
from scrapyd_dist.settings import SettingReader, find_warnings
from scrapyd_dist.store import open_store
from scrapyd_dist.store.ports.address_text import file_of
from scrapyd_dist.this_machine import is_loopback
from scrapyd_dist.throttle.permits import ALL, Rule

from ..engine_compat import spider_loader
from ..targets import describe_target, take_only_callback
from ..throttle.install import why_not_heeded
from .completion_hooks import read_on_finish
from .crawl_check import CheckedCrawl, check_asked, check_target
from .crawl_code import TODAYS, CrawlCode
from .crawl_nodes import settle_members
from .crawl_repository import asked_outputs
from .crawl_request import CrawlRequest
from .feed_outputs import shown, take_feeds
from .index_walk import IndexWalk
from .node_sources import NodeSources
from .preflight import LOCAL_NODES, Prepared, eggs_kept, notes_on, prepare
from .producer_options import ProducerOptions
from .spider_check import make_as_job
from .start_pages import template_of

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
    made, own_settings = _make_spider(settings, spider, args)
    checked = _check(own_settings, made, args)
    request = checked.request
    options = request.options
    stored = _read_store(request, own_settings)
    prepared = _prepare(request, stored, code)
    warnings = [
        *find_warnings(own_settings, vars(made)),
        *describe_target(checked.target, own_settings),
        *prepared.warnings,
    ]
    answering = [found.asked for found in prepared.probes if found.error is None]
    deployed = list_versions(answering, request.project.name)
    version, name = _planned_version(code, prepared, deployed)
    nodes = _describe_nodes(prepared)
    output = _describe_output(request)
    optional: dict[str, Any] = {}
    if probe is not None:
        optional["forecast"] = _forecast(probe(), options, checked.shards, nodes)
    return {
        "schema": 1,
        "spider": spider,
        "target": checked.target.how,
        "project": _used_project(request, prepared),
        "version": version,
        "deploy": _to_deploy(options, version, deployed),
        "nodes": nodes,
        "throttle": stored.throttle,
        "shards": _describe_shards(checked.shards),
        "limit": options.limit or None,
        "goals": options.goals.limits,
        "batch_size": options.batch_size,
        "bytes_per_batch": _describe_batch(options, prepared.key),
        "output": output,
        "code": _code_notes(request, code, name, deployed),
        "differences": [difference.document for difference in checked.differences],
        "warnings": [
            *warnings,
            *_load_warnings(own_settings, options, nodes, _rules_in_force(stored, checked, made)),
            *_queue_warnings(request, prepared.members, stored),
        ],
        **optional,
    }


def _used_project(request: CrawlRequest, prepared: Prepared) -> str:
    """Return Scrapyd's name of the project: that of all targets, else the one of the request."""
    return common_project([found.asked for found in prepared.probes]) or request.project.name


def _make_spider(
    settings: Settings, spider: str, args: Mapping[str, str]
) -> tuple[Spider, BaseSettings]:
    """Return the spider as a crawl would have it, and the settings with its own and our add-on's.

    ConfigError if it does not take what Scrapyd gives to that of a job.
    """
    crawler = Crawler(spider_loader(settings).load(spider), settings)
    made = make_as_job(crawler, args)
    crawler.addons.load_settings(crawler.settings)
    take_feeds(crawler.settings, made, has_stdout=False)
    return made, crawler.settings


def _check(settings: BaseSettings, spider: Spider, args: Mapping[str, str]) -> CheckedCrawl:
    """Return what is asked for; DistError for all that would refuse it before its row is claimed.

    What a process needs to crawl itself is not checked.
    """
    read_on_finish(settings)

    def given(settings: BaseSettings) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the arguments of the plan; its settings need not travel."""
        check_args(SettingReader(settings).value("DISTRIBUTED_SPIDER_ARGS"))
        return args, {}

    asked = check_asked(settings, spider, given)
    take_only_callback(spider, settings)
    return check_target(asked, settings, spider)


class StoreFacts(NamedTuple):
    """Holds what the store knows, as far as a plan needs it."""

    throttle: dict[str, Any]  #: how many rules there are, and whether the crawl would heed them
    rules: Mapping[str, Rule]  #: those rules, by domain
    slots: dict[str, int]  #: base address of a node -> process slots that it has shown
    records: tuple[NodeRecord, ...]  #: what it remembers of nodes, and those that were added
    crawled: set[str]  #: base addresses of the nodes that crawls have used


def _read_store(request: CrawlRequest, settings: BaseSettings) -> StoreFacts:
    """Read the store, if there is one; ConfigError if the crawl must heed its rules and cannot."""
    why = why_not_heeded(settings)
    rules: Mapping[str, Rule] = {}
    slots: dict[str, int] = {}
    crawled: set[str] = set()
    records: tuple[NodeRecord, ...] = ()
    file = file_of(request.store)
    if file is None or file.exists():
        with closing(open_store(request.store)) as store:
            rules = store.rules().rules
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
    throttle = {"rules": len(rules), "heeded": not why, "reason": why}
    return StoreFacts(throttle=throttle, rules=rules, slots=slots, records=records, crawled=crawled)


def _prepare(request: CrawlRequest, stored: StoreFacts, code: CrawlCode) -> Prepared:
    """Ask the nodes what a crawl asks them; nothing is started, and they get no code.

    DistError if none can be used.
    """
    nodes = NodeSources(request).read(stored.records)
    prepared = prepare(request, nodes, code=code, dry_run=True)
    settle_members(request, prepared, stored.slots, rules=stored.throttle["rules"])
    for member in prepared.members:
        if member.readiness.throttle_problem:
            prepared.warnings.append(
                f"workers on {member.node.name} could not heed rules of `sdist throttle` that are"
                f" made while they run: {member.readiness.throttle_problem}"
            )
    return prepared


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
    return is_loopback(urlsplit(node["url"]).hostname or "")


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


def _rules_in_force(
    stored: StoreFacts, checked: CheckedCrawl, spider: Spider
) -> dict[str, Rule | None]:
    """Return the limiting rule of each site where the crawl is known to begin, None without one."""
    urls = [shard.url for shard in checked.shards if shard.url]
    if isinstance(spider.start_urls, (list, tuple)):  # another iterable could be read only once
        urls += map(str, spider.start_urls)
    urls.append(str(getattr(spider, "start_url", "") or ""))
    rules: dict[str, Rule | None] = {}
    for site in filter(None, map(site_of, urls)):
        rules[site] = None
        for rule in (stored.rules.get(ALL), stored.rules.get(site)):
            if stored.throttle["heeded"] and rule is not None and _limits(rule):
                rules[site] = rule
    return rules


def _limits(rule: Rule) -> bool:
    return rule.hits is not None or rule.blocked or rule.paused


def _load_warnings(
    settings: BaseSettings,
    options: ProducerOptions,
    nodes: list[dict[str, Any]],
    rules: Mapping[str, Rule | None],
) -> list[str]:
    """Tell how much the site has to bear, and which nodes would be started if none is named.

    rules: of the sites where the crawl begins; where all have one, nothing else bounds the load.
    """
    limits = []
    for site, rule in rules.items():
        if rule is not None:
            limits.append(_describe_rule(site, rule))
    is_bounded = bool(rules) and len(limits) == len(rules)
    if nodes:
        return limits if is_bounded else [*limits, _describe_load(settings, options, nodes)]
    unnamed = (
        f"no node is named: the crawl starts {LOCAL_NODES} on this machine, as `sdist nodes up`"
        " does."
    )
    if is_bounded:
        return [unnamed, *limits]
    return [unnamed, *limits, _describe_load(settings, options, _nodes_to_start())]


def _describe_rule(site: str, rule: Rule) -> str:
    """Return how many requests a site sees at most, by its rule of the throttle."""
    if rule.hits is None or rule.window is None or rule.blocked or rule.paused:
        return f"{site} sees no request for now: a rule of `sdist throttle` holds them back."
    return (
        f"{site} sees at most {counted(int(rule.hits * rule.scale), 'request')} in"
        f" {rule.window:g} s, however many jobs run: that is its rule of `sdist throttle`."
    )


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
    if settings.getdict("DOWNLOAD_SLOTS"):
        rate += ", and hosts in DOWNLOAD_SLOTS what each job may send them"
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
