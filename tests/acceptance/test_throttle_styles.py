"""One limit in four styles, over spiders and addresses; and a budget of pages, over all workers of a crawl."""

from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.crawls import ADDON, QUICK, misses
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode
from rig.throttled import SPIDERS, Throttled
from rig.waiting import wait_for

pytestmark = pytest.mark.black_box

#: requests of each style in the only window that there is
HITS = 3
#: host, the settings of its style, and what is counted apart at it
STYLES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("127.0.1.1", {}, ()),
    ("127.0.1.2", {"DISTRIBUTED_THROTTLE_PER_SPIDER": True}, ("spider",)),
    ("127.0.1.3", {"DISTRIBUTED_THROTTLE_PER_IP": True}, ("address",)),
    ("127.0.1.4", {"SCHEDULER_TYPE_ENABLED": True, "SCHEDULER_IP_ENABLED": True}, ("spider", "address")),
]
ADDRESSES = "127.0.0.2,127.0.0.3"
#: nobody listens there
NO_SERVICE = "http://127.0.0.1:9/raw"


def test_two_spiders_on_two_addresses_have_one_two_two_or_four_limits(
    project: Any, site: Any, start_scrapy: StartCommand
) -> None:
    """C6, C7: and two processes that cannot learn their address crawl, and share one limit."""
    limit = {
        "DISTRIBUTED_THROTTLE_HITS": HITS, "DISTRIBUTED_THROTTLE_WINDOW": 3600,
        "DISTRIBUTED_THROTTLE_MODERATED": False,
    }  # fmt: skip
    crawls = Throttled(project(spiders={"pages": SPIDERS}), site(20, "--host=0.0.0.0"), start_scrapy, limit)
    running = [
        crawls.crawl(host, 0, 10, spider=spider, addresses=ADDRESSES, **style)
        for host, style, _ in STYLES
        for spider in ("pages", "others")
    ]
    unknown: dict[str, Any] = {"DISTRIBUTED_THROTTLE_PER_IP": True, "DISTRIBUTED_THROTTLE_PUBLIC_IP": NO_SERVICE}
    nameless = [crawls.crawl("127.0.1.5", 0, 10, **unknown) for _ in range(2)]
    expected = {host: [HITS] * 2 ** len(apart) for host, _, apart in STYLES} | {"127.0.1.5": [HITS]}

    def came() -> dict[str, list[int]]:
        counts = {
            host: Counter(tuple(_part(row, what) for what in apart) for row in crawls.hits(host))
            for host, _, apart in [*STYLES, ("127.0.1.5", {}, ())]
        }
        return {host: list(count.values()) for host, count in counts.items()}

    # All further requests wait for the next window, an hour from now.
    def allowed() -> bool:
        assert came() == expected
        return True

    wait_for(allowed, 90, "the hits that the limits allow")
    for command in [*running, *nameless]:
        command.signal()
        assert command.wait(90).code == 0
        assert "log_count/ERROR" not in command.err
    assert came() == expected
    assert all("127.0.0.1 does not tell the address" in command.err for command in nameless)


def _part(row: dict[str, Any], what: str) -> str:
    return str(row["target"].rpartition("=")[2] if what == "spider" else row["address"])


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
    ours = {**QUICK, "DISTRIBUTED_MAX_JOBS": 2, "DISTRIBUTED_BATCH_SIZE": 5, "DISTRIBUTED_THROTTLE_MAX_PAGES": BUDGET}
    it = project(spiders={"days": CALENDAR}, nodes=pair, settings={**ours, "ADDONS": ADDON})
    told = ("-a", f"calendar={calendar}", "-a", f"plain={plain}", "--callback", "parse_day", "--callback", "parse_page")
    run_cli(it, "crawl", "days", "--pull", *told, "-o", "items.jl", code=0)
    hits = Counter(row["host"] for row in web.log())
    assert (hits[calendar], hits[plain]) == (BUDGET, 30)
    assert Counter(urlsplit(str(item["url"])).netloc for item in it.items("items.jl")) == {calendar: BUDGET, plain: 30}
    rows = misses(it)
    assert len(rows) == BUDGET + 1, "each page leads to two others, and each of these is known by one"
    assert {(row["kind"], "budget" in row["reason"]) for row in rows} == {("gone", True)}
