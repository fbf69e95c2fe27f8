"""A crawl that was stopped goes on, and what was given up is tried again: nothing missing, nothing twice."""

import json
import os
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rig.bad_days import (
    ITEMS,
    MakeScene,
    Scene,
    accepted_on,
    arguments,
    attempts,
    batches,
    wait_accepted,
    wait_state,
)
from rig.commands import Result
from rig.crawls import crawls, last_crawl
from rig.deliveries import delivered, files_of
from rig.fixtures import StartCommand, StartFleet
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.proxy import Mishap, Proxy
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState, CrawlState
from scrapyd_dist.store import open_store


def has_served(pages: SiteProcess, count: int) -> bool:
    return sum(pages.item_hits().values()) >= count


@pytest.mark.promise("All nodes are gone, the producer is killed, or its machine is switched off")
@pytest.mark.black_box
@pytest.mark.parametrize("way", [pytest.param("scrapy", marks=pytest.mark.full), "sdist"])
def test_all_nodes_die_in_the_middle(way: str, scene: MakeScene, fleet: StartFleet) -> None:
    at = scene(300, "--latency=0.2", per_page=100, nodes=fleet(2))
    it, command = at.it, at.start(way=way)
    wait_accepted(it)
    for node in at.nodes:
        node.kill()
        node.kill_jobs()
    done = command.wait(90, code=3)
    row = crawls(it)[0]
    assert (row.state, row.exit_code) == (CrawlState.STOPPED, 3)
    assert f"sdist resume {row.id}" in row.message
    assert f"sdist resume {row.id}" in done.err
    assert 0 < len(accepted_on(it)) < len(batches(it))
    at.run("resume", row.id, code=5)
    assert len(batches(it)) >= len(accepted_on(it)) > 0, "the batches are gone"
    for node in at.nodes:
        node.restart()
    at.resume(row.id)


@pytest.mark.black_box
def test_the_producer_is_killed_at_some_moments(
    scene: MakeScene, fleet: StartFleet, start_cli: StartCommand
) -> None:
    more = {
        "DISTRIBUTED_BATCH_SIZE": 40,
        "DISTRIBUTED_MODE": "push",
        "DISTRIBUTED_DELIVER": "delivered",
    }
    at = scene(400, "--latency=0.15", per_page=20, nodes=fleet(2), **more)
    it, pages, command = at.it, at.pages, at.start(way="scrapy")
    for number, moment in enumerate((70, 250)):
        if number:
            command = start_cli(it, "resume", crawls(it)[0].id, "--json")
        wait_for(partial(has_served, pages, moment), 90, f"{moment} pages")
        producer = crawls(it)[0].pid
        assert producer, "it was over too early to show anything"
        os.kill(producer, signal.SIGKILL)
        command.wait(30, code=-signal.SIGKILL if producer == command.pid else 1)
    at.resume(crawls(it)[0].id)
    assert max(pages.item_hits().values()) == 1, (
        "jobs that went on without a producer were done again"
    )
    assert pages.differences(delivered(files_of(it.path / "delivered"))) == {}


@pytest.mark.black_box
def test_a_place_that_takes_no_more_items_stops_the_crawl_at_its_end_and_gets_them_from_resume(
    scene: MakeScene, tmp_path: Path
) -> None:
    at, out = (
        scene(200, "--latency=0.1", per_page=20, DISTRIBUTED_BATCH_SIZE=20),
        tmp_path / "delivered",
    )
    command = at.start("--deliver", out)
    wait_for(
        lambda: out.is_dir() and [path for path in files_of(out) if path.endswith(".jl")],
        60,
        "the first part",
    )
    producer = crawls(at.it)[0].pid
    assert producer
    os.kill(producer, signal.SIGSTOP)  # else it makes the folder anew in between
    out.rename(tmp_path / "away")
    out.write_text("in its place")
    os.kill(producer, signal.SIGCONT)
    done = command.wait(90, code=3)
    row = crawls(at.it)[0]
    assert (row.state, len(accepted_on(at.it))) == (CrawlState.STOPPED, len(batches(at.it))), (
        "it was not held up"
    )
    assert (
        f"parts are not delivered to {out}" in row.message and f"sdist resume {row.id}" in done.err
    )
    assert sum("it is tried again" in warning for warning in row.summary["warnings"]) == 1
    assert f"Items cannot be delivered to {out}" in at.run("resume", row.id, code=2).out
    out.unlink()
    (tmp_path / "away").rename(out)
    at.resume(row.id)
    assert at.pages.differences(delivered(files_of(out))) == {}


