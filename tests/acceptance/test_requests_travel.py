"""Requests that are more than an address: they reach the site as the spider made them, and are readable nowhere."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from rig.crawls import ADDON, QUICK, last_crawl, said, visible
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

#: what must not be seen
SECRETS = ("cookie-of-mine", "Bearer-of-mine", "body-of-mine", "kwarg-of-mine")

RICH = """
    import scrapy

    class Rich(scrapy.Spider):
        name = "rich"

        def __init__(self, echo="", count="12", **kwargs):
            super().__init__(**kwargs)
            self.echo, self.count = echo, int(count)

        async def start(self):
            for number in range(self.count):
                yield self.ask(number)

        def ask(self, number):
            url = f"{self.echo}?n={number}"
            common = {"callback": self.page, "cb_kwargs": {"told": ["kwarg-of-mine", number]}}
            if number % 4 == 0:
                return scrapy.Request(
                    url, method="POST", body=f"body-of-mine {number} \\u00e9".encode(), priority=number,
                    headers={"X-Key": ["a", "b"], "Content-Type": "text/plain"}, meta={"deep": {"list": (1, "two")}},
                    **common)
            if number % 4 == 1:
                return scrapy.Request(url, cookies={"sid": "cookie-of-mine"}, **common)
            if number % 4 == 2:
                return scrapy.FormRequest(url, formdata={"text": "body-of-mine"},
                                          headers={"Authorization": "Bearer-of-mine"}, **common)
            return scrapy.http.JsonRequest(url, data={"key": "body-of-mine"}, **common)

        def page(self, response, told):
            said = response.json()
            if getattr(self, "quiet", ""):  # items are logged, and served as parts
                yield {"target": said["target"]}
                return
            headers = {name: said["headers"][name] for name in sorted(said["headers"])
                       if name not in {"host", "referer", "connection"}}
            yield {
                "method": said["method"], "target": said["target"], "body": said["body"], "headers": headers,
                "told": told, "deep": response.meta.get("deep"), "priority": response.request.priority,
            }
"""


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2, max_proc=1)


@pytest.fixture(scope="module")
def the_site(module_site: StartSite) -> SiteProcess:
    return module_site(30)


@pytest.fixture
def make(project: MakeProject, nodes_up: list[ScrapydNode]) -> Callable[..., Project]:
    def made(source: str, **settings: Any) -> Project:
        base = {
            "ADDONS": ADDON,
            "DISTRIBUTED_TARGET_CALLBACKS": ["page"],
            **QUICK,
            "DISTRIBUTED_BATCH_SIZE": 4,
        }
        return project(nodes=nodes_up, spiders={"module": source}, settings={**base, **settings})

    return made


def _sorted(it: Project, name: str) -> list[str]:
    return sorted(json.dumps(item, sort_keys=True) for item in it.items(name))


@pytest.mark.promise("A request travels whole")
def test_they_arrive_as_from_plain_scrapy(
    make: MakeProject, run_scrapy: RunCommand, the_site: SiteProcess
) -> None:
    it, url = make(RICH), f"{the_site.url}/echo"
    # A site that sets no cookies: with one jar for all, plain Scrapy sends a cookie to requests after its first use.
    options = ("-a", f"echo={url}", "-s", "CONCURRENT_REQUESTS=1", "-s", "COOKIES_ENABLED=True")
    the_site.reset()
    run_scrapy(it, "crawl", "rich", *options, "-o", "spread.jl", code=0)
    assert all(count == 1 for count in the_site.hits().values())
    run_scrapy(
        it, "crawl", "rich", *options, "-s", "DISTRIBUTED_ENABLED=0", "-o", "plain.jl", code=0
    )
    spread, plain = _sorted(it, "spread.jl"), _sorted(it, "plain.jl")
    assert len(spread) == 12
    assert [_without_jar(text) for text in spread] == [_without_jar(text) for text in plain]
    cookies = [
        item["headers"].get("cookie")
        for item in it.items("spread.jl")
        if item["target"].endswith("n=1")
    ]
    assert cookies == ["sid=cookie-of-mine"]
    summary = last_crawl(it).summary
    assert summary["sealed"] == 12
    assert summary["local"] == 0


def _without_jar(text: str) -> str:
    """Which other requests a cookie jar's cookie goes to depends on the process: each job has its own."""
    item = json.loads(text)
    if int(item["target"].partition("n=")[2]) % 4 != 1:
        item["headers"].pop("cookie", None)
    return json.dumps(item, sort_keys=True)


@pytest.mark.promise("Cookies, credentials and bodies are encrypted")
@pytest.mark.promise("Whatever may be private in a request is encrypted")
@pytest.mark.black_box
def test_what_they_carry_can_be_read_nowhere(
    make: MakeProject, start_scrapy: StartCommand, fleet: StartFleet, site: StartSite
) -> None:
    slow = site(30, "--latency=0.3")
    nodes = fleet(2, max_proc=1)  # other tests log their items, which tell everything
    it = make(RICH, CONCURRENT_REQUESTS=1)
    it.targets(nodes)
    command = start_scrapy(
        it,
        "crawl",
        "rich",
        "-a",
        f"echo={slow.url}/echo",
        "-a",
        "count=24",
        "-a",
        "quiet=1",
        "-o",
        "items.jl",
    )
    wait_for(
        lambda: (
            any(node.job_pids() for node in nodes) and any(node.jobs("pending") for node in nodes)
        ),
        60,
        "jobs that run and jobs that wait",
    )
    during = visible(it, nodes)
    done = command.wait(120, code=0)
    seen = during + visible(it, nodes) + done.err
    assert "DISTRIBUTED_START_URLS=e:" in during, "an encrypted batch was seen"
    assert [secret for secret in SECRETS if secret in seen] == []
    assert len(list(it.items("items.jl"))) == 24


STAYS = """
    import scrapy

    class Stays(scrapy.Spider):
        name = "stays"
        url = ""

        async def start(self):
            for number in range(8):
                yield scrapy.Request(f"{self.url}?n={number}", callback=self.page)
            yield scrapy.Request(f"{self.url}?free", callback=lambda response: self.page(response), meta={
                "distribute": True})
            yield scrapy.Request(f"{self.url}?opaque", callback=self.page, meta={"what": object()})

        def page(self, response):
            yield {"target": response.json()["target"]}
"""


@pytest.mark.promise("The producer crawls a request that cannot travel")
@pytest.mark.black_box
@pytest.mark.parametrize("refused", [False, True])
def test_what_cannot_travel_is_crawled_here_or_refused_when_told_so(
    refused: bool, make: MakeProject, run_scrapy: RunCommand, the_site: SiteProcess
) -> None:
    it = make(STAYS, **({"DISTRIBUTED_UNSENDABLE": "refuse"} if refused else {}))
    the_site.reset()
    done = run_scrapy(it, "crawl", "stays", "-a", f"url={the_site.url}/echo", "-o", "items.jl")
    assert done.code == (3 if refused else 0), said(done)
    targets = [item["target"] for item in it.items("items.jl")]
    stays = [] if refused else ["/echo?free", "/echo?opaque"]
    assert sorted(targets) == sorted([*(f"/echo?n={n}" for n in range(8)), *stays])
    assert the_site.hits() == dict.fromkeys(targets, 1)
    summary = last_crawl(it).summary
    assert (
        (summary["local"], summary["sealed"], summary["refused"]) == (0, 8, 2)
        if refused
        else (2, 8, 0)
    )
    assert "lambda" in done.err, "why they stayed is said"
    assert "object" in done.err
