"""`sdist consume`: workers are kept running over the fleet, at a frontier that others fill; and its bad days."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.redis import RedisServer
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

LABELLED = """\
from properties.spiders.plain import PlainSpider


class Labelled(PlainSpider):
    name = "labelled"
    colour = "none"

    def parse_article(self, response):
        yield {"told": [self.colour, self.settings["SHADE"], self.settings.getlist("DISTRIBUTED_LABELS")]}
"""
BROKEN = """\
from properties.spiders.plain import PlainSpider


class Broken(PlainSpider):
    name = "broken"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        raise ZeroDivisionError("it cannot even begin")
"""


@pytest.fixture
def shop(project: MakeProject, fleet: StartFleet, site: StartSite) -> Callable[..., Shop]:
    """`shop(items=60, nodes=1, slots=2, latency=0.0)`: a site, nodes, and a frontier with all pages of the site."""

    def make(
        *, items: int = 60, nodes: int = 1, slots: int = 2, size: int = 20, latency: float = 0.0,
        standing: bool = False, store: str = "",
        **settings: Any,
    ) -> Shop:  # fmt: skip
        made = fleet(nodes, max_proc=4, poll_interval=0.2, jobs_to_keep="100")
        pages = site(items, f"--latency={latency}")
        it = project(nodes=made, settings={"START_URL": pages.start_url, **QUICK, **settings})
        it.spider("broken", BROKEN)
        frontier = Frontier(it, standing=standing, store=store)
        frontier.fill(map(pages.detail, range(items)), slots=slots, size=size, callback="parse_article")
        return Shop(it, made, pages, frontier)

    return make


class Shop:
    """All that a test of `sdist consume` looks at."""

    def __init__(self, it: Project, nodes: list[ScrapydNode], site: SiteProcess, frontier: Frontier) -> None:
        self.it, self.nodes, self.site, self.frontier = it, nodes, site, frontier

    def assert_all_home(self, name: str = "items.jl", *, without: Iterable[int] = ()) -> None:
        """The file has every page of the site once, and no worker runs."""
        assert self.site.differences(self.it.items(name), without=without) == {}
        for node in self.nodes:
            node.wait_idle()

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that run or wait on the nodes."""
        return [job for node in self.nodes for state in ("running", "pending") for job in node.jobs(state)]

    def workers_of(self) -> dict[str, set[str]]:
        """Slot -> the workers that had a batch of it."""
        slots = {batch.number: batch.slot for batch in self.frontier.batches()}
        found: dict[str, set[str]] = {}
        for attempt in self.frontier.attempts():
            found.setdefault(slots[attempt.batch], set()).add(attempt.worker)
        return found


def test_workers_take_everything_and_the_items_come_home(shop: Callable[..., Shop], run_cli: RunCommand) -> None:
    it = shop()
    done = run_cli(it.it, "consume", "plain", "shop", "-o", "items.jl", "--json", "-s", "DISTRIBUTED_LEASES=9")
    assert done.code == 0, done.err
    assert "Did you mean DISTRIBUTED_LEASE?" in done.err
    told = done.json()
    assert (told["state"], told["items"], told["requests"]["done"], told["batches"]["dead"]) == ("finished", 60, 60, 0)
    it.assert_all_home()
    assert it.frontier.counts() == {"done": 60}
    assert {slot: len(workers) for slot, workers in it.workers_of().items()} == {"p0": 1, "p1": 1}
    row = it.frontier.row()
    assert (row.exit_code, row.pid) == (0, None)


