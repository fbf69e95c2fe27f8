"""Shards: however the index is divided, every page of it is walked, each once, and a broken page is not the end."""

from collections.abc import Callable
from typing import Any

import pytest
from rig.crawls import QUICK, assert_balanced, assert_each_page_once, misses, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

ITEMS, PER_PAGE, PAGES = 63, 7, 9


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(1, max_proc=3)


@pytest.fixture(scope="module")
def the_site(module_site: StartSite) -> SiteProcess:
    return module_site(ITEMS, per_page=PER_PAGE)


@pytest.fixture
def it(project: MakeProject, nodes_up: list[ScrapydNode], site_now: SiteProcess) -> Project:
    return project(nodes=nodes_up, settings={**QUICK, "START_URL": site_now.start_url})


@pytest.fixture
def crawl(run_cli: RunCommand, it: Project, site_now: SiteProcess) -> Callable[..., dict[str, Any]]:
    """`crawl("--shards", 4, code=0)`: the JSON summary of `sdist crawl easy` over this site's index."""

    def run(*options: object, code: int = 0, pages: int | None = PAGES) -> dict[str, Any]:
        index = ["--index", site_now.template, "--pages", str(pages)] if pages else []
        done = run_cli(it, "crawl", "easy", *index, *options, "-o", "items.jl", "--json")
        assert done.code == code, said(done)
        summary: dict[str, Any] = done.json()
        assert_balanced(summary)
        return summary

    return run


@pytest.mark.parametrize("shards", [4, pytest.param(PAGES + 4, marks=pytest.mark.black_box)])
def test_any_number_of_shards_walks_each_page_once(
    shards: int, crawl: Callable[..., dict[str, Any]], it: Project, site_now: SiteProcess
) -> None:
    summary = crawl("--shards", shards)
    assert_each_page_once(site_now, it.items("items.jl"))
    assert summary["index"] == {"pages": PAGES, "total": PAGES, "failed": 0}


@pytest.mark.parametrize(
    "bad",
    [
        {4: "fail"},  # in the middle of the second of three shards
        # the first of all, the last and the first of a shard, and the last of all
        pytest.param(
            {0: "gone", 2: "hang", 3: "redirect:/nowhere", 8: "fail"}, marks=pytest.mark.black_box
        ),
    ],
)
def test_a_walk_goes_on_behind_pages_that_fail_for_good(
    bad: dict[int, str], crawl: Callable[..., dict[str, Any]], it: Project, site_now: SiteProcess
) -> None:
    site_now.behave({site_now.site.index_path(page): behaviour for page, behaviour in bad.items()})
    summary = crawl("--shards", 3, "-s", "DOWNLOAD_TIMEOUT=2", code=3)
    lost = [page * PER_PAGE + number for page in bad for number in range(PER_PAGE)]
    assert site_now.differences(it.items("items.jl"), without=lost) == {}
    assert summary["index_failed"] == len(bad)
    assert {(row["url"], row["kind"]) for row in misses(it)} == {
        (site_now.index(page), "index") for page in bad
    }
    hits = site_now.hits()
    assert {hits[site_now.site.index_path(page)] for page in range(PAGES) if page not in bad} == {1}


@pytest.mark.black_box
def test_a_list_of_start_urls(
    crawl: Callable[..., dict[str, Any]], it: Project, site_now: SiteProcess
) -> None:
    pages = [site_now.index(page) for page in (0, 3, 6)]
    it.write("starts.txt", "# where to begin\n" + "\n\n".join(pages) + "\n")
    summary = crawl("--start-urls", "starts.txt", pages=None)
    assert_each_page_once(site_now, it.items("items.jl"))
    assert summary["index_failed"] == 0


@pytest.mark.black_box
def test_a_start_that_fails_is_told_and_is_no_success(run_cli: RunCommand, it: Project) -> None:
    done = run_cli(it, "crawl", "easy", "-a", "start=no-address", "-o", "items.jl", code=1)
    assert "1 of the index failed" in done.out + done.err
    assert "    the spider's start failed: ValueError: Missing scheme" in done.out + done.err
    assert [(row["url"], row["kind"]) for row in misses(it)] == [("", "index")]


@pytest.mark.black_box
def test_shards_by_settings_alone(
    run_scrapy: RunCommand, it: Project, site_now: SiteProcess
) -> None:
    it.settings(ADDONS={"scrapyd_dist.Addon": 500}, DISTRIBUTED_SHARDS=4, DISTRIBUTED_PAGES=PAGES)
    it.settings(DISTRIBUTED_INDEX=site_now.template)
    run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert_each_page_once(site_now, it.items("items.jl"))
