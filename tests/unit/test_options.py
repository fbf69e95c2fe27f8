"""The settings of a producer, and its modes: what is read, and what is refused."""

from collections import Counter
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.spiders import SitemapSpider
from scrapyd_dist.middlewares.producer.crawl_check import check_mode
from scrapyd_dist.middlewares.producer.crawl_nodes import check_reach, settle_sending
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions, read_options
from scrapyd_dist.middlewares.producer.spider_check import check_spider, make_as_job

from scrapyd_dist.batches import Batch, WorkerEntry
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scheduling.scheduler_state import SchedulerLimits
from scrapyd_dist.settings import SETTINGS, limits_in
from scrapyd_dist.store.reach import Way


def options(
    values: dict[str, Any] | None = None, priority: str = "project", **more: Any
) -> ProducerOptions:
    return read_options(settings(priority, **{**(values or {}), **more}))


def settings(priority: str = "project", **values: Any) -> Settings:
    made = Settings()
    for name, value in values.items():
        made.set(f"DISTRIBUTED_{name}", value, priority=priority)
    return made


def test_without_settings_everything_is_as_documented() -> None:
    usual = ProducerOptions()
    assert (usual.batch_size, usual.sent_size, usual.batch_max_age) == (100, 10_000, 30.0)
    assert (usual.placement, usual.limits) == ("by-capacity", SchedulerLimits())


def test_values_of_the_command_line_are_read_like_those_of_a_file() -> None:
    values = {
        "CRAWL": "c-1", "INDEX": "http://web/%d", "PAGES": 7, "FIRST_PAGE": 2, "SHARDS": 3, "BATCH_SIZE": 5,
        "BATCH_MAX_AGE": 0.5, "MAX_JOBS": 4, "MAX_ATTEMPTS": 2, "MAX_FAILED": 9, "POLL_INTERVAL": 2,
        "PLACEMENT": "least-loaded",
    }  # fmt: skip
    as_text = options(
        {name: str(value) for name, value in values.items()}, NODES="a,b:6801", WAIT="0"
    )
    assert as_text == options(values, NODES=["a", "b:6801"], WAIT=False)
    assert (as_text.nodes, as_text.sharded, as_text.limits.wait) == (("a", "b:6801"), True, False)


def test_batches_have_the_size_that_was_given_and_adapt_where_none_was() -> None:
    assert options().batch_adapt
    assert options(BATCH_SIZE="auto") == options() == ProducerOptions()
    assert options(MODE="pull", BATCH_SIZE="auto") == options(MODE="pull")
    assert not options(BATCH_SIZE=50).batch_adapt
    assert not options(WAIT=False).batch_adapt  # a producer that does not stay cannot see what fits
    told = options(MODE="pull", BATCH_SIZE=7)
    assert (told.batch_size, told.batch_adapt, told.scaling.terms.batch_size) == (7, False, 7)


def test_the_books_settings_keep_their_names() -> None:
    found = options(
        TARGET_HOSTS=["scrapyd1:6800"], BATCH_SIZE=2000, TARGET_FEED_URL="ftp://h/%(batch)s.jl"
    )
    assert (found.target_hosts, found.batch_size) == (("scrapyd1:6800",), 2000)
    assert found.target_feed_url == "ftp://h/%(batch)s.jl"


def test_a_time_may_have_a_unit() -> None:
    times = {"90": 90, "1.5s": 1.5, " 30m ": 1800, "2h": 7200, "7d": 604800}
    assert {text: SETTINGS["DISTRIBUTED_LEASE"].judged(text) for text in times} == times


