"""Push and pull: what is read, what is refused, and what travels to workers that lease."""

import json
from dataclasses import replace
from typing import Any

import pytest
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.crawl_nodes import check_reach
from scrapyd_dist.middlewares.producer.crawl_request import check_mode, shared_settings, worker_settings
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions, read_options
from scrapyd_dist.middlewares.slot_routing import SlotRouting
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions

from scrapyd_dist.batches import Batch
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.store.reach import Way


def options(**values: Any) -> ProducerOptions:
    return read_options(settings(**values))


def settings(**values: Any) -> Settings:
    made = Settings()
    for name, value in values.items():
        made.set(f"DISTRIBUTED_{name}", value, priority="project")
    return made


# what is read


def test_workers_lease_a_hundred_requests_at_a_time_unless_told_otherwise() -> None:
    pulled = options(MODE="pull")
    assert (pulled.leases, pulled.batch_size, pulled.batch_adapt) == (True, 100, True)
    told = options(MODE="pull", BATCH_SIZE=7)
    assert (told.batch_size, told.batch_adapt, told.scaling.terms.batch_size) == (7, False, 7)


def test_the_limits_of_workers() -> None:
    made = options(
        MODE="pull", WORKERS="6", MAX_BATCHES=3, MAX_REQUESTS="40", MAX_TIME="2.5", IDLE=9, LEASE=30, START="first"
    )
    terms = made.scaling.terms
    assert (made.scaling.most, terms.max_batches, terms.max_requests) == (6, 3, 40)
    assert (terms.max_time, terms.idle, terms.lease, terms.start) == (2.5, 9.0, 30.0, "first")
    assert options(MODE="pull", WORKERS=6, MAX_JOBS=2).scaling.most == 2
    assert options(MODE="pull", MAX_JOBS=2).scaling.most == 2
    assert options(MODE="pull").scaling.most == 0


def test_batches_are_leased_where_that_can_be_and_sent_where_it_cannot() -> None:
    usual = options()
    assert (usual.leases, usual.sends, usual.why_reach, usual.batch_size) == (True, True, "", 100)
    for sent in (options(MODE="push"), options(TARGET_FEED_URL="ftp://web/items.jl"), options(WAIT=False)):
        assert (sent.leases, sent.sends, sent.why_reach) == (False, True, "")
    for leased in (options(MODE="pull"), options(LOGIN="log_in")):
        assert (leased.leases, leased.sends, bool(leased.why_reach)) == (True, False, True)


# what is refused


def test_feeds_that_are_uploaded_when_a_job_closes_do_not_go_with_workers_that_lease() -> None:
    feeds = {"s3://key:secret@bucket/items.jl": {"format": "jsonlines"}, "items.jl": {"format": "jsonlines"}}
    pulled, made = options(MODE="pull"), settings()
    made.set("FEEDS", feeds)
    with pytest.raises(ConfigError, match="s3://bucket/") as refused:
        check_mode(pulled, made)
    assert "secret" not in str(refused.value)
    usual = read_options(made)
    assert not usual.leases
    check_mode(usual, made)
    made.set("FEEDS", {"items.jl": {"format": "jsonlines"}})
    check_mode(pulled, made)


def test_a_feed_url_does_not_go_with_workers_that_lease() -> None:
    with pytest.raises(ConfigError, match="DISTRIBUTED_TARGET_FEED_URL"):
        options(MODE="pull", TARGET_FEED_URL="ftp://files.example/items.jl")


# what travels


def test_of_what_was_given_on_the_command_line_workers_get_what_they_need_to_find_targets() -> None:
    made = settings(TARGET_RULE=1)
    given = {
        "DISTRIBUTED_TARGET_CALLBACKS": ["parse_item", "parse_more"],
        "DISTRIBUTED_CALLBACK_SLOTS": {"parse_item": "p/4"},
        "DISTRIBUTED_SLOTS": "8",
        "DISTRIBUTED_STORE": "redis://:secret@host/0",
    }
    for name, value in given.items():
        made.set(name, value, priority="cmdline")
    sent = worker_settings(options(MODE="pull"), made)
    assert sent == {
        "DISTRIBUTED_TARGET_CALLBACKS": "parse_item,parse_more",
        "DISTRIBUTED_CALLBACK_SLOTS": '{"parse_item": "p/4"}',
        "DISTRIBUTED_SLOTS": "8",
    }
    received = Settings(sent)
    assert received.getlist("DISTRIBUTED_TARGET_CALLBACKS") == given["DISTRIBUTED_TARGET_CALLBACKS"]
    assert json.loads(received["DISTRIBUTED_CALLBACK_SLOTS"]) == given["DISTRIBUTED_CALLBACK_SLOTS"]
    assert worker_settings(options(MODE="push"), made) == {}


def test_workers_of_another_project_get_the_slots_and_the_limits_of_the_crawl_and_nothing_else() -> None:
    slots = {"SLOTS": 4, "CALLBACK_SLOTS": {"parse_item": "p/4"}}
    made = settings(**slots, TARGET_CALLBACKS=["parse_item"], LOGIN="log_in", FAIR="", THROTTLE_MODERATED=False)
    made.set("QUEUE_WINDOW", 30, priority="project")
    of_slots = {"DISTRIBUTED_SLOTS": "4", "DISTRIBUTED_CALLBACK_SLOTS": '{"parse_item": "p/4"}'}
    of_slots |= dict.fromkeys(("DISTRIBUTED_FAIR", "DISTRIBUTED_SLOT_PREFIX", "DISTRIBUTED_SLOT_BY"), "")
    assert shared_settings(made) == of_slots
    made.set("DISTRIBUTED_THROTTLE_HITS", 60, priority="cmdline")  # now there are limits
    limits = {"DISTRIBUTED_THROTTLE_HITS": "60", "DISTRIBUTED_THROTTLE_MODERATED": "False"}
    limits["DISTRIBUTED_THROTTLE_WINDOW"] = "30"
    assert shared_settings(made) == {**of_slots, **limits}