@pytest.mark.black_box
def test_a_lost_producer_leaves_the_frontier_incomplete_until_one_like_it_is_through(
    shop: Callable[..., Shop], run_cli: RunCommand, tmp_path: Path
) -> None:
    it = shop(items=20)
    it.frontier.register("add urls.txt@elsewhere.1", seconds=-1)
    done = run_cli(it.it, "consume", "plain", "shop", "-o", "items.jl", "--json")
    assert (done.code, done.json()["state"]) == (3, "incomplete"), done.err
    assert "urls.txt@elsewhere.1" in done.json()["message"]
    it.assert_all_home()  # what it had added is done, and in the file
    assert run_cli(it.it, "frontier", "list", "--json").json()["frontiers"][0]["state"] == "incomplete"
    part = next((it.it.path / ".sdist" / "crawls" / "shop" / "parts").iterdir())
    away = part.rename(tmp_path / part.name)  # as if it had come home to another machine
    refused = run_cli(it.it, "consume", "plain", "shop", "-O", "items.jl")
    assert (refused.code, "1 of the 2 parts" in refused.err) == (2, True), refused.err
    away.rename(part)
    (tmp_path / "urls.txt").write_text(f"{it.site.detail(0)}\n", "utf-8")
    assert run_cli(it.it, "frontier", "add", "shop", tmp_path / "urls.txt").code == 0  # takes the place of the lost one
    assert run_cli(it.it, "consume", "plain", "shop", "--json").json()["state"] == "finished"
    assert run_cli(it.it, "frontier", "add", "shop", tmp_path / "urls.txt", "--standing").code == 0
    assert it.frontier.row().standing


@pytest.mark.black_box
def test_each_slot_gets_one_worker_and_no_more_run_than_may(shop: Callable[..., Shop], start_cli: StartCommand) -> None:
    it = shop(items=160, nodes=2, slots=8, size=5, latency=0.05)
    command = start_cli(it.it, "consume", "plain", "shop", "--max-running", 3, "-o", "items.jl")
    most = 0
    while command.running():
        out = [one for one in it.frontier.attempts() if one.state is AttemptState.RUNNING]
        most = max(most, len({one.worker for one in out}))
    done = command.wait()
    assert done.code == 0, done.err
    it.assert_all_home()
    assert 1 < most <= 3
    assert len(it.workers_of()) == 8
    assert {len(workers) for workers in it.workers_of().values()} == {1}


@pytest.mark.black_box
def test_one_round_leaves_the_workers_running_and_the_next_brings_all_home(
    shop: Callable[..., Shop], run_cli: RunCommand
) -> None:
    it = shop(slots=2, size=10, latency=0.2, CONCURRENT_REQUESTS=2)
    first = run_cli(it.it, "consume", "plain", "shop", "--loop", 0)
    assert first.code == 0, first.err
    assert "The workers are started" in first.out
    assert len(it.jobs()) == 2
    assert it.frontier.counts().get("done", 0) < 60
    second = run_cli(it.it, "consume", "plain", "shop", "-o", "items.jl")
    assert second.code == 0, second.err
    it.assert_all_home()
    assert {len(workers) for workers in it.workers_of().values()} == {1}, "none was started beside the first one"


@pytest.mark.black_box
def test_workers_that_always_fail_end_it_and_are_named(shop: Callable[..., Shop], run_cli: RunCommand) -> None:
    it = shop()
    done = run_cli(it.it, "consume", "broken", "shop")
    assert done.code == 1, done.out + done.err
    assert "the work of the slots 'p0', 'p1': " in done.out
    assert "it cannot even begin" in done.out
    assert it.frontier.counts() == {"sealed": 60}
    good = run_cli(it.it, "consume", "plain", "shop", "-o", "items.jl")
    assert good.code == 0, good.err
    it.assert_all_home()


DEADLY = """\
import os

from properties.spiders.plain import PlainSpider


class Deadly(PlainSpider):
    name = "deadly"

    def parse_deadly(self, response):
        os._exit(1)
"""


@pytest.mark.black_box
def test_a_slot_whose_workers_always_die_is_named_and_all_others_come_home(
    shop: Callable[..., Shop], run_cli: RunCommand
) -> None:
    it = shop(items=40, slots=1, DISTRIBUTED_MAX_ATTEMPTS=1)
    it.it.spider("deadly", DEADLY)
    it.frontier.fill([f"{it.site.detail(number)}?dies" for number in range(8)], slot="p9", callback="parse_deadly")
    done = run_cli(it.it, "consume", "deadly", "shop", "-o", "items.jl")
    assert (done.code, "The slot 'p9' gets no more workers" in done.out) == (1, True), done.out + done.err
    assert "'p0'" not in done.out
    assert it.frontier.waiting().keys() == {"p9"}
    assert len(it.workers_of()["p9"]) == 5, "as many as one batch may kill, and four more"
    merged = run_cli(it.it, "items", "merge", "shop", "-o", "items.jl")
    assert merged.code == 0, merged.err
    it.assert_all_home()


