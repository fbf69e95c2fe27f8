"""Which slot of a frontier a request lies in; fair work: a slot for each site, what is cut when and into what."""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.steps import growth
from scrapy.settings import Settings
from scrapy.utils.misc import load_object
from scrapyd_dist.cli.frontier.frontier_list import SCREEN, fullest
from scrapyd_dist.middlewares.addon import SITE_QUEUE, Addon
from scrapyd_dist.middlewares.producer.job_settings import make_job_settings
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions, read_options
from scrapyd_dist.middlewares.slot_routing import SlotRouting
from scrapyd_dist.middlewares.throttle.queue import HeedingQueue

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import (
    BY_DOMAIN,
    FAIR,
    SPREAD,
    UNFAIR,
    SlotCount,
    check_slot_name,
)
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.frontier.slots import (
    SITE,
    SlotRule,
    site_of,
    slot_of_site,
    slot_of_spider,
    spider_of_slot,
)
from scrapyd_dist.scheduling import batcher
from scrapyd_dist.scheduling.batcher import (
    BatchDraft,
    Batcher,
    Buffer,
    Demand,
    SlotBatcher,
    portions,
)
from scrapyd_dist.settings import MOST_SLOTS


def prints(count: int) -> list[bytes]:
    return [hashlib.sha1(str(number).encode()).digest() for number in range(count)]  # noqa: S324 - as Scrapy's


def test_slots_are_called_by_their_prefix_and_a_number_from_0_on() -> None:
    assert SlotRule().names() == ["0"]
    assert SlotRule(prefix="p", number=8).names() == [f"p{number}" for number in range(8)]
    assert SlotRule().slot_for("http://web/", b"x") == "0"
    assert SlotRule.parse("pages/3").names() == ["pages0", "pages1", "pages2"]
    assert [SlotRule.parse(text).names() for text in ("pages", "/2")] == [["pages0"], ["0", "1"]]


@pytest.mark.parametrize("is_hash", [True, False])
def test_ten_thousand_fingerprints_are_spread_evenly_over_eight_slots_and_none_else(
    *, is_hash: bool
) -> None:
    slots = SlotRule(prefix="p", number=8)
    given = prints(10_000) if is_hash else [f"page {number}".encode() for number in range(10_000)]
    found = Counter(slots.slot_for("http://web/", one) for one in given)
    assert sorted(found) == slots.names()
    assert all(1125 <= count <= 1375 for count in found.values()), found


def test_a_request_lies_in_the_same_slot_on_every_machine() -> None:
    # Not to be changed: what is stored by one version is looked for by the next.
    assert [SlotRule(number=100).slot_for("", one) for one in prints(5)] == [
        "96",
        "47",
        "7",
        "89",
        "77",
    ]
    assert SlotRule(number=100, by="domain").slot_for("https://www.example.co.uk/a", b"") == "42"


def test_by_domain_one_site_is_in_one_slot_whatever_its_hosts() -> None:
    slots = SlotRule(prefix="d", number=50, by="domain")
    hosts = [
        "example.co.uk",
        "www.example.co.uk",
        "shop.example.co.uk:8080",
        "user:x@a.b.example.co.uk",
    ]
    assert (
        len(
            {
                slots.slot_for(f"http://{host}/{n}", one)
                for host in hosts
                for n, one in enumerate(prints(20))
            }
        )
        == 1
    )
    others = {slots.slot_for(f"http://site{number}.co.uk/", b"") for number in range(500)}
    assert len(others) == 50


