"""The throttle over a fleet, at the site's own log: one limit for all of a crawl, and rules that come while it runs."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.crawls import ADDON, QUICK, assert_each_page_once, last_crawl, misses
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode
from rig.rolling_window import part_apart
from rig.throttled import SPIDERS, TINY, mean_gap, permits_of
from rig.waiting import wait_for

pytestmark = pytest.mark.black_box

HITS, WINDOW = 20, 1.0
THROTTLED = {
    **QUICK, "ADDONS": ADDON, "DISTRIBUTED_THROTTLE_HITS": HITS, "DISTRIBUTED_THROTTLE_WINDOW": WINDOW,
    "DISTRIBUTED_BATCH_SIZE": 10, "ROBOTSTXT_OBEY": True,
}  # fmt: skip


@pytest.mark.parametrize("mode", [pytest.param("push", marks=pytest.mark.full), "pull"])
def test_a_whole_crawl_keeps_the_limit(
    mode: str,
    project: MakeProject,
    run_scrapy: RunCommand,
    pair: list[ScrapydNode],
    site: StartSite,
) -> None:
    """B2: jobs on one domain do not multiply its rate; every page comes, once."""
    there = site(40)
    it = project(
        nodes=pair, settings={**THROTTLED, "DISTRIBUTED_MODE": mode, "START_URL": there.start_url}
    )
    run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert_each_page_once(there, it.items("items.jl"))
    jobs = {node["name"]: node["jobs"] for node in last_crawl(it).summary["nodes"]}
    assert sum(jobs.values()) >= 2, jobs
    times = [hit["time"] for hit in there.log()]
    assert mean_gap(times) >= 0.95 * WINDOW / HITS


#: seconds after which a change is heeded, and for which the site is watched then
HEEDED, WATCHED = 2.0, 1.5
#: the limit that comes while the crawl runs, in requests per second
LATER = 5
OWN_QUEUE = """
from scrapy.pqueues import ScrapyPriorityQueue


class Own(ScrapyPriorityQueue):
    pass