@pytest.mark.black_box
def test_a_batch_that_cannot_be_sealed_stops_the_crawl_and_is_found_again(scene: MakeScene) -> None:
    at = scene(90, "--latency=0.3", per_page=10, DISTRIBUTED_BATCH_SIZE=20)
    command = at.start(way="scrapy")
    wait_for(lambda: crawls(at.it) and batches(at.it), 60, "the first batch")
    database = sqlite3.connect(at.it.path / ".sdist" / "store.db", timeout=30)
    with database:
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON batches BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
    command.wait(60).expect(1, "disk full")
    with database:
        database.execute("DROP TRIGGER full")
        (name,) = database.execute("SELECT id FROM crawls").fetchone()
    database.close()
    at.resume(name)


# Ctrl-C and SIGTERM to `scrapy crawl`

INTERRUPTED = 130


def assert_stopped(done: Result, project: Project) -> str:
    """It ended as interrupted, and said how to go on; the crawl's id."""
    row = crawls(project)[0]
    done.expect(INTERRUPTED, f"sdist resume {row.id}", row.message)
    assert (row.state, row.exit_code) == (CrawlState.STOPPED, INTERRUPTED)
    assert "Traceback" not in done.err
    return row.id


@pytest.mark.black_box
def test_ctrl_c_while_it_finds(scene: MakeScene) -> None:
    # 30 index pages, one after the other, most of them slow: far from its end when the first batch is home. No batch
    # ends with a page.
    at = scene(300, per_page=10, DISTRIBUTED_BATCH_SIZE=37)
    it, pages = at.it, at.pages
    pages.behave({pages.site.index_path(page): "slow:3" for page in range(8, 30)})
    command = at.start(way="scrapy")
    wait_accepted(it)
    command.signal(signal.SIGINT)
    name = assert_stopped(command.wait(60), it)
    sealed = sum(batch.size for batch in batches(it))
    assert 37 <= sealed < 300, "it was interrupted too late to show anything"
    assert sealed % 37, "what was captured last is not sealed"
    pages.behave({})
    at.resume(name)
    assert set(pages.item_hits().values()) == {1}


@pytest.mark.black_box
def test_sigterm_while_it_waits(scene: MakeScene) -> None:
    at = scene(250, "--latency=0.3", per_page=125)
    command = at.start(way="scrapy")
    wait_state(at.it, CrawlState.WORKING)
    command.signal(signal.SIGTERM)
    name = assert_stopped(command.wait(60), at.it)
    out = attempts(at.it, AttemptState.SENT, AttemptState.RUNNING)
    assert out, "it was interrupted too late to show anything"
    at.resume(name)
    # The jobs that were out went on without a producer, and were found again.
    assert {attempt.job for attempt in out} <= {attempt.job for attempt in accepted_on(at.it)}
    assert set(at.pages.item_hits().values()) == {1}