@pytest.mark.black_box
def test_a_worker_that_is_killed_costs_no_item(shop: Callable[..., Shop], start_cli: StartCommand) -> None:
    it = shop(items=120, size=5, latency=0.1, CONCURRENT_REQUESTS=4)
    command = start_cli(it.it, "consume", "plain", "shop", "-o", "items.jl")
    wait_for(lambda: it.frontier.counts().get("done", 0) >= 20, 60, "four batches")
    assert it.nodes[0].kill_jobs()
    done = command.wait()
    assert done.code == 0, done.err
    it.assert_all_home()
    assert any(attempt.number > 1 for attempt in it.frontier.attempts())


@pytest.mark.black_box
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_manager_that_is_gone_leaves_its_workers_and_is_followed_by_another(
    shop: Callable[..., Shop], start_cli: StartCommand, run_cli: RunCommand, number: int
) -> None:
    it = shop(items=120, size=10, latency=0.3, CONCURRENT_REQUESTS=4)
    command = start_cli(it.it, "consume", "plain", "shop")
    wait_for(lambda: it.frontier.counts().get("done", 0) >= 10, 60, "the first batch")
    refused = run_cli(it.it, "consume", "plain", "shop")
    assert (refused.code, f"Process {command.pid}" in refused.err) == (2, True), refused.err
    command.signal(number)
    ended = command.wait()
    if number == signal.SIGINT:
        assert ended.code == 130
        assert "Jobs that run go on by themselves" in ended.out
    assert len(it.jobs()) == 2
    done = run_cli(it.it, "consume", "plain", "shop", "-o", "items.jl")
    assert done.code == 0, done.err
    it.assert_all_home()
    assert {len(workers) for workers in it.workers_of().values()} == {1}
    assert Counter(it.site.item_hits()) == Counter(range(120)), "no page twice"


@pytest.mark.black_box
def test_of_two_managers_that_start_together_one_does_the_work(
    shop: Callable[..., Shop], start_cli: StartCommand
) -> None:
    it = shop(items=40, latency=0.1)
    both = [start_cli(it.it, "consume", "plain", "shop", "-O", f"items{number}.jl") for number in range(2)]
    ends = {command.wait().code: at for at, command in enumerate(both)}
    assert ends.keys() == {0, 2}, [command.wait() for command in both]
    it.assert_all_home(f"items{ends[0]}.jl")
    assert {len(workers) for workers in it.workers_of().values()} == {1}


@pytest.mark.black_box
def test_a_store_that_goes_away_is_told_and_nothing_is_lost(
    shop: Callable[..., Shop], start_cli: StartCommand, run_cli: RunCommand, tmp_path: Path
) -> None:
    with closing(RedisServer(tmp_path / "redis")) as server:
        environment = {"SDIST_STORE": server.url}
        it = shop(items=120, size=5, latency=0.2, store=server.url, CONCURRENT_REQUESTS=4)
        command = start_cli(it.it, "consume", "plain", "shop", env=environment)
        wait_for(lambda: it.frontier.counts().get("done", 0) >= 10, 60, "two batches")
        server.kill()
        server.start()
        done = command.wait()
        if done.code:  # it may have been between two calls
            assert (done.code, "the same command takes them up again" in done.err) == (1, True), done.err
        done = run_cli(it.it, "consume", "plain", "shop", "-o", "items.jl", env=environment)
        assert done.code == 0, done.err
        it.assert_all_home()


@pytest.mark.black_box
def test_workers_rest_and_go_on(shop: Callable[..., Shop], start_cli: StartCommand, run_cli: RunCommand) -> None:
    it = shop(items=200, slots=1, size=5, latency=0.1, CONCURRENT_REQUESTS=2)
    command = start_cli(it.it, "consume", "plain", "shop", "-o", "items.jl")
    wait_for(lambda: it.frontier.counts().get("done", 0) >= 5, 60, "the first batch")
    paused = run_cli(it.it, "pause", "shop")
    assert paused.code == 0, paused.err
    wait_for(lambda: not it.frontier.backlog().leased, 30, "the end of what was leased")
    assert it.frontier.backlog().waiting
    resumed = run_cli(it.it, "resume", "shop", "--detach")
    assert resumed.code == 0, resumed.err
    done = command.wait()
    assert done.code == 0, done.err
    it.assert_all_home()


