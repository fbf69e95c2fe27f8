"""Rules of `sdist throttle` hold without any setting, wherever the store is reached; at the site's own log."""

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.commands import Result
from rig.crawls import ADDON, QUICK, assert_each_page_once, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.throttled import mean_gap
from rig.waiting import wait_for

pytestmark = pytest.mark.black_box

HOST = "127.0.0.1"
HITS, WINDOW = 5, 1
#: seconds after which a change is heeded, and for which the site is looked at then
HEEDED, LOOKED = 2.0, 1.5
OWN_QUEUE = """
from scrapy.pqueues import ScrapyPriorityQueue


class Own(ScrapyPriorityQueue):
    pass
"""
PAGES = """
import scrapy


class Pages(scrapy.Spider):
    name = "pages"

    async def start(self):
        for number in range(60):
            yield scrapy.Request(f"{self.site}/echo?n={number}")

    def parse(self, response):
        yield {"url": response.url}
"""


class Watched:
    """A site, and the rules of the project whose crawl it sees."""

    def __init__(self, it: Project, there: SiteProcess, run: RunCommand) -> None:
        self._it, self._site, self._run = it, there, run

    def throttle(self, *words: object) -> Result:
        done = self._run(self._it, "throttle", *words)
        assert done.code == 0, done.err
        return done

    def hits(self, since: float = 0.0) -> list[float]:
        return [row["time"] for row in self._site.log() if row["time"] >= since]

    def heeds_a_pause(self) -> None:
        """Nothing comes while all rests, and a limit holds after that."""
        self.throttle("pause")
        heeded = time.monotonic() + HEEDED
        self.heedings = json.loads(self.throttle("show", "--json").out)["crawls"]
        wait_for(lambda: time.monotonic() >= heeded + LOOKED, 60, "that moment")
        assert self.hits(heeded) == []
        self.throttle("set", HOST, "--hits", HITS, "--window", WINDOW)
        self.throttle("resume")
        self.limited_since = time.monotonic()

    def kept_the_limit(self) -> None:
        times = self.hits(self.limited_since)
        assert len(times) > HITS
        assert mean_gap(times) >= 0.95 * WINDOW / HITS


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_pause_and_a_limit_hold_for_a_crawl_that_runs(
    mode: str,
    project: MakeProject,
    start_cli: StartCommand,
    run_cli: RunCommand,
    nodes_up: list[ScrapydNode],
    site: StartSite,
) -> None:
    """Every page comes, once; requests that were in the downloader when the rule came wait, too."""
    there = site(60)
    settings = {**QUICK, "DISTRIBUTED_MODE": mode, "START_URL": there.start_url, "DOWNLOAD_DELAY": 0.5}
    it = project(nodes=nodes_up, settings={**settings, "DISTRIBUTED_BATCH_SIZE": 10})
    watched = Watched(it, there, run_cli)
    command = start_cli(it, "crawl", "easy", "-o", "items.jl")
    wait_for(lambda: len(watched.hits()) >= 12, 90, "pages of workers")
    watched.heeds_a_pause()
    done = command.wait()
    assert done.code == 0, said(done)
    assert there.differences(it.items("items.jl")) == {}
    assert_each_page_once(there)
    watched.kept_the_limit()
    assert [(one["heeded"], one["reason"], one["nodes"]) for one in watched.heedings] == [(True, "", {})]
    told = json.loads(run_cli(it, "plan", "easy", "--json").out)["throttle"]
    assert told == {"rules": 1, "heeded": True, "reason": ""}
    it.write(f"{it.name}/queues.py", OWN_QUEUE)
    it.settings(SCHEDULER_PRIORITY_QUEUE=f"{it.name}.queues.Own")
    for command_line in (("plan", "easy"), ("crawl", "easy")):
        refused = run_cli(it, *command_line)
        assert refused.code == 2, said(refused)
        assert f"SCHEDULER_PRIORITY_QUEUE is {it.name}.queues.Own" in refused.err


def test_rules_hold_for_a_plain_crawl(
    project: MakeProject,
    start_scrapy: StartCommand,
    run_scrapy: RunCommand,
    run_cli: RunCommand,
    site: Callable[..., Any],
) -> None:
    """With the line of the add-on alone; a process that is switched off goes on, whatever is said."""
    there = site(1)
    address = f"http://{HOST}:{urlsplit(there.url).port}"
    it = project(spiders={"pages": PAGES}, settings={"ADDONS": ADDON, "DISTRIBUTED_ENABLED": False})
    watched = Watched(it, there, run_cli)
    command = start_scrapy(it, "crawl", "pages", "-a", f"site={address}", "-s", "DOWNLOAD_DELAY=0.5")
    wait_for(lambda: len(watched.hits()) >= 3, 60, "the first pages")
    watched.heeds_a_pause()
    wait_for(lambda: len(watched.hits(watched.limited_since)) >= 2, 30, "pages under the limit")
    watched.throttle("pause")
    begun = time.monotonic()
    free = ("crawl", "pages", "-a", f"site={address}", "-s", "DISTRIBUTED_THROTTLE=False", "-o", "free.jl")
    done = run_scrapy(it, *free)
    assert done.code == 0, said(done)
    assert len(list(it.items("free.jl"))) == 60
    assert command.running()
    assert len(watched.hits(begun)) >= 60
    command.interrupt()
    command.interrupt()
    ended = command.wait(60)
    assert "Traceback" not in ended.err, ended.err