@pytest.mark.parametrize(
    ("url", "site"),
    [
        ("http://www.example.com/a", "example.com"),
        ("https://a.b.example.co.uk", "example.co.uk"),
        ("http://127.0.0.1:8000/", "127.0.0.1"),
        ("http://[::1]:80/", "::1"),
        ("http://localhost/", "localhost"),
        ("http://co.uk/", "co.uk"),
        ("http://EXAMPLE.COM/", "example.com"),
        ("data:,x", ""),
        ("http://my_shop.example/", "my_shop.example"),
        ("http://[bad/", ""),
    ],
)
def test_the_site_of_a_url_is_found_without_the_net_and_may_have_a_slot(
    url: str, site: str
) -> None:
    assert site_of(url) == site
    assert SlotRule(prefix="p-", by=SITE).slot_for(url, b"whatever") == f"p-{site or '-'}"


@given(site=st.text(max_size=120), prefix=st.sampled_from(["", "p", "p" * 60]))
def test_any_site_has_a_name_that_a_slot_can_have(site: str, prefix: str) -> None:
    name = slot_of_site(prefix, site)
    assert check_slot_name(name) == name == slot_of_site(prefix, site)
    assert name.startswith(prefix)
    assert not name.startswith("@")


def test_long_and_strange_names_of_sites_are_told_apart() -> None:
    names = [
        slot_of_site("", site)
        for site in ("@a.com", "a.com", "x" * 100, "x" * 101, "bücher", "büchex")
    ]
    assert len(set(names)) == 6


BAD_NAMES = [
    "pages/",
    "pages/x",
    "pages/-1",
    "pages/0",
    f"pages/{MOST_SLOTS + 1}",
    "a b/2",
    "@a/2",
    "a/b/2",
]
BAD_FIELDS: list[dict[str, Any]] = [
    {"by": "size"},
    {"prefix": "a/b"},
    {"number": 0},
    {"prefix": "x" * 81},
]