@pytest.mark.black_box
@pytest.mark.parametrize(
    "twice", [False, pytest.param(True, marks=pytest.mark.full)], ids=["once", "twice"]
)
def test_while_a_post_is_under_way(
    twice: bool, scene: MakeScene, scrapyd_node: Callable[..., ScrapydNode]
) -> None:
    node = scrapyd_node()
    at = scene(100, "--latency=0.05", per_page=50, nodes=[node], DISTRIBUTED_REQUEST_TIMEOUT=20)
    with closing(Proxy(node)) as between:
        between.spoil("schedule.json", Mishap(delay=5), times=2)
        at.it.targets([], between.section("properties", "behind"))
        command = at.start(way="scrapy")
        wait_for(lambda: between.spoilt["schedule.json"] == 2, 60, "two posts under way")
        command.signal(signal.SIGINT)
        if twice:
            command.wait_text("Closing spider")
            command.signal(signal.SIGINT)
            command.wait(
                4.5, code=INTERRUPTED
            )  # a crawl that was cut off must not look like a good one
            name = crawls(at.it)[0].id
            assert {attempt.state for attempt in attempts(at.it)} == {AttemptState.SENDING}
        else:
            name = assert_stopped(command.wait(60), at.it)
            assert len(attempts(at.it)) == 2
            assert not attempts(at.it, AttemptState.SENDING), "it did not wait for its posts"
        at.resume(name)
        assert set(at.pages.item_hits().values()) == {1}


# what was given up, and what is tried again

#: dies on one page as long as a file is there: what a library that crashes is until it is mended
FRAGILE = """
    import os
    import signal
    from pathlib import Path

    from properties.spiders.easy import EasySpider


    class FragileSpider(EasySpider):
        name = "fragile"

        def parse_item(self, response):
            if response.url.endswith({url!r}) and Path({flag!r}).exists():
                os.kill(os.getpid(), signal.SIGKILL)
            yield from super().parse_item(response)
"""


@pytest.mark.black_box
def test_what_was_given_up_is_tried_again(scene: MakeScene, tmp_path: Path) -> None:
    at, flag = scene(12, DISTRIBUTED_BATCH_SIZE=4, DISTRIBUTED_MAX_ATTEMPTS=1), tmp_path / "broken"
    it, pages = at.it, at.pages
    flag.touch()
    pages.behave({pages.site.detail_path(1): "fail", pages.site.detail_path(9): "gone"})
    it.spider("fragile", FRAGILE.format(url=pages.site.detail_path(6), flag=str(flag)))
    at.run(
        *(text.replace("easy", "fragile") for text in arguments("sdist", pages, shards=1)), code=3
    )
    crawl = crawls(it)[0].id

    dead = at.run("crawls", "show", crawl, "--batches", "--state", "dead", "--urls")
    assert dead.out.split() == [pages.detail(6)]
    listed = at.run("crawls", "show", crawl, "--batches", "--json").json()
    assert {row["state"] for row in listed["batches"]} == {"done", "dead", "split"}
    at.run("crawls", "show", crawl, "--batches", "--state", "lost", code=2)

    flag.unlink()
    pages.behave({pages.site.detail_path(9): "gone"})
    at.run("retry", crawl, "--failed-urls", "--json", code=0)
    assert pages.differences(it.items(ITEMS), without=[9]) == {}
    summary = last_crawl(it).summary
    assert (summary["failed_urls"], summary["dead_urls"], summary["gone_urls"]) == (0, 0, 1)
    at.run("retry", crawl, "--failed-urls").expect(4, "nothing to try again")


#: seconds that the crawl is made to have run before it is retried
RAN = 100_000.0
#: fails on one page after three items, one of them from a page behind it; tells of pages that fail; and says which try
FAILING = """
    from pathlib import Path

    from properties.spiders.easy import EasySpider
    from scrapy import Request
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import Rule

    PLAN = Path({plan!r})


    class FailingSpider(EasySpider):
        name = "failing"
        rules = (
            Rule(LinkExtractor(restrict_css="a.next")),
            Rule(LinkExtractor(restrict_xpaths='//a[@itemprop="url"]'), callback="parse_item", errback="told"),
        )

        def parse_item(self, response):
            number, works = PLAN.read_text().split()
            if not response.url.endswith({url!r}):
                yield from super().parse_item(response)
                return
            yield {{"page": "callback", "try": number, "part": 1}}
            yield {{"page": "callback", "try": number, "part": 2}}
            yield Request(response.url, callback=self.behind, dont_filter=True, cb_kwargs={{"number": number}})
            if works == "no":
                raise RuntimeError("it is broken")

        def behind(self, response, number):
            yield {{"page": "callback", "try": number, "part": 3}}

        def told(self, failure):
            yield {{"page": "errback", "try": PLAN.read_text().split()[0]}}
"""