def test_what_another_project_says_of_its_own_slots_and_limits_does_not_count_for_workers_of_this_crawl() -> None:
    crawl = settings(THROTTLE=True)
    crawl.setdict({"QUEUE_HITS": 60, "PUBLIC_IP_URL": "https://me:secret@ip.example/"}, priority="project")
    other = settings(SLOTS=9, SLOT_PREFIX="b", SLOT_BY="site", CALLBACK_SLOTS={"x": "x/3"}, THROTTLE_HITS=600)
    told = shared_settings(crawl)
    assert "secret" not in str(told)  # the arguments of a job are for everybody to see
    other.setdict(told, priority="cmdline")
    assert replace(SlotRouting.from_settings(other), known=None) == replace(
        SlotRouting.from_settings(crawl), known=None
    )
    limit = ThrottleOptions.from_settings(other).limit
    assert limit
    assert limit.hits == 60


# who reaches the store


def members(*names: str) -> list[NodeState]:
    return [NodeState(node=Node.parse(f"{name}:6800", name=name), prepared=True) for name in names]


def far(node: Node) -> Way:
    return Way(reason="it is another machine.") if node.name.startswith("far") else Way(told={"store": "/x"})


def test_nodes_that_do_not_reach_the_store_are_named_and_not_used() -> None:
    here = members("far1", "near")
    assert check_reach(options(MODE="pull"), here, far, rules=0) == ["far1 gets no workers: it is another machine."]
    assert [member.able for member in here] == [False, True]


@pytest.mark.parametrize(
    ("mode", "rules", "named"),
    [
        ("pull", 0, ["Workers need a store that they reach (--pull, DISTRIBUTED_MODE)"]),
        ("push", 1, ["SDIST_STORE=redis://", "sdist throttle show", "DISTRIBUTED_THROTTLE = False"]),
    ],
)
def test_without_any_node_that_reaches_the_store_nothing_is_started(mode: str, rules: int, named: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_reach(options(MODE=mode), members("far1", "far2"), far, rules=rules)
    assert str(refused.value).count("it is another machine") == 1
    assert [words for words in named if words not in str(refused.value)] == []


def test_without_rules_nodes_that_do_not_reach_the_store_are_used_and_noted() -> None:
    here = members("far1", "near")
    assert check_reach(options(MODE="push"), here, far, rules=0) == []
    assert [(member.able, member.deaf) for member in here] == [(True, "it is another machine."), (True, "")]


def test_nodes_that_are_away_may_reach_it_when_they_are_back() -> None:
    away = members("far1")
    away[0].missed("refused", 1.0)
    assert check_reach(options(MODE="pull"), away, far, rules=0) == []


# a worker as a job that is out


def worker(member: NodeState) -> WorkerRun:
    return WorkerRun(
        batch=Batch(number=1, size=0), number=1, job="c.w1.a1", member=member, since=0, start_by=0, pool=""
    )


def report(**fields: Any) -> WorkerReport:
    return WorkerReport(
        **{"ended": False, "updated": 9.0, "requests": 9, "done": 5, "missed": 1, "pages": 6, "items": 5, **fields}
    )


def test_a_workers_progress_is_what_has_not_come_home() -> None:
    (member,) = members("one")
    out = worker(member)
    member.out[out.job] = out
    assert member.progress() == (0, 0, 0)
    out.heard(report(), 1.0)
    assert member.progress() == (6, 6, 5)
    out.came_home(report(done=4, missed=0, pages=4, items=4))
    assert member.progress() == (2, 2, 1)
    out.came_home(report(done=4, missed=0, pages=4, items=4))  # its next report is still on the way
    assert member.progress() == (0, 0, 0)


def test_a_worker_that_died_without_a_word_may_have_died_of_its_batch() -> None:
    (member,) = members("one")
    job = JobRun(batch=Batch(number=1, size=5), number=1, job="c.b1.a1", member=member, since=0, start_by=0)
    assert not job.to_blame
    assert worker(member).to_blame


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


def test_settings_that_ask_for_nothing_are_no_reason() -> None:
    nothing = {"SEEDS": "False", "SPIDER_CALLBACKS": "{}", "SPIDER_ATTRIBUTES": []}
    check_mode(options(**nothing), settings(**nothing))


def test_slots_that_cannot_be_are_refused_before_anything_is_started() -> None:
    own = {"MODE": "pull", "SLOTS": "many"}
    with pytest.raises(ConfigError, match="DISTRIBUTED_SLOTS"):
        check_mode(options(**own), settings(**own))


@pytest.mark.parametrize("other", [{"INDEX": "http://web/%d", "PAGES": 3}, {"LIMIT": 5}])
def test_index_pages_and_limits_do_not_go_with_seeds(other: dict[str, Any]) -> None:
    own = {"MODE": "pull", "SEEDS": True, **other}
    with pytest.raises(ConfigError, match="Leave out one of the two"):
        check_mode(options(**own), settings(**own))
