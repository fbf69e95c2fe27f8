"""`sdist report` of real crawls, in a real browser: every picture, nothing fetched, on a telephone, in the dark."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.browser import Browser, browser
from rig.crawls import QUICK, store_of
from rig.fixtures import MakeProject, RunCommand
from rig.projects import Project

from scrapyd_dist.batches import Crawl, CrawlState

PASSWORD = "page-secret"
#: the names of the pictures on the page
PICTURES = {"burn-up", "heat", "jobs", "shard-sizes", "shard-times", "job-times", "status"}
#: elements that stick out of the window, but for what is moved sideways in a box of its own
STICKING_OUT = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.table, pre') && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(e => e.tagName + '.' + e.className)
"""
#: the pictures that can be seen; and the labels of one
SHOWN = "[...document.querySelectorAll('[role=img]')].filter(e => e.getBoundingClientRect().width)"
LABELS = "[...chart.querySelectorAll('.legend span, .times span, .name, .note, b')]"
#: labels of a picture that lie on each other
OVERLAPS = f"""
{SHOWN}.flatMap(chart => {{
  const boxes = {LABELS}.map(t => [t.getBoundingClientRect(), t.textContent]);
  return boxes.flatMap(([a, one], i) => boxes.slice(i + 1)
    .filter(([b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
    .map(([, two]) => one + ' | ' + two));
}})
"""
#: labels that are cut off by the edge of their picture
CUT_OFF = f"""
{SHOWN}.flatMap(chart => {{
  const whole = chart.getBoundingClientRect();
  return {LABELS}.filter(t => {{
    const box = t.getBoundingClientRect();
    return box.width && (box.left < whole.left - 1 || box.right > whole.right + 1);
  }}).map(t => t.textContent);
}})
"""


@pytest.fixture(scope="module")
def crawled(
    module_fleet: Callable[..., Any],
    module_site: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Project:
    """A demo project with two nodes, one of them behind a password, and its site; nothing is crawled yet."""
    nodes = [*module_fleet(1), *module_fleet(1, username="u", password=PASSWORD)]
    made = Project.demo(tmp_path_factory.mktemp("report") / "project0")
    made.settings(**QUICK)
    made.targets(nodes)
    made.site = module_site(300)  # type: ignore[attr-defined]  # kept for the tests
    return made


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


def crawl(run_cli: RunCommand, project: Project, name: str) -> None:
    site = project.site  # type: ignore[attr-defined]  # set above
    run_cli(
        project, "crawl", "easy", "-a", f"start={site.start_url}", "--index", site.template, "--pages", site.site.pages,
        "--shards", "4", "--name", name, "-O", "items.jl", code=0,
    )  # fmt: skip


def drawn(page: Browser) -> set[str]:
    """The names of the pictures that can be seen."""
    return set(page.run(f"{SHOWN}.map(chart => chart.id)"))


def check(page: Browser, path: Path, *pictures: str) -> None:
    """What must hold for every page, at every width, with these pictures at least."""
    for width in (360, 1200):
        page.open(path, width=width)
        assert page.asked_for() == [path.as_uri()]
        assert page.complaints() == []
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(STICKING_OUT) == []
        assert page.run(OVERLAPS) == []
        assert page.run(CUT_OFF) == []
        assert page.run("document.scripts.length") == 0
        assert drawn(page) >= {*pictures}


def test_a_crawl_as_a_page(crawled: Project, run_cli: RunCommand, opened: Browser) -> None:
    crawl(run_cli, crawled, "first")
    made = run_cli(crawled, "report", "first", "-o", "out.html", "--ask-nodes")
    assert (made.code, made.out, made.err) == (0, "out.html\n", "")
    path = crawled.path / "out.html"
    check(opened, path, *PICTURES)
    opened.open(path, width=360, dark=True)
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(14, 19, 24)"
    assert "On the nodes now" in opened.run("document.body.innerText")
    assert PASSWORD not in path.read_text("utf-8")
    series = run_cli(crawled, "report", "first", "--json").json()
    assert (series["schema"], series["state"], series["burn_up"]["done"][-1]) == (
        1,
        "finished",
        300,
    )
    assert sum(series["heat"]["pages"]) == 300
    assert {bar["outcome"] for bar in series["jobs"]["bars"]} == {"done"}
    assert sum(one["codes"]["200"] for one in series["statuses"]) == 300
    assert sum(series["shard_sizes"]["values"]) == 300
    assert len(series["shard_times"]["values"]) == 4


def test_without_a_crawl_that_is_said(crawled: Project, run_cli: RunCommand) -> None:
    assert run_cli(crawled, "report", "nosuch").expect(4, "nosuch").out == ""
    run_cli(crawled, "report", "-o", ".").expect(2, "folder")


@pytest.mark.black_box
def test_runs_are_compared(crawled: Project, run_cli: RunCommand, opened: Browser) -> None:
    crawl(run_cli, crawled, "again")
    with closing(store_of(crawled)) as store:
        row = store.crawl("again")
        for number in range(2):  # as if it had been crawled before
            store.add_crawl(replace(row, id=f"earlier{number}", created=row.created - 60))
    assert run_cli(crawled, "report").out == "again.html\n"
    check(opened, crawled.path / "again.html", *PICTURES, "runs")
    assert run_cli(crawled, "report", "--json").json()["runs"]["items"][-1] >= 300


@pytest.mark.black_box
def test_a_crawl_that_runs_and_then_is_stopped(
    crawled: Project, run_cli: RunCommand, opened: Browser, module_site: Callable[..., Any]
) -> None:
    slow = module_site(400, "--latency=0.3")
    run_cli(
        crawled, "crawl", "easy", "-a", f"start={slow.start_url}", "--index", slow.template, "--pages", slow.site.pages,
        "--shards", "2", "--name", "slow", "--detach", "-O", "slow.jl", "-s", "CONCURRENT_REQUESTS=2", code=0,
    )  # fmt: skip
    assert run_cli(crawled, "watch", "slow", "--timeout", "6").code == 124
    assert run_cli(crawled, "report", "slow", "-o", "slow.html").code == 0
    check(opened, crawled.path / "slow.html")
    assert "sdist watch slow" in opened.run("document.body.innerText")
    run_cli(crawled, "jobs", "cancel", "--crawl", "slow", "-y")
    assert run_cli(crawled, "report", "slow", "-o", "slow.html").code == 0
    check(opened, crawled.path / "slow.html")
    assert "sdist resume slow" in opened.run("document.body.innerText")


@pytest.mark.black_box
def test_a_crawl_that_was_refused_has_a_page_too(
    run_cli: RunCommand, project: MakeProject, opened: Browser, tmp_path: Path
) -> None:
    made = project()
    with closing(store_of(made)) as store:
        message = "No node answers at http://u:page-secret@web1:6800/. <script>alert(1)</script>"
        store.add_crawl(
            Crawl(
                id="no",
                project="p",
                spider="easy",
                created=1.7e9,
                state=CrawlState.REFUSED,
                message=message,
            )
        )
    assert run_cli(made, "report", "no").code == 0
    check(opened, made.path / "no.html")
    text = opened.run("document.body.innerText")
    assert "<script>alert(1)</script>" in text
    assert PASSWORD not in text
    assert drawn(opened) == set()
    shutil.rmtree(made.path)