@pytest.mark.parametrize("family", [*BAD_NAMES, *BAD_FIELDS])
def test_what_names_no_slots_is_refused(family: str | dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SlotRule.parse(family) if isinstance(family, str) else SlotRule(**family)


def test_slots_of_other_spiders_tell_whose_they_are() -> None:
    assert spider_of_slot("p0") == ("", "")
    for project, spider in (("", "login"), ("other", "login"), ("other", "example.com")):
        assert spider_of_slot(slot_of_spider(spider, project)) == (project, spider)
    with pytest.raises(ConfigError, match="cannot name a slot"):
        slot_of_spider("my spider")


def found(number: int, site: str = "a.com", priority: int = 0) -> FrontierIntake:
    value = {"url": f"http://www.{site}/{number}"}
    return FrontierIntake(
        value=value, fingerprint=f"{site}{number}".encode(), slot=site, priority=priority
    )


def sites(cut: BatchDraft) -> str:
    return "".join(str(one.value["url"])[11] for one in cut)


def test_a_number_of_slots_means_nothing_there_and_the_prefix_of_a_callback_does() -> None:
    by_site = SlotRouting.from_settings(
        Settings(
            {
                "DISTRIBUTED_FAIR": SPREAD,
                "DISTRIBUTED_SLOTS": 7,
                "DISTRIBUTED_CALLBACK_SLOTS": {"x": "art-/4"},
            }
        )
    )
    assert (
        by_site.usual.slot_for("http://a.com/", b"1")
        == by_site.usual.slot_for("http://b.a.com/", b"2")
        == "a.com"
    )
    assert by_site.callbacks["x"].slot_for("http://a.com/", b"1") == "art-a.com"
    other = SlotRouting.from_settings(
        Settings({"DISTRIBUTED_FAIR": SPREAD, "DISTRIBUTED_SLOT_BY": "domain"})
    )
    assert other.usual.slot_for("http://a.com/", b"1") == "0"


def options(**values: Any) -> ProducerOptions:
    return read_options(Settings({f"DISTRIBUTED_{name}": value for name, value in values.items()}))


@pytest.mark.parametrize("fair", [SPREAD, BY_DOMAIN])
def test_fairly_leased_batches_are_small_unless_a_size_is_given(fair: str) -> None:
    made = options(MODE="pull", FAIR=fair)
    assert (made.batch_size, made.batch_adapt) == (10, True)
    assert (made.scaling.terms.fair, made.scaling.terms.batch_size) == (fair, 10)
    assert options(MODE="pull", FAIR=fair, BATCH_SIZE=40).scaling.terms.batch_size == 40
    assert (
        options(MODE="push", FAIR=fair).batch_size,
        options(MODE="pull").scaling.terms.fair,
    ) == (10_000, UNFAIR)


def test_workers_are_told_what_the_command_line_says() -> None:
    settings = Settings(
        {"DISTRIBUTED_MODE": "pull", "DISTRIBUTED_FAIR": BY_DOMAIN}, priority="cmdline"
    )
    sent = make_job_settings(settings, given={}, limits={}, leases=read_options(settings).leases)
    assert sent.own["DISTRIBUTED_FAIR"] == BY_DOMAIN


def test_of_thousands_of_slots_a_screen_shows_those_with_the_most_to_do() -> None:
    counts = [
        SlotCount(slot=f"{at}.com", requests={"sealed": at % 60, "running": at})
        for at in range(3000)
    ]
    shown = fullest(counts)
    assert [one.slot for one in shown[:2]] == ["2999.com", "2939.com"]
    assert (len(shown), {one.waiting for one in shown}) == (SCREEN, {59})
    assert fullest(counts[:SCREEN]) == counts[:SCREEN]


def test_every_worker_has_the_queue_that_lets_no_slow_site_fill_the_downloader() -> None:
    """B3: whatever the Scrapy of its node has by default."""

    def queue(**values: Any) -> str:
        settings = Settings(values, priority="project")
        settings.set("SCHEDULER_PRIORITY_QUEUE", "as.in.2.13", priority="default")
        Addon().update_settings(settings)
        return str(settings["SCHEDULER_PRIORITY_QUEUE"])

    pull = {"DISTRIBUTED_PULL": '{"crawl": "c"}'}
    assert queue(**pull) == queue(DISTRIBUTED_START_URLS="[]") == str(HeedingQueue)
    assert HeedingQueue.own is load_object(SITE_QUEUE)
    assert queue(**pull, DISTRIBUTED_THROTTLE=False) == SITE_QUEUE
    assert queue(**pull, SCHEDULER_PRIORITY_QUEUE="own") == "own"
    assert queue(**pull, CONCURRENT_REQUESTS_PER_IP=2) == "as.in.2.13"
    assert queue(DISTRIBUTED_ENABLED=False) == "as.in.2.13"


def test_of_many_slots_only_what_can_be_used_is_cut_early_and_the_oldest_first() -> None:
    idle = [0]
    cutter = SlotBatcher(
        size=10, max_age=30, demand=lambda _: Demand(slots=2, idle=idle[0]), fair=SPREAD
    )
    for at, site in enumerate("abcde"):
        cutter.add(found(0, site), float(at))
        cutter.add(found(1, site), 9.0)
    assert cutter.due(20.0) == []
    idle[0] = 2
    assert [sites(cut) for cut in cutter.due(20.0)] == ["aa", "bb"]
    idle[0] = 0
    assert [sites(cut) for cut in cutter.due(32.0)] == ["cc"]
    assert len(cutter) == 4
    assert [sites(cut) for cut in cutter.cut_rest()] == ["dd", "ee"]


def test_what_is_full_goes_with_the_next_look() -> None:
    cutter = SlotBatcher(size=3, max_age=30, fair=SPREAD)
    assert [cutter.add(found(at, "ab"[at % 2]), 0.0) for at in range(9)] == [None] * 9
    assert len(cutter) == 9
    assert [sites(cut) for cut in cutter.due(0.0)] == ["aaa", "bbb"]
    assert len(cutter) == 3


@pytest.mark.parametrize("fair", [SPREAD, UNFAIR])
def test_what_is_held_back_is_bounded_however_many_slots_there_are(
    fair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 500
    monkeypatch.setattr(batcher, "HELD_REQUESTS", most)
    cutter = SlotBatcher(size=10, max_age=1e9, fair=fair)
    cuts = []
    for number in range(most + 100):
        one = FrontierIntake(
            value={"url": "http://a/"}, fingerprint=b"", slot=str(number % (most - 9))
        )
        cuts += [cut for cut in [cutter.add(one, 0.0)] if cut]
        assert len(cutter) <= most
    assert len(cuts) >= 50  # of the oldest slots, which have two by now
    assert cuts[0][0].slot == "0"
    assert sum(map(len, [*cuts, *cutter.cut_rest()])) == most + 100


def test_many_cuts_are_written_together() -> None:
    cuts = [[found(0, slot)] * 1000 for slot in "abcda"]
    assert [[cut[0].slot for cut in some] for some in portions([*cuts, cuts[0]])] == [
        [*"ab"],
        [*"cd"],
        [*"aa"],
    ]
    assert list(portions([])) == []


@given(
    fair=st.sampled_from(FAIR),
    places=st.lists(st.sampled_from("abc")),
    sizes=st.lists(st.integers(1, 5)),
)
def test_all_comes_out_once_and_each_site_in_its_order(
    fair: str, places: list[str], sizes: list[int]
) -> None:
    buffer = Buffer(fair)
    put = [found(number, f"{site}.com") for number, site in enumerate(places)]
    for one in put:
        buffer.add(one, 0.0)
    out: list[FrontierIntake] = []
    for size in sizes:
        left = len(buffer)
        some = buffer.cut_batch(size)
        assert len(some) == min(size, left)
        out += some
    out += buffer.cut_batch(len(buffer))
    assert (sorted(one.fingerprint for one in out), len(buffer)) == (
        sorted(one.fingerprint for one in put),
        0,
    )
    for slot in "abc":
        assert [one for one in out if one.slot[0] == slot] == [
            one for one in put if one.slot[0] == slot
        ]


@pytest.mark.parametrize(
    ("fair", "size", "put", "cuts"),
    [
        (
            SPREAD,
            4,
            "aaaaaaabbc",
            ["abca", "baaa", "aa"],
        ),  # one of each site in turn, and on where it stopped
        (
            BY_DOMAIN,
            5,
            "abcabcabcbbbb",
            ["aaabb", "bbbbb", "ccc"],
        ),  # a site in one batch, as far as it fits
    ],
)
def test_what_a_batch_is_made_of(fair: str, size: int, put: str, cuts: list[str]) -> None:
    cutter = Batcher(size=size, max_age=5, fair=fair)
    for number, site in enumerate(put):
        cutter.add(found(number, f"{site}.com"), 0.0)
    assert [sites(cut) for cut in cutter.due(5.0)] == cuts


def test_the_age_is_that_of_the_oldest_whatever_has_gone_before_it() -> None:
    cutter = Batcher(size=2, max_age=5, fair=BY_DOMAIN)
    for number, now in enumerate((0.0, 0.0, 1.0)):
        cutter.add(found(number, "b.com"), now)
    assert [sites(cut) for cut in cutter.due(5.0)] == ["bb"]
    assert cutter.due(5.9) == []
    assert [sites(cut) for cut in cutter.due(6.0)] == ["b"]


@pytest.mark.parametrize("fair", FAIR)
def test_what_is_taken_from_many_sites_costs_no_more_for_each(fair: str) -> None:
    """Sites of two requests, and batches of three: none but the first fits whole, and a part of one is taken."""

    def fill_and_cut(number: int) -> Callable[[], object]:
        buffer = Buffer(fair)

        def work() -> None:
            for at in range(2 * number):
                buffer.add(found(at, f"{at // 2}.com"), float(at))
            while buffer:
                buffer.oldest()
                buffer.cut_batch(3)

        return work

    assert growth(fill_and_cut, 50, batcher) < 5