@pytest.mark.parametrize("text", ["", "0", "-1", "-1m", "0m", "x", "1w", "2 h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match=r"LEASE is .*must be"):
        SETTINGS["DISTRIBUTED_LEASE"].judged(text)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"CRAWL": "a/b"}, "cannot name a crawl"),
        ({"PAGES": "ten", "INDEX": "u%d"}, "DISTRIBUTED_PAGES is 'ten'"),
        ({"PAGES": 1.5}, "whole number"),
        ({"PAGES": 0, "INDEX": "u%d"}, "PAGES is 0, and must be 1 or more"),
        ({"SHARDS": 0}, "SHARDS is 0, and must be 1 or more"),
        ({"SHARDS": 10**6}, "must be 100,000 or less"),
        ({"FIRST_PAGE": -1}, "FIRST_PAGE is -1, and must be 0 or more"),
        ({"TARGET_RULE": -5}, "TARGET_RULE is -5, and must be -1 or more"),
        ({"KEEP_DAYS": float("nan")}, "KEEP_DAYS is nan, and must be a number of days"),
        ({"MIN_FREE": -1}, "MIN_FREE is -1, and must be 0 or more"),
        ({"LEASE": float("inf")}, "LEASE is inf, and must be a number of seconds"),
        ({"LEASE": 10**20}, r"must be 3,155,760,000 seconds \(36,525 days\) or less"),
        ({"NODES": 5}, "NODES must be a list of texts"),
        ({"NODES": [5]}, "NODES must be a list of texts"),
        (
            {"TARGET_CALLBACKS": {"parse": 1}},
            "TARGET_CALLBACKS is {'parse': 1}, and must be a list of texts",
        ),
        ({"SPIDER_ARGS": [["a", "b"]]}, "must be a mapping with names as keys"),
        ({"OUTPUTS": {"path": "a.jl"}}, "must be a list with"),
        ({"OUTPUTS": ["a.jl"]}, "must be a list with"),
        ({"INDEX": 5}, "INDEX is 5, and must be text"),
        ({"PROFILE": ["fast"]}, "must be usual or fast or none"),
        ({"BATCH_SIZE": 0}, "BATCH_SIZE is 0, and must be 1 or more"),
        ({"BATCH_SIZE": "all"}, "a whole number, or auto"),
        ({"WAIT": "perhaps"}, "WAIT is 'perhaps', and must be True or False"),
        ({"BATCH_MAX_AGE": 0}, "more than 0 seconds"),
        ({"BATCH_MAX_AGE": "soon"}, "number of seconds"),
        ({"POLL_INTERVAL": "nan"}, "number of seconds"),
        ({"NODE_TIMEOUT": -1}, "NODE_TIMEOUT is -1"),
        ({"NODES_EVERY": 0}, "more than 0 seconds"),
        ({"MAX_ATTEMPTS": 0}, "MAX_ATTEMPTS"),
        ({"MAX_JOBS": -1}, "MAX_JOBS"),
        ({"MAX_FAILED": -1}, "MAX_FAILED"),
        ({"MIN_ITEMS": "-1"}, "MIN_ITEMS"),
        ({"DEPLOY": "always"}, "if-missing or never"),
        ({"PLACEMENT": "random"}, "by-capacity or round-robin or least-loaded"),
        ({"UNSENDABLE": "drop"}, "local or refuse"),
        ({"MODE": "pulled"}, "MODE is 'pulled', and must be auto or push or pull"),
        ({"MAX_JOBS": "-1"}, "MAX_JOBS is '-1', and must be 0 or more"),
        ({"MAX_TIME": "-1"}, "0 seconds or more"),
        ({"IDLE": "soon"}, "number of seconds"),
        ({"LEASE": "0"}, "LEASE is '0', and must be more than 0"),
        ({"START": "last"}, "skip or first"),
        ({"PROFILE": "quick"}, "PROFILE is 'quick', and must be usual or fast or none"),
        ({"FAIR": "equal"}, r"FAIR is 'equal', and must be spread or by-domain\."),
        ({"INDEX": "u%d"}, "needs the number of its pages"),
        ({"PAGES": 3}, "needs the address of the index"),
        ({"SHARDS": 3}, "Shards need to know the index pages"),
        ({"INDEX": "u%d", "PAGES": 3, "START_URLS_FILE": "f"}, "not both"),
    ],
)
def test_what_is_wrong_is_told_with_its_name(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        options(values)


@pytest.mark.parametrize("name", SETTINGS)
def test_an_empty_value_is_none(name: str) -> None:
    assert read_options(Settings({name: ""})) == ProducerOptions()


SECRET = "ftp://me:s3cret@host/%(batch)s.jl"


def test_a_feed_url_with_a_password_must_be_deployed() -> None:
    assert options(TARGET_FEED_URL=SECRET).target_feed_url == SECRET
    with pytest.raises(ConfigError, match="has a password") as caught:
        options({"TARGET_FEED_URL": SECRET}, priority="cmdline")
    assert "s3cret" not in str(caught.value)
    assert options({"TARGET_FEED_URL": "ftp://me@host/x"}, priority="cmdline").target_feed_url


@pytest.mark.parametrize("url", ["ftp://[", "ftp://me:s3c/ret@host/x", "ftp://host:port/x"])
def test_a_feed_url_that_cannot_be_read_is_told_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(TARGET_FEED_URL=url)
    assert url not in str(caught.value)


def test_the_limits_of_workers() -> None:
    made = options(
        MODE="pull",
        MAX_JOBS="6",
        MAX_BATCHES=3,
        MAX_REQUESTS="40",
        MAX_TIME="2.5",
        IDLE=9,
        LEASE=30,
        START="first",
    )
    terms = made.scaling.terms
    assert (made.scaling.most, terms.max_batches, terms.max_requests) == (6, 3, 40)
    assert (terms.max_time, terms.idle, terms.lease, terms.start) == (2.5, 9.0, 30.0, "first")
    assert options(MODE="pull").scaling.most == 0


def test_batches_are_leased_where_that_can_be_and_sent_where_it_cannot() -> None:
    usual = options()
    assert (usual.leases, usual.sends, usual.why_reach, usual.batch_size) == (True, True, "", 100)
    for sent in (
        options(MODE="push"),
        options(TARGET_FEED_URL="ftp://web/items.jl"),
        options(WAIT=False),
    ):
        assert (sent.leases, sent.sends, sent.why_reach) == (False, True, "")
    for leased in (options(MODE="pull"), options(LOGIN="log_in")):
        assert (leased.leases, leased.sends, bool(leased.why_reach)) == (True, False, True)
        assert (leased.batch_size, leased.batch_adapt) == (100, True)


class Picky(Spider):
    """Without **kwargs, as a class of one's own is easily written."""

    name = "picky"

    def __init__(self, category: str = "") -> None:
        super().__init__()


class Easy(Picky):
    def __init__(self, category: str = "", **kwargs: Any) -> None:
        super().__init__(category)


def test_a_spider_that_does_not_take_scrapyds_argument_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"takes no argument _job.*Add `\*\*kwargs`"):
        check_spider(Picky, Settings())
    check_spider(Easy, Settings())


