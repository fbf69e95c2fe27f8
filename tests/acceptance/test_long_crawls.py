"""What long crawls meet: sites without an end, sessions, more machines meanwhile, and batches of any size."""

import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rig.bad_days import IMPATIENT, ITEMS
from rig.crawls import ADDON, QUICK, misses, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode
from rig.waiting import wait_for

from scrapyd_dist.store import open_store

pytestmark = pytest.mark.black_box


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2, poll_interval=0.2)


# a calendar without an end

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
    """N16: the budget is one for all workers, the crawl comes to its end, and what was left out is listed."""
    web = site(1, "--host=0.0.0.0")
    port = urlsplit(web.url).port
    calendar, plain = f"127.0.4.1:{port}", f"127.0.4.2:{port}"
    ours = {**QUICK, "DISTRIBUTED_MAX_JOBS": 2, "DISTRIBUTED_BATCH_SIZE": 5, "DISTRIBUTED_THROTTLE_MAX_PAGES": BUDGET}
    it = project(spiders={"days": CALENDAR}, nodes=pair, settings={**ours, "ADDONS": ADDON})
    told = ("-a", f"calendar={calendar}", "-a", f"plain={plain}", "--callback", "parse_day", "--callback", "parse_page")
    done = run_cli(it, "crawl", "days", "--pull", *told, "-o", ITEMS)
    assert done.code == 0, said(done)
    hits = Counter(row["host"] for row in web.log())
    assert (hits[calendar], hits[plain]) == (BUDGET, 30)
    assert Counter(urlsplit(str(item["url"])).netloc for item in it.items(ITEMS)) == {calendar: BUDGET, plain: 30}
    rows = misses(it)
    assert len(rows) == BUDGET + 1, "each page leads to two others, and each of these is known by one"
    assert {(row["kind"], "budget" in row["reason"]) for row in rows} == {("gone", True)}


# a session

MEMBERS = """
    import scrapy
    from scrapyd_dist import SessionExpired
    from properties.items import property_from


    class Member(scrapy.Spider):
        name = "member"
        handle_httpstatus_list = [403]

        def log_in(self):
            return scrapy.Request(self.settings["START_URL"] + "?login", self.logged_in, dont_filter=True)

        def logged_in(self, response):
            assert response.status == 200

        def parse_article(self, response):
            if response.status == 403:
                raise SessionExpired
            yield property_from(response)
"""
WORKERS = 3


def test_each_worker_logs_in_for_itself_and_no_page_is_asked_for_without_a_session(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    """N10: three workers on two nodes, one login each, and the cookie with every request."""
    pages = site(60, "--latency=0.3", "--log-headers")
    start = pages.site.index_path(0)
    pages.behave({"/properties/property_*": "cookie:session=1", start: "setcookie:session=1"})
    ours = {**QUICK, "ADDONS": ADDON, "START_URL": pages.start_url, "DISTRIBUTED_LOGIN": "log_in"}
    it = project(nodes=pair, settings={**ours, "CONCURRENT_REQUESTS": 2, "DISTRIBUTED_POLL_INTERVAL": 0.2})
    it.spider("member", MEMBERS)
    frontier = Frontier(it)
    frontier.fill(map(pages.detail, range(60)), size=2, callback="parse_article")
    done = run_cli(it, "consume", "member", "shop", "--per-slot", 0, "--max-running", WORKERS, "-o", ITEMS)
    assert done.code == 0, said(done)
    assert pages.differences(it.items(ITEMS)) == {}
    assert pages.item_hits().total() == 60
    rows = pages.log()
    assert {row["headers"].get("cookie") for row in rows if "property_" in row["target"]} == {"session=1"}
    assert len([row for row in rows if row["target"].endswith("?login")]) == WORKERS


# more machines

#: requests that a worker has under way, and seconds of each
AT_ONCE, LATENCY = 2, 0.8
#: seconds in which hits are counted
STRETCH = 6.0


def test_a_crawl_gets_faster_by_a_machine_that_is_named_while_it_runs(
    project: MakeProject, fleet: StartFleet, site: StartSite, start_cli: StartCommand, run_cli: RunCommand
) -> None:
    """N17: one worker on each machine; twice the machines are twice the pages, and nothing else is said."""
    one, two = fleet(2, max_proc=1, poll_interval=0.2)
    pages = site(600, f"--latency={LATENCY}", per_page=100)
    slow = {"CONCURRENT_REQUESTS": AT_ONCE, "CONCURRENT_REQUESTS_PER_DOMAIN": AT_ONCE, "DISTRIBUTED_BATCH_SIZE": 2}
    it = project(nodes=[one], settings={**IMPATIENT, **slow, "START_URL": pages.start_url})
    command = start_cli(it, "crawl", "easy", "--pull", "-o", ITEMS, "--name", "grows")

    def pace() -> float:
        """Detail pages per second, in the last seconds."""
        now = time.monotonic()
        recent = [row for row in pages.log() if "property_" in row["target"] and now - row["time"] < STRETCH]
        return len(recent) / STRETCH

    full = AT_ONCE / LATENCY
    wait_for(lambda: pace() > 0.9 * full, 60, "the pace of one worker")
    assert pace() <= full + AT_ONCE / STRETCH
    it.targets([one, two])
    wait_for(lambda: pace() > 1.8 * full, 60, "twice that")
    assert command.running()
    assert run_cli(it, "cancel", "--crawl", "grows", "--yes").code == 0


# a batch of any size

#: of so many, a worker makes one of every so many: pages cost time, and leasing them does not
HUGE, EVERY = 20_000, 200
WHERE = "data:,{}-%d".format("x" * 200)
PICKING = """
    import scrapy


    class Picking(scrapy.Spider):
        name = "picking"

        def pick(self, request):
            return request if int(request.url.rpartition("-")[2]) % 200 == 0 else None

        def parse_page(self, response):
            yield {"number": int(response.text.rpartition("-")[2]), "long": len(response.text)}
"""


def test_a_batch_of_twenty_thousand_long_addresses_travels_in_no_argument_and_no_job_list(
    project: MakeProject, pair: list[ScrapydNode], start_cli: StartCommand
) -> None:
    """N5: whoever leases it is told no more than where the store is."""
    settings = {**QUICK, "ADDONS": ADDON, "DISTRIBUTED_REQUEST_HOOK": "pick"}
    it = project(spiders={"picking": PICKING}, nodes=pair, settings=settings)
    frontier = Frontier(it)
    frontier.fill((WHERE % number for number in range(HUGE)), size=HUGE, callback="parse_page")
    command = start_cli(it, "consume", "picking", "shop", "-o", ITEMS)
    longest = 0

    def over() -> bool:
        nonlocal longest
        for node in pair:
            listed = node.request(f"listjobs.json?project={it.name}").body
            arguments = [_arguments(pid) for pid in node.job_pids()]
            longest = max(longest, len(listed), *map(len, arguments), 0)
        return not command.running()

    wait_for(over, 90, "the end")
    done = command.wait(10)
    assert done.code == 0, said(done)
    assert 200 < longest < 10_000
    assert [batch.size for batch in frontier.batches()] == [HUGE]
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        dropped = [miss for miss in store.misses("shop") if miss.kind == "gone"]
    items = list(it.items(ITEMS))
    assert sorted(item["number"] for item in items) == list(range(0, HUGE, EVERY))
    assert {item["long"] for item in items} == {len("x" * 200 + f"-{item['number']}") for item in items}
    assert len(dropped) + len(items) == HUGE


def _arguments(pid: int) -> bytes:
    """What everybody on the machine can read of a process; nothing when it is over."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