def marked(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Which page, and which try, the items are of that failed or were tried again."""
    return sorted((item["page"], item["try"]) for item in items if "try" in item)


def by_manifest(it: Project) -> list[dict[str, Any]]:
    """The items of the feeds that the manifest lists, as it says that they are to be read."""
    (path,) = it.path.rglob("manifest.json")
    manifest, found = json.loads(path.read_text()), []
    for uri in manifest["feeds"]:
        with open(uri.removeprefix("file://"), encoding="utf-8") as file:  # noqa: PTH123 - it is a plain name
            lines = file.read().splitlines()
        left = {
            at
            for first, count in manifest["replaced"].get(uri, ())
            for at in range(first, first + count)
        }
        found += [json.loads(line) for at, line in enumerate(lines) if at not in left]
    return found


@pytest.mark.black_box
@pytest.mark.parametrize("way", ["pull", pytest.param("feed", marks=pytest.mark.full)])
def test_items_of_a_request_that_is_tried_again_take_the_place_of_the_earlier_ones(
    way: str, scene: MakeScene, tmp_path: Path
) -> None:
    """Once each, in files and in manifests."""
    plan, feed = (
        tmp_path / "plan",
        {"DISTRIBUTED_TARGET_FEED_URL": f"file://{tmp_path}/feeds/%(batch)s.jl"},
    )
    at = scene(20, DISTRIBUTED_BATCH_SIZE=10, **(feed if way == "feed" else {}))
    it, pages = at.it, at.pages
    it.spider("failing", FAILING.format(url=pages.site.detail_path(7), plan=str(plan)))
    pages.behave({pages.site.detail_path(9): "fail"})

    def assert_comes_once(tried: str) -> None:
        items = list(it.items(ITEMS))
        assert marked(items) == [*[("callback", tried)] * 3, ("errback", tried)]
        assert len(items) == 18 + 4 == last_crawl(it).summary["items"]
        if way == "feed":
            assert marked(by_manifest(it)) == marked(items)

    plan.write_text("1 no")
    words = [text.replace("easy", "failing") for text in arguments("sdist", pages, shards=1)]
    at.run(*words, *(["--pull", "--max-jobs", "1"] if way == "pull" else []), code=3)
    assert_comes_once("1")
    row = crawls(it)[0]
    crawl, summary = row.id, {**row.summary, "duration_s": RAN}
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        store.update_crawl(crawl, summary=summary)
    plan.write_text("2 no")
    at.run("retry", crawl, "--failed-urls", "--json", code=3)
    assert_comes_once("2")
    assert RAN < crawls(it)[0].summary["duration_s"] < RAN + 3600, (
        "a retry adds the time that it ran itself"
    )

    plan.write_text("3 yes")
    pages.behave({})
    at.run("retry", crawl, "--failed-urls", "--json", code=0)
    items = list(it.items(ITEMS))
    assert marked(items) == [("callback", "3")] * 3
    assert pages.differences([item for item in items if "try" not in item], without=[7]) == {}
    assert len(items) == last_crawl(it).summary["items"] == 22
    merged = at.run("items", "merge", crawl, "-O", "again.jl", "--json", code=0)
    assert merged.json()["items"] == 22
    assert marked(list(it.items("again.jl"))) == marked(items)


def one_number(at: Scene) -> dict[str, int]:
    """What all commands say alike of the newest crawl: items, batches, what is done and what is missing."""
    row = crawls(at.it)[0]
    summary = at.run("status", row.id, "--json").json()
    counts = {name: summary["batches"][name] for name in ("done", "total", "dead")}
    listed = at.run("crawls", "--json").json()["crawls"][0]
    assert {name: listed[name] for name in summary if name != "exit_code"} | {
        "exit_code": summary["exit_code"]
    } == summary
    rows = at.run("crawls", "show", row.id, "--batches", "--json").json()["batches"]
    states = Counter(one["state"] for one in rows)
    assert (states["done"], sum(states.values()) - states["split"], states["dead"]) == tuple(
        counts.values()
    )
    assert states["sealed"] + states["failed"] == summary["batches"]["waiting"]
    assert states["running"] + states["sent"] == summary["batches"]["out"] == 0
    done, items = summary["requests"]["done"], summary["items"]
    told = at.run("status", row.id).out
    in_batches = (
        f"{counts['done']:,} of {counts['total']:,}"
        if counts["done"] < counts["total"]
        else counts["total"]
    )
    assert f"; {done:,} done in {in_batches} batches" in told
    assert f": {items:,} items" in told and "(not listed)" not in told
    assert f"{counts['done']}/{counts['total']}" in at.run("crawls").out
    misses = Counter(
        one["kind"]
        for one in at.run("crawls", "show", row.id, "--misses", "--json").json()["misses"]
    )
    assert (misses["gone"], misses["failed"]) == (summary["gone_urls"], summary["failed_urls"])
    for url in (
        one["url"]
        for one in at.run("crawls", "show", row.id, "--misses", "--json").json()["misses"]
    ):
        assert url in told
    at.run("report", row.id, "-o", "page.html", code=0)
    page = re.sub("<[^>]*>", " ", (at.it.path / "page.html").read_text("utf-8"))
    cards = dict(re.findall(r"(items|requests done|batches done|gone|failed) +([\d,]+)", page))
    shown = [
        int(cards[name].replace(",", ""))
        for name in ("items", "requests done", "batches done", "gone", "failed")
    ]
    assert shown == [
        items,
        done,
        counts["done"],
        summary["gone_urls"],
        summary["failed_urls"] + summary["dead_urls"],
    ]
    stats = at.run("jobs", "stats", row.id, "--json").json()
    assert stats["home"] == {row.id: items}
    return {
        "items": items,
        "done": done,
        "waiting": summary["batches"]["waiting"],
        "failed": summary["failed_urls"],
    }


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_one_thing_has_one_number_after_a_stop_a_resume_and_a_retry(
    scene: MakeScene, mode: str
) -> None:
    at = scene(200, "--latency=0.3", per_page=50, DISTRIBUTED_BATCH_SIZE=10, DISTRIBUTED_MODE=mode)
    pages = at.pages
    bad = {pages.site.detail_path(1): "fail", pages.site.detail_path(2): "gone"}
    pages.behave(bad)
    command = at.start()
    wait_accepted(at.it, 3)
    crawl = crawls(at.it)[0].id
    at.run("stop", crawl, "-y", code=0)
    command.wait(60)
    stopped = one_number(at)
    assert stopped["waiting"] > 0
    parts = [
        at.it.path / ".sdist" / "crawls" / crawl / "parts" / one.part for one in accepted_on(at.it)
    ]
    assert stopped["items"] == sum(len(part.read_text("utf-8").splitlines()) for part in parts)
    at.run("resume", crawl, "--json", code=3)
    resumed = one_number(at)
    assert (resumed["items"], resumed["done"], resumed["waiting"], resumed["failed"]) == (
        198,
        200,
        0,
        1,
    )
    assert len(list(at.it.items(ITEMS))) == 198
    pages.behave({pages.site.detail_path(2): "gone"})
    at.run("retry", crawl, "--failed-urls", "--json", code=0)
    assert one_number(at) == {"items": 199, "done": 200, "waiting": 0, "failed": 0}