class Base:
    """Of a project's own: it takes nothing, and is the first that the spider is made from."""

    def __init__(self) -> None:
        super().__init__()


class OnBase(SitemapSpider, Base):
    name = "on-base"


class BeforeBase(Base, SitemapSpider):
    name = "before-base"


class Passing(BeforeBase):
    name = "passing"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Keeping(BeforeBase):
    name = "keeping"

    def __init__(self, shop: str, **kwargs: Any) -> None:
        super().__init__()
        self.shop = shop


def test_each_class_that_a_spider_is_made_from_is_given_what_a_job_gets() -> None:
    """`scrapy crawl` makes such a spider without arguments; on nodes each job would fail."""
    for kind in (BeforeBase, Passing):
        with pytest.raises(ConfigError, match="takes no argument _job"):
            check_spider(kind, Settings())
        with pytest.raises(ConfigError, match="takes no argument _job"):
            make_as_job(Crawler(kind), {})
    check_spider(OnBase, Settings())  # Scrapy's Spider calls none of the classes behind it
    check_spider(Keeping, Settings(), {"shop": "a"})
    made = make_as_job(Crawler(Keeping), {"shop": "a"})
    assert isinstance(made, Keeping)
    assert made.shop == "a"


def test_the_projects_feeds_are_written_at_home_whoever_leases() -> None:
    made = settings()
    made.set("FEEDS", {"s3://key:secret@bucket/items.jl": {"format": "jsonlines"}})
    assert read_options(made).leases
    check_mode(options(MODE="pull"), made)
    with pytest.raises(ConfigError, match="DISTRIBUTED_TARGET_FEED_URL"):
        options(MODE="pull", TARGET_FEED_URL="ftp://files.example/items.jl")


def test_the_limits_of_jobs_may_stand_in_scrapy_cfg() -> None:
    assert limits_in({"store": "x", "stall_timeout": "90"}) == {"DISTRIBUTED_STALL_TIMEOUT": "90"}
    with pytest.raises(
        ConfigError, match=r"^job_timeout in \[sdist\] of scrapy.cfg is '2 h', and must"
    ):
        limits_in({"job_timeout": "2 h"})
    with pytest.raises(ConfigError, match="DISTRIBUTED_STALL_TIMEOUT is '5x'"):
        options(STALL_TIMEOUT="5x")


def members(*names: str) -> list[NodeState]:
    return [
        NodeState(node=Node.parse(f"{name}:6800", name=name), readiness=Readiness(prepared=True))
        for name in names
    ]


def far(node: Node) -> Way:
    return (
        Way(reason="it is another machine.")
        if node.name.startswith("far")
        else Way(job_settings={"store": "/x"})
    )