@pytest.mark.black_box
def test_a_standing_frontier_is_waited_at_and_left_when_the_time_is_up(
    shop: Callable[..., Shop], start_cli: StartCommand, run_cli: RunCommand
) -> None:
    it = shop(items=60, slots=1, standing=True, DISTRIBUTED_IDLE=1)
    command = start_cli(it.it, "consume", "plain", "shop", "--max-time", 25)
    wait_for(lambda: it.frontier.counts() == {"done": 60}, 60, "all that is there")
    late = it.site.detail(0) + "?again"
    it.frontier.fill([late], callback="parse_article")
    wait_for(lambda: it.frontier.counts() == {"done": 61}, 60, "what came later")
    done = command.wait()
    assert done.code == 124, done.out + done.err
    merged = run_cli(it.it, "items", "merge", "shop", "-o", "all.jl")
    assert (merged.code, len(list(it.it.items("all.jl")))) == (0, 61), merged.err


@pytest.mark.black_box
def test_slots_are_split_while_workers_take_from_them(
    shop: Callable[..., Shop], start_cli: StartCommand, run_cli: RunCommand
) -> None:
    it = shop(items=200, nodes=2, slots=1, size=10, latency=0.1, CONCURRENT_REQUESTS=4)
    command = start_cli(it.it, "consume", "plain", "shop", "-o", "items.jl")
    wait_for(lambda: it.frontier.counts().get("done", 0) >= 10, 60, "the first batch")
    moved = run_cli(it.it, "frontier", "move", "shop", "p", "q", 4)
    assert moved.code in {0, 3}, moved.err
    done = command.wait()
    assert done.code == 0, done.err
    it.assert_all_home()
    assert {"q0", "q1", "q2", "q3"} <= it.workers_of().keys()


@pytest.mark.black_box
def test_a_worker_ends_after_its_batches_and_the_rest_waits(shop: Callable[..., Shop], run_cli: RunCommand) -> None:
    it = shop(slots=1, size=10)
    once = ("consume", "plain", "shop", "--loop", 0)
    assert run_cli(it.it, *once, "--max-batches", 2).code == 0
    it.nodes[0].wait_idle()
    assert sum(it.frontier.waiting().values()) == 40
    assert run_cli(it.it, *once, "--max-requests", 15).code == 0
    it.nodes[0].wait_idle()
    assert sum(it.frontier.waiting().values()) == 20
    only = run_cli(it.it, "consume", "plain", "shop", "-o", "items.jl", "-a", "start=" + it.site.start_url)
    assert only.code == 0, only.err
    it.assert_all_home()


@pytest.mark.black_box
def test_only_the_slots_with_the_prefix_are_worked_on_and_what_is_given_reaches_each_job(
    shop: Callable[..., Shop], run_cli: RunCommand
) -> None:
    it = shop(items=10, slots=1)
    it.it.spider("labelled", LABELLED)
    it.frontier.fill(["http://127.0.0.1:9/never"], slot="other")
    given = ("-a", "colour=red", "-s", "SHADE=dark", "--label", "nightly", "--label", "two words")
    done = run_cli(it.it, "consume", "labelled", "shop", "--slots", "p", *given)
    assert done.code == 0, done.err
    assert it.frontier.waiting() == {"other": 1}
    assert "Nothing is left in the slots p*" in done.out
    merged = run_cli(it.it, "items", "merge", "shop", "-o", "items.jl")
    assert merged.code == 0, merged.err
    assert list(it.it.items("items.jl")) == [{"told": ["red", "dark", ["nightly", "two words"]]}] * 10


