"""What a person does about a crawl: looks at its batches, tries again what it gave up, lets it rest, cancels it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from rig.bad_days import IMPATIENT, ITEMS, arguments, begin, wait_accepted
from rig.commands import Command
from rig.crawls import assert_balanced, assert_each_page_once, crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

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


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


class Begun(NamedTuple):
    """A crawl that has a part home, and some way to go."""

    project: Project
    site: SiteProcess
    command: Command
    crawl: str


@pytest.fixture
def on_its_way(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite,
    start_cli: StartCommand
) -> Callable[..., Begun]:  # fmt: skip
    """`on_its_way(300, "--latency=0.2")`: a crawl of so many pages."""

    def make(items: int, *options: str) -> Begun:
        pages = site(items, *options, per_page=20)
        made = project(nodes=pair, settings={**IMPATIENT, "START_URL": pages.start_url})
        command = begin("sdist", made, pages, scrapy=start_cli, cli=start_cli)
        wait_accepted(made)
        return Begun(made, pages, command, crawls(made)[0].id)

    return make


def test_what_was_given_up_is_tried_again(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand, tmp_path: Path
) -> None:
    pages, flag = site(36), tmp_path / "broken"
    flag.touch()
    pages.behave({pages.site.detail_path(7): "fail", pages.site.detail_path(9): "gone"})
    settings = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 6}
    it = project(nodes=pair, settings={**settings, "DISTRIBUTED_MAX_ATTEMPTS": 1})
    it.spider("fragile", FRAGILE.format(url=pages.site.detail_path(30), flag=str(flag)))
    command = [text.replace("easy", "fragile") for text in arguments("sdist", pages, shards=1)]
    done = run_cli(it, *command)
    assert done.code == 3, done.err
    crawl = crawls(it)[0].id

    dead = run_cli(it, "batches", crawl, "--state", "dead", "--urls")
    assert dead.out.split() == [pages.detail(30)]
    listed = run_cli(it, "batches", crawl, "--json").json()
    assert {row["state"] for row in listed["batches"]} == {"done", "dead", "split"}
    assert run_cli(it, "batches", crawl, "--state", "lost").code == 2

    flag.unlink()
    pages.behave({pages.site.detail_path(9): "gone"})
    again = run_cli(it, "retry", crawl, "--failed-urls", "--json")
    assert again.code == 0, again.err
    assert pages.differences(it.items(ITEMS), without=[9]) == {}
    summary = last_crawl(it).summary
    assert (summary["failed_urls"], summary["dead_urls"], summary["gone_urls"]) == (0, 0, 1)
    nothing = run_cli(it, "retry", crawl, "--failed-urls")
    assert nothing.code == 4
    assert "nothing to try again" in nothing.err


@pytest.mark.black_box
def test_a_crawl_rests_and_goes_on(
    on_its_way: Callable[..., Begun], pair: list[ScrapydNode], run_cli: RunCommand
) -> None:
    it, pages, command, crawl = on_its_way(800, "--latency=0.1")
    rests = run_cli(it, "pause", crawl)
    assert rests.code == 0, rests.err
    assert f"sdist resume {crawl}" in rests.err
    for node in pair:
        node.wait_idle()
    wait_for(lambda: crawls(it)[0].summary["batches"]["out"] == 0, 30, "all jobs that ran home")
    asked = sum(pages.hits().values())
    assert crawls(it)[0].summary["paused"]
    assert not crawls(it)[0].state.ended
    standing = run_cli(it, "status", crawl, "--json").json()
    assert (standing["paused"], standing["outlook"]["eta_s"], standing["per_s"]["requests"]) == (True, None, 0)
    assert "paused" in run_cli(it, "crawls").out
    assert sum(pages.hits().values()) == asked, "it went on though it rests"
    assert run_cli(it, "resume", crawl, "--json").code == 0
    assert command.wait(60).code == 0
    assert pages.differences(it.items(ITEMS)) == {}
    assert_each_page_once(pages)
    assert_balanced(crawls(it)[0].summary)
    assert run_cli(it, "pause", crawl).code == 2


@pytest.mark.black_box
def test_a_crawl_is_cancelled_and_taken_up_again(
    on_its_way: Callable[..., Begun], pair: list[ScrapydNode], run_cli: RunCommand
) -> None:
    it, pages, command, crawl = on_its_way(300, "--latency=0.2")
    cancelled = run_cli(it, "cancel", crawl, "--yes")
    assert cancelled.code == 0, cancelled.err
    assert command.wait(60).code == 130
    assert all(node.jobs("running") == [] and node.jobs("pending") == [] for node in pair)
    assert len(list(it.path.glob(ITEMS))) == 0
    again = run_cli(it, "resume", crawl, "--json", timeout=180)
    assert again.code == 0, again.err
    assert pages.differences(it.items(ITEMS)) == {}