def test_nodes_that_do_not_reach_the_store_are_named_and_not_used_but_for_those_that_are_away() -> (
    None
):
    here = members("far1", "near", "far2")
    here[2].liveness.missed("refused", 1.0)  # it may reach the store when it is back
    assert check_reach(options(MODE="auto"), here, far, rules=1) == [
        "far1 gets no workers: it is another machine."
    ]
    assert [(member.able, bool(member.readiness.unfit)) for member in here] == [
        (False, True),
        (True, False),
        (False, False),
    ]
    assert not any(member.readiness.unreached for member in here), (
        "nothing is sent where workers need the store"
    )
    assert check_reach(options(MODE="pull"), here[2:], far, rules=0) == []


@pytest.mark.parametrize(
    ("mode", "rules", "named"),
    [
        ("pull", 0, ["Workers need a store that they reach (--pull, DISTRIBUTED_MODE)"]),
        (
            "push",
            1,
            ["SDIST_STORE=redis://", "sdist throttle show", "DISTRIBUTED_THROTTLE = False"],
        ),
    ],
)
def test_without_any_node_that_reaches_the_store_nothing_is_started(
    mode: str, rules: int, named: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_reach(options(MODE=mode), members("far1", "far2"), far, rules=rules)
    assert str(refused.value).count("it is another machine") == 1
    assert [words for words in named if words not in str(refused.value)] == []


def test_with_rules_no_node_is_sent_batches_later_either() -> None:
    """A worker may find that its node only seemed to reach the store."""
    given, here = options(MODE="auto"), members("near1", "near2")
    assert settle_sending(given, here, rules=0) == given
    assert given.sends
    assert not settle_sending(given, here, rules=1).sends
    for member in here:
        member.readiness.out_of_reach("it is another machine.")
    assert not settle_sending(given, here, rules=0).leases


def test_without_rules_nodes_that_do_not_reach_the_store_are_used_and_noted() -> None:
    here = members("far1", "near")
    assert check_reach(options(MODE="push"), here, far, rules=0) == []
    assert [(member.able, member.readiness.throttle_problem) for member in here] == [
        (True, "it is another machine."),
        (True, ""),
    ]


def test_a_workers_progress_is_what_has_not_come_home_and_its_batch_may_be_to_blame() -> None:
    (member,) = members("one")
    job: dict[str, Any] = {
        "batch": Batch(number=1, size=0),
        "number": 1,
        "member": member,
        "since": 0,
        "start_by": 0,
    }
    entry = WorkerEntry(number=1, job="c.w1.a1", url=member.node.url, pool="", since=0.0)
    out = WorkerRun.of_entry(entry, member, start_by=0.0)
    member.add(out)
    assert member.progress() == Counter()
    assert out.to_blame
    assert not JobRun(**job, job="c.b1.a1").to_blame
    out.accept_report(
        WorkerReport(ended=False, updated=9.0, requests=9, done=5, missed=1, pages=6, items=5), 1.0
    )
    assert member.progress() == Counter(requests=6, pages=6, items=5)
    home = WorkerReport(ended=False, updated=9.0, requests=9, done=4, missed=0, pages=4, items=4)
    out.count_home(home.counts)
    assert member.progress() == Counter(requests=2, pages=2, items=1)
    out.count_home(home.counts)  # its next report is still on the way
    assert member.progress() == Counter()


@pytest.mark.parametrize(
    "own",
    [
        {"SEEDS": True}, {"SPIDER_CALLBACKS": {"enter": "login"}}, {"SPIDER_ATTRIBUTES": ["token"]},
        {"LOGIN": "log_in"}, {"REQUEST_HOOK": "change"},
    ],
)  # fmt: skip
def test_what_only_workers_that_lease_know_of_is_refused_without_them(own: dict[str, Any]) -> None:
    (name,) = own
    with pytest.raises(ConfigError, match=f"DISTRIBUTED_{name}: only workers that lease"):
        check_mode(options(**own, MODE="push"), settings(**own))
    check_mode(options(**own, MODE="pull"), settings(**own))
    nothing: dict[str, Any] = {"SEEDS": "False", "SPIDER_CALLBACKS": "{}", "SPIDER_ATTRIBUTES": []}
    check_mode(options(**nothing, MODE="push"), settings(**nothing))


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"SLOTS": "many"}, "DISTRIBUTED_SLOTS"),
        ({"SEEDS": True, "INDEX": "http://web/%d", "PAGES": 3}, "Leave out one of the two"),
        ({"SEEDS": True, "LIMIT": 5}, "Leave out one of the two"),
    ],
)
def test_slots_that_cannot_be_and_seeds_with_an_index_or_a_limit_are_refused(
    own: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        check_mode(options(**own, MODE="pull"), settings(**own, MODE="pull"))
