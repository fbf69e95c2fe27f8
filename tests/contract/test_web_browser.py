"""The pages of `sdist web` in a real browser: by role and text, narrow, dark, by keyboard alone, for axe-core."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from rig.browser import Browser, browser
from rig.fleet_sender import FleetSender, loaded
from rig.waiting import wait_for
from rig.web_pages import fill_store, served_on_port, write_targets

from scrapyd_dist.batches import Crawl
from scrapyd_dist.scrapyd.api import Chunk, Job, Jobs, JobState, fetch

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
TAB, ENTER = ("Tab", 9), ("Enter", 13)
HOSTILE = "<script>document.title='gone'</script><img src=x onerror=\"document.title='gone'\">"
#: elements that stick out of the window, but for what is moved sideways in a box of its own
STICKING_OUT = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.table, pre, .skip') && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(e => e.tagName + '.' + e.className)
"""
#: what has a role and a name, as a screen reader has them
HEADINGS = (
    "[...document.querySelectorAll('h1')].filter(e => e.offsetParent).map(e => e.textContent)"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web") / ""


@pytest.fixture(scope="module")
def crawl(root: Path) -> Crawl:
    write_targets(root, ["web1", "web2", "web3"])
    return fill_store(root)


@pytest.fixture(scope="module")
def sender() -> FleetSender:
    job = Job(id=HOSTILE, project="shop", spider=HOSTILE, state=JobState.RUNNING)
    log = f"2026-11-20 12:00:10 [scrapy.core.scraper] ERROR: {HOSTILE}\n{HOSTILE}\n".encode()
    chunk = Chunk(body=log, start=0, total=len(log), date=None, modified=None)
    hostile: dict[str, Any] = {
        **loaded(running=1),
        "listjobs.json": Jobs(pending=(), running=(job,), finished=()),
        fetch(f"logs/shop/{HOSTILE}/{HOSTILE}.log").path: chunk,
    }
    fine = {**loaded(running=2, finished=3, pending=1), "listversions.json": ("1", "2")}
    return FleetSender(web1=fine, web2=hostile)


@pytest.fixture(scope="module")
def address(root: Path, crawl: Crawl, sender: FleetSender) -> Iterator[str]:
    with served_on_port(root, sender) as made:
        yield made


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


def paths(crawl: Crawl) -> dict[str, str]:
    """Each page -> its heading."""
    base = f"/crawls/{crawl.id}"
    return {
        "/": "Fleet",
        "/crawls": "Crawls",
        "/jobs": "Jobs",
        "/throttle": "Throttle",
        "/frontiers": "Frontiers",
        "/strategies": "Strategies",
        "/nodes/web1": "web1",
        "/jobs/easy-1": "easy-1",
        f"/jobs/{quote(HOSTILE, safe='')}?node=web2": HOSTILE,
        base: crawl.id,
        f"{base}/batches": crawl.id,
        f"{base}/misses": crawl.id,
        f"{base}/jobs": crawl.id,
        f"{base}/log": crawl.id,
        "/crawls/none": "There is no such page",
    }


def see(opened: Browser, heading: str) -> None:
    """Wait until the page has this heading: its nodes may have to be asked first."""
    wait_for(lambda: opened.run(HEADINGS) == [heading], 60, f"the heading {heading}")


@pytest.mark.parametrize(("width", "dark"), [(400, False), (1200, True)])
def test_each_page_narrow_and_in_the_dark(
    opened: Browser, address: str, crawl: Crawl, width: int, dark: bool
) -> None:
    for path, heading in paths(crawl).items():
        opened.open(f"{address}{path}", width=width, dark=dark)
        see(opened, heading)
        assert opened.run("document.documentElement.scrollWidth") <= width, path
        assert opened.run(STICKING_OUT) == [], path
        ground = "rgb(14, 19, 24)" if dark else "rgb(244, 246, 248)"
        assert opened.run("getComputedStyle(document.body).backgroundColor") == ground
        assert opened.axe() == [], path
        if "none" not in path:
            assert opened.complaints() == [], path
        assert opened.run("document.title") != "gone"
        assert all(one.startswith(address) for one in opened.asked_for())


def test_words_by_their_roles(opened: Browser, address: str, crawl: Crawl) -> None:
    opened.open(f"{address}/", width=1200)
    see(opened, "Fleet")
    text = opened.run("document.body.innerText")
    assert "The node web3 does not work" in opened.run(
        "document.querySelector('[role=status]').innerText"
    )
    assert "nodes up" in text
    assert opened.run("document.querySelector('nav [aria-current]').textContent") == "Fleet"
    assert opened.run(
        "document.querySelector('[role=region][aria-label=Nodes] tbody tr').innerText"
    ).startswith("web3")
    opened.open(f"{address}/crawls/{crawl.id}", width=1200)
    see(opened, crawl.id)
    assert opened.run("!!document.querySelector('#burn-up[role=img]')")
    opened.open(f"{address}/jobs?state=failed", width=1200)
    wait_for(lambda: "easy-1" in opened.run("document.body.innerText"), 60, "the failed job")
    assert opened.run("document.querySelector('select').value") == "failed"


def test_by_keyboard_alone(opened: Browser, address: str, crawl: Crawl) -> None:
    opened.open(f"{address}/crawls", width=1200)
    see(opened, "Crawls")
    focused = "document.activeElement.textContent"
    opened.press(*TAB)
    assert opened.run(focused) == "To the content"
    names = []
    for _ in range(20):
        opened.press(*TAB)
        names.append(opened.run(focused))
        if names[-1] == crawl.id:
            break
    assert names[:2] == ["Fleet", "Crawls"]
    assert names[-1] == crawl.id
    assert opened.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    opened.press(*ENTER)
    see(opened, crawl.id)


def test_the_focus_stays_where_it_is_when_the_page_is_fetched_again(
    opened: Browser, address: str, sender: FleetSender
) -> None:
    opened.open(f"{address}/", width=1200)
    see(opened, "Fleet")
    opened.run("document.querySelector('a[href=\"/nodes/web1\"]').focus()")
    before = opened.run("document.querySelector('footer').textContent")
    sender.answers["web3"] = loaded(running=1)
    running = (
        "[...document.querySelectorAll('.cards dd')].map(e => e.firstChild.textContent.trim())[1]"
    )
    wait_for(lambda: opened.run(running) == "4", 60, "the job of a node that is back")
    assert opened.run("document.activeElement.getAttribute('href')") == "/nodes/web1"
    assert before
    del sender.answers["web3"]


def test_without_scripts_the_page_is_whole(opened: Browser, address: str) -> None:
    opened._call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened.open(f"{address}/", width=1200)
        assert "web1" in opened.run("document.body.innerText")
    finally:
        opened._call("Emulation.setScriptExecutionDisabled", value=False)