"""


@pytest.mark.parametrize("mode", ["push", pytest.param("pull", marks=pytest.mark.full)])
def test_a_pause_and_a_limit_without_any_setting_hold_for_a_crawl_that_runs(
    mode: str,
    project: MakeProject,
    start_cli: StartCommand,
    run_cli: RunCommand,
    pair: list[ScrapydNode],
    site: StartSite,
) -> None:
    """C10, C11: every page comes, once; requests that were in the downloader when the rule came wait, too."""
    there = site(60)
    settings = {
        **QUICK,
        "DISTRIBUTED_MODE": mode,
        "START_URL": there.start_url,
        "DOWNLOAD_DELAY": 0.5,
    }
    it = project(nodes=pair, settings={**settings, "DISTRIBUTED_BATCH_SIZE": 10})

    def throttle(*words: object) -> float:
        """The moment when the command had ended."""
        run_cli(it, "throttle", *words, code=0)
        return time.monotonic()

    def hits(since: float = 0.0) -> list[float]:
        return [row["time"] for row in there.log() if row["time"] >= since]

    command = start_cli(it, "crawl", "easy", "-o", "items.jl")
    wait_for(lambda: len(hits()) >= 12, 90, "pages of workers")
    heeded = throttle("pause") + HEEDED
    shown = run_cli(it, "throttle", "show", "--json").json()["crawls"]
    assert [(one["heeded"], one["reason"], one["nodes"]) for one in shown] == [(True, "", {})]
    wait_for(lambda: time.monotonic() >= heeded + WATCHED, 60, "that moment")
    assert hits(heeded) == []
    throttle("set", "127.0.0.1", "--hits", LATER, "--window", 1)
    limited = throttle("resume")
    command.wait(code=0)
    assert_each_page_once(there, it.items("items.jl"))
    assert len(hits(limited)) > LATER
    assert mean_gap(hits(limited)) >= 0.95 / LATER

    told = json.loads(run_cli(it, "plan", "easy", "--json").out)["throttle"]
    assert told == {"rules": 1, "heeded": True, "reason": ""}
    it.write(f"{it.name}/queues.py", OWN_QUEUE)
    it.settings(SCHEDULER_PRIORITY_QUEUE=f"{it.name}.queues.Own")
    for name in ("plan", "crawl"):
        refused = run_cli(it, name, "easy", code=2)
        assert f"SCHEDULER_PRIORITY_QUEUE is {it.name}.queues.Own" in refused.err


GAP = 0.2
BUSY, NEW = "127.0.3.1", "127.0.3.2"
#: seconds until a domain that was never seen before is crawled
SOON = 10.0
PRODUCER = "a producer"


def test_a_refill_after_a_rest_is_spaced_and_a_new_domain_is_crawled_at_once(
    project: MakeProject, site: StartSite, pair: list[ScrapydNode], start_cli: StartCommand
) -> None:
    """C3, C4: what was not used is not made up for; a domain that appears needs no restart and waits for no other."""
    there = site(100, "--host=0.0.0.0")
    port = urlsplit(there.url).port
    limit = {"DISTRIBUTED_THROTTLE_HITS": HITS, "DISTRIBUTED_THROTTLE_WINDOW": HITS * GAP}
    it = project(
        spiders={"pages": SPIDERS}, nodes=pair, settings={**QUICK, **limit, "ADDONS": ADDON}
    )
    frontier = Frontier(it)
    frontier.register(PRODUCER, seconds=600)

    def urls(host: str, pages: Iterable[int]) -> list[str]:
        return [f"http://{host}:{port}{there.site.detail_path(page)}" for page in pages]

    def add(host: str, pages: Iterable[int]) -> None:
        frontier.fill(urls(host, pages), size=2, callback="parse")

    def hits(host: str = BUSY) -> list[dict[str, Any]]:
        return [row for row in there.log() if row["host"] == f"{host}:{port}"]

    add(BUSY, range(30))
    command = start_cli(
        it,
        "frontier",
        "consume",
        "pages",
        "shop",
        "--per-slot",
        0,
        "--max-running",
        2,
        "-o",
        "items.jl",
    )
    wait_for(lambda: len(hits()) == 30, 90, "the first pages")
    last = hits()[-1]["time"]
    wait_for(
        lambda: time.monotonic() > last + HITS * GAP, 30, "the end of a window without a request"
    )

    add(BUSY, range(30, 70))
    wait_for(lambda: len(hits()) > 30, 60, "the refill")
    add(NEW, range(2))
    appeared = time.monotonic()
    (new, *_) = wait_for(lambda: hits(NEW), 60, "the new domain")
    assert len(hits()) < 70, "the other one is still busy"
    assert new["time"] - appeared < SOON
    frontier.sign_off(PRODUCER)
    command.wait(code=0)
    busy = hits()
    assert len(busy) == 70
    assert {attempt.worker.rpartition(".w")[2] for attempt in frontier.attempts()} <= {
        "1.a1",
        "2.a1",
    }, "a worker was restarted"
    permits = permits_of(
        [f"http://{row['host']}{row['target']}" for row in busy], it.items("items.jl")
    )
    assert part_apart(permits, GAP - TINY) == 1.0
    assert mean_gap([row["time"] for row in busy[30:]]) > 0.9 * GAP


#: each page of the calendar leads to the next two; the other site has thirty pages
CALENDAR = """
    import scrapy


    class Days(scrapy.Spider):
        name = "days"

        async def start(self):
            yield scrapy.Request(f"http://{self.calendar}/echo?day=1", self.parse_day)
            for number in range(30):
                yield scrapy.Request(f"http://{self.plain}/echo?page={number}", self.parse_page)

        def parse_day(self, response):
            yield {"url": response.url}
            day = int(response.url.rpartition("=")[2])
            for later in (2 * day, 2 * day + 1):
                yield response.follow(f"?day={later}", self.parse_day)

        def parse_page(self, response):
            yield {"url": response.url}
"""
BUDGET = 40


def test_a_site_without_an_end_stops_at_its_budget_and_costs_no_other_a_page(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    """C13, N16: the budget is one for all workers, the crawl comes to its end, and what was left out is listed."""
    web = site(1, "--host=0.0.0.0")
    port = urlsplit(web.url).port
    calendar, plain = f"127.0.4.1:{port}", f"127.0.4.2:{port}"
    ours = {
        **QUICK,
        "DISTRIBUTED_MAX_JOBS": 2,
        "DISTRIBUTED_BATCH_SIZE": 5,
        "DISTRIBUTED_THROTTLE_MAX_PAGES": BUDGET,
    }
    it = project(spiders={"days": CALENDAR}, nodes=pair, settings={**ours, "ADDONS": ADDON})
    told = (
        "-a",
        f"calendar={calendar}",
        "-a",
        f"plain={plain}",
        "--callback",
        "parse_day",
        "--callback",
        "parse_page",
    )
    run_cli(it, "crawl", "days", "--pull", *told, "-o", "items.jl", code=0)
    hits = Counter(row["host"] for row in web.log())
    assert (hits[calendar], hits[plain]) == (BUDGET, 30)
    assert Counter(urlsplit(str(item["url"])).netloc for item in it.items("items.jl")) == {
        calendar: BUDGET,
        plain: 30,
    }
    rows = misses(it)
    assert len(rows) == BUDGET + 1, (
        "each page leads to two others, and each of these is known by one"
    )
    assert {(row["kind"], "budget" in row["reason"]) for row in rows} == {("gone", True)}