@pytest.mark.black_box
def test_what_is_wrong_before_the_start_is_told(shop: Callable[..., Shop], run_cli: RunCommand) -> None:
    it = shop(items=5)
    unknown = run_cli(it.it, "consume", "nobody", "shop")
    assert (unknown.code, "There is no spider 'nobody'" in unknown.err) == (4, True), unknown.err
    nowhere = run_cli(it.it, "consume", "plain", "shop", "--node", "127.0.0.1:9")
    assert nowhere.code == 5, nowhere.err
    feeds = run_cli(it.it, "consume", "plain", "shop", "-s", "DISTRIBUTED_TARGET_FEED_URL=ftp://x/%(batch)s.jl")
    assert (feeds.code, "feed" in feeds.err) == (2, True), feeds.err
    both = run_cli(it.it, "consume", "plain", "shop", "--slots", "p", "--fair", "spread")
    assert (both.code, "Leave out one of the two" in both.err) == (2, True), both.err
    assert it.nodes[0].api("listprojects.json")["projects"] == [], "nothing was uploaded for it"
    it.it.settings(BROKEN=1)
    it.it.write("properties/settings.py", "import nothing_of_that_name")
    broken = run_cli(it.it, "consume", "plain", "shop")
    assert (broken.code, "The project cannot be loaded" in broken.err) == (2, True), broken.err
    assert it.frontier.counts() == {"sealed": 5}
    assert it.frontier.row().pid is None


NOTING = """\
import os
import time

import scrapy


class Noting(scrapy.Spider):
    name = "noting"
    custom_settings = {"CLOSESPIDER_ITEMCOUNT": 2}  # an end that was asked for is a good one

    async def start(self):
        self.begun = time.time()
        if self.word == "never":
            raise ValueError("no such word")
        yield scrapy.Request(f"{self.settings['SITE']}/properties/property_{int(self.number):06d}.html?{self.word}")

    def parse(self, response):
        job = {"pid": os.getpid(), "from": self.begun, "to": time.time()}
        yield {"word": self.word, "number": self.number, "all": self.colour, **job}
        if not response.url.endswith("-2"):
            yield response.follow(f"{response.url}-2")  # the spider runs as it is, to its end
"""


@pytest.mark.black_box
def test_a_list_of_arguments_is_a_job_for_each_row(
    shop: Callable[..., Shop], run_cli: RunCommand, tmp_path: Path
) -> None:
    """W5: so many at a time, an outcome for each; one that fails is tried again, and given up by name."""
    it = shop(items=20, latency=0.5)
    it.it.settings(SITE=it.site.url, DISTRIBUTED_MAX_ATTEMPTS=2)
    it.it.spider("noting", NOTING)
    rows = ["first,1", "second,2", "third,6", "never,3", ",4", "first,1", "last,5"]
    (tmp_path / "words.csv").write_text("\n".join(["word,number", *rows]), "utf-8")
    added = run_cli(it.it, "frontier", "add", "words", tmp_path / "words.csv", "--as", "arguments", "--json")
    assert (added.json()["added"], added.json()["duplicate"], added.code) == (6, 1, 0), added.err

    done = run_cli(
        it.it, "consume", "noting", "words", "-a", "colour=red", "--max-running", 2, "-o", "items.jl", "--json"
    )
    assert (done.code, done.json()["state"]) == (3, "finished"), done.err
    items = list(it.it.items("items.jl"))
    words = {"first": "1", "second": "2", "third": "6", "last": "5"}
    assert sorted((item["word"], item["number"]) for item in items) == sorted([*words.items(), *words.items()])
    assert {item["all"] for item in items} == {"red"}
    assert len({item["pid"] for item in items}) == 4
    assert at_once(items) <= 2
    missed = run_cli(it.it, "misses", "words", "--json").json()["misses"]
    assert sorted(json.loads(miss["url"]).get("word", "") for miss in missed) == ["", "never"]
    assert any("no such word" in miss["reason"] for miss in missed)
    assert done.json()["batches"]["failed"] == 4, "two attempts of each"

    (tmp_path / "bad.csv").write_text("word,number\nnever,1\n", "utf-8")
    assert run_cli(it.it, "frontier", "add", "bad", tmp_path / "bad.csv", "--as", "arguments").code == 0
    failed = run_cli(it.it, "consume", "noting", "bad", "--json")
    assert (failed.code, failed.json()["batches"]["dead"], failed.json()["items"]) == (1, 1, 0), failed.err


def at_once(items: Iterable[Mapping[str, Any]]) -> int:
    """How many of the jobs that told of themselves ran at the same time, at most."""
    spans: dict[int, tuple[float, float]] = {}
    for item in items:
        start, end = spans.get(item["pid"], (item["from"], item["to"]))
        spans[item["pid"]] = start, max(end, item["to"])
    return max(sum(start <= moment <= end for start, end in spans.values()) for moment, _ in spans.values())
