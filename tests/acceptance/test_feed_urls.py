"""Feeds: batches that write to a place of the user's own, as in the book; merged at home, no password on the way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from rig.bad_days import attempts
from rig.crawls import ADDON, QUICK, crawls, last_crawl, visible
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.ftp import FtpServer
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

PASSWORD = "s3cret@of:the/feed"


@pytest.fixture(scope="module")
def the_site(module_site: StartSite) -> SiteProcess:
    return module_site(90)


@pytest.fixture
def make(
    project: MakeProject, the_site: SiteProcess, pair: list[ScrapydNode]
) -> Callable[..., Project]:
    """A project that crawls this module's site on this module's nodes: `make(DISTRIBUTED_TARGET_FEED_URL=…)`."""

    def made(**settings: Any) -> Project:
        base = {"ADDONS": ADDON, "START_URL": the_site.start_url, **QUICK}
        return project(nodes=pair, settings={**base, **settings})

    return made


def _lines(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for data in files.values() for line in data.splitlines()]


@pytest.mark.black_box
def test_ftp_feed_of_the_book(
    make: MakeProject,
    run_scrapy: RunCommand,
    the_site: SiteProcess,
    ftp_server: Callable[..., FtpServer],
) -> None:
    ftp = ftp_server()
    it = make(DISTRIBUTED_TARGET_FEED_URL=f"{ftp.url}/%(batch)s_%(name)s_%(time)s.jl")
    it.settings(ADDONS={}, SPIDER_MIDDLEWARES={"scrapyd_dist.Distributed": 100})
    run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert the_site.differences(it.items("items.jl")) == {}, "the merged file"
    assert the_site.differences(_lines(ftp.files())) == {}, "what batches stored"
    summary = last_crawl(it).summary
    assert len(ftp.files()) == summary["batches"]["done"] == 3
    assert all("_easy_" in name for name in ftp.files())
    (manifest,) = it.path.rglob("manifest.json")
    named = {uri.rpartition("/")[2] for uri in json.loads(manifest.read_text())["feeds"]}
    assert named == set(ftp.files())


@pytest.mark.black_box
def test_fields_that_a_feed_url_lacks_are_added_and_crawls_do_not_collide(
    make: MakeProject,
    start_scrapy: StartCommand,
    the_site: SiteProcess,
    ftp_server: Callable[..., FtpServer],
) -> None:
    ftp = ftp_server()
    it = make(DISTRIBUTED_TARGET_FEED_URL=f"{ftp.url}/items.jl")
    both = [start_scrapy(it, "crawl", "easy", "-o", f"{name}.jl") for name in ("one", "two")]
    for command in both:
        command.wait(120, code=0)
    for name in ("one", "two"):
        assert the_site.differences(it.items(f"{name}.jl")) == {}
    assert len(ftp.files()) == 6
    stored = _lines(ftp.files())
    assert len(stored) == 180
    for crawl in crawls(it):
        mine = {name: data for name, data in ftp.files().items() if name.startswith(f"{crawl.id}.")}
        assert the_site.differences(_lines(mine)) == {}


@pytest.mark.black_box
def test_a_password_in_the_deployed_settings_is_seen_nowhere(
    make: MakeProject, site: StartSite, start_scrapy: StartCommand, pair: list[ScrapydNode],
    ftp_server: Callable[..., FtpServer],
) -> None:  # fmt: skip
    slow, ftp = site(60, "--latency=0.15"), ftp_server(user="me", password=PASSWORD)
    feed = f"{ftp.url}/%(name)s/items.jl"
    few = {"DISTRIBUTED_BATCH_SIZE": 20, "CONCURRENT_REQUESTS": 2, "LOG_LEVEL": "DEBUG"}
    it = make(START_URL=slow.start_url, DISTRIBUTED_TARGET_FEED_URL=feed, **few)
    command = start_scrapy(it, "crawl", "easy", "-o", "items.jl")
    wait_for(lambda: any(node.job_pids() for node in pair), 60, "a job that runs")
    while_running = visible(it, pair)
    done = command.wait(120, code=0)
    assert slow.differences(it.items("items.jl")) == {}
    everything = while_running + visible(it, pair) + done.out + done.err
    assert "DISTRIBUTED_START_URLS" in while_running, "jobs were seen"
    for secret in (PASSWORD, feed.partition("@")[0].rpartition(":")[2]):
        assert secret not in everything


@pytest.mark.black_box
def test_a_worker_that_is_killed_leaves_each_item_once_in_what_its_manifest_lists(
    make: MakeProject, start_cli: StartCommand, site: StartSite,
    pair: list[ScrapydNode], tmp_path: Path
) -> None:  # fmt: skip
    """L6: what it had written stays apart from what its batch's next attempt writes; all nodes share the folder."""
    folder, pages = tmp_path / "shared folder", site(200)
    folder.mkdir()
    it = make(START_URL=pages.start_url, DISTRIBUTED_BATCH_SIZE=100)
    pages.behave(
        {pages.site.detail_path(number): "hang" for number in (0, 100)}
    )  # no job comes to its end
    url = f"file://{str(folder).replace(' ', '%20')}/%(batch)s.jl"
    command = start_cli(it, "crawl", "easy", "--feed", url, "-o", "items.jl", "--json")
    wait_for(lambda: any(path.stat().st_size for path in folder.iterdir()), 60, "items in a feed")
    victims = {job for node in pair for job in node.kill_jobs().values()}
    pages.behave({})
    command.wait(code=0)
    assert victims & {attempt.job for attempt in attempts(it, AttemptState.FAILED)}
    assert pages.differences(it.items("items.jl")) == {}, "the merged file"
    (manifest,) = it.path.rglob("manifest.json")
    listed = [
        Path(unquote(urlsplit(uri).path)) for uri in json.loads(manifest.read_text())["feeds"]
    ]
    assert {path.parent for path in listed} == {folder}
    assert pages.differences(_lines({path.name: path.read_bytes() for path in listed})) == {}, (
        "the feeds"
    )


@pytest.mark.black_box
def test_a_feed_that_cannot_be_stored_is_no_success(
    make: MakeProject, run_scrapy: RunCommand
) -> None:
    it = make(DISTRIBUTED_TARGET_FEED_URL="ftp://127.0.0.1:1/items.jl", DISTRIBUTED_MAX_ATTEMPTS=2)
    done = run_scrapy(it, "crawl", "easy", code=1)
    assert "could not store its feed" in done.err
    summary = last_crawl(it).summary
    assert summary["batches"]["dead"] == summary["batches"]["total"] == 3
    assert summary["batches"]["failed"] == 6
    assert summary["dead_urls"] == 90


@pytest.mark.black_box
def test_items_dir_of_scrapyd(
    make: MakeProject,
    run_scrapy: RunCommand,
    fleet: StartFleet,
    the_site: SiteProcess,
    tmp_path: Path,
) -> None:
    nodes = fleet(1, items_dir="items")
    shared = tmp_path / "shared"
    it = make(DISTRIBUTED_TARGET_FEED_URL=f"{shared.as_uri()}/%(batch)s.jl")
    it.targets(nodes)
    run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert the_site.differences(it.items("items.jl")) == {}
    kept = {path.name: path.read_bytes() for path in (nodes[0].work / "items").rglob("*.jl")}
    assert the_site.differences(_lines(kept)) == {}, "Scrapyd's own files are written as well"
    assert (
        the_site.differences(_lines({path.name: path.read_bytes() for path in shared.iterdir()}))
        == {}
    )
