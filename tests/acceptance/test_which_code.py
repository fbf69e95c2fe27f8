"""Which code runs: a crawl goes on with what it began with, on no node that has other code; plain jobs run the last."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from rig.bad_days import ITEMS, MakeScene, attempts, wait_state
from rig.crawls import NEWS, QUICK, crawls, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import CrawlState

pytestmark = pytest.mark.black_box


def change(project: Project, word: str) -> None:
    """The same spider, whose items are told apart."""
    project.spider("news", NEWS.replace("first", word))


def by(project: Project) -> Counter[str]:
    """Which code the merged items are of."""
    return Counter(item["by"] for item in project.items("items.jl"))


@pytest.fixture
def news(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite
) -> Callable[..., tuple[Project, list[ScrapydNode], SiteProcess]]:
    """`news(items)`: the project, its nodes and its site."""

    def make(
        items: int, *options: str, **fields: Any
    ) -> tuple[Project, list[ScrapydNode], SiteProcess]:
        the_site = site(items, *options, **fields)
        for node in pair:
            node.clear()
        settings = {
            **QUICK, "START_URL": the_site.start_url, "DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"],
            "DISTRIBUTED_BATCH_SIZE": 10, "DISTRIBUTED_BATCH_MAX_AGE": 1,
        }  # fmt: skip
        return project(nodes=pair[:1], spiders={"news": NEWS}, settings=settings), pair, the_site

    return make


def test_a_crawl_goes_on_with_the_code_that_it_began_with(
    news: Callable[..., Any], start_cli: StartCommand, run_cli: RunCommand
) -> None:
    it, nodes, the_site = news(40, per_page=4)
    failing = {the_site.site.detail_path(number): "fail" for number in (3, 4)}
    # Far from its end when the first batch is at work.
    the_site.behave(
        {**failing, **{the_site.site.index_path(page): "slow:3" for page in range(4, 10)}}
    )
    command = start_cli(it, "crawl", "news", "-o", "items.jl")
    wait_for(the_site.item_hits, 60, "a job at work")
    begun = crawls(it)[0]
    os.kill(begun.pid or 0, signal.SIGINT)
    command.wait(60, code=130)
    wait_state(it, CrawlState.STOPPED)
    assert the_site.hits().get(the_site.site.index_path(9), 0) == 0, (
        "the index was walked before the stop"
    )
    the_site.behave(failing)
    nodes[0].wait_idle()  # Scrapy reads a spider's source file when its first page comes
    began_with = crawls(it)[0].version

    # The working tree changes, the version goes from the node, and another node joins.
    change(it, "second")
    nodes[0].api("delproject.json", project="small")
    it.targets(nodes)
    run_cli(it, "resume", begun.id, timeout=180).expect(3, "other code", "--new-code")
    assert by(it) == {"first": 48}, "index and articles are of the code that the crawl began with"
    row = last_crawl(it)
    assert row.version == began_with
    assert nodes[0].versions("small") == nodes[1].versions("small") == [began_with]

    # So does a second try; --new-code takes what is there today, and both are named.
    the_site.behave(dict(list(failing.items())[1:]))
    run_cli(it, "retry", begun.id, "--failed-urls", timeout=180, code=3)
    assert by(it) == {"first": 49}
    the_site.behave({})
    done = run_cli(it, "retry", begun.id, "--failed-urls", "--new-code", timeout=180)
    assert by(it) == {"first": 49, "second": 1}
    row = last_crawl(it)
    assert row.version != began_with
    assert row.summary["version"] == row.version
    assert row.summary["earlier_versions"] == row.options["earlier_versions"] == [began_with]
    done.expect(0, f"{began_with}", f"{row.version}")
    run_cli(it, "report", begun.id, "-o", "report.html", code=0)
    page = (it.path / "report.html").read_text("utf-8")
    assert f"version {row.version}, begun with {began_with}" in page


def test_a_crawl_whose_code_is_gone_says_so(news: Callable[..., Any], run_cli: RunCommand) -> None:
    it, _, the_site = news(4)
    the_site.behave({the_site.site.detail_path(1): "fail"})
    run_cli(it, "crawl", "news", "-o", "items.jl", code=3)
    row = last_crawl(it)
    change(it, "second")
    for egg in it.path.rglob("*.egg"):
        egg.unlink()
    the_site.behave({})
    gone = run_cli(it, "retry", row.id, "--failed-urls", code=2)
    assert f"runs the version {row.version}, and that code is gone" in gone.out
    assert f"sdist resume {row.id} --new-code" in gone.out
    run_cli(it, "resume", row.id, "--new-code", code=0)
    assert by(it)["second"] == 1


def test_a_crawl_does_not_change_what_plain_jobs_run(
    news: Callable[..., Any], run_cli: RunCommand
) -> None:
    it, (node, *_), _ = news(4)
    run_cli(it, "crawl", "news", "-o", "items.jl", code=0)
    # As scrapyd-deploy does it, with other code.
    it.spider("plain", NEWS.replace('"news"', '"plain"'))
    theirs = str(int(time.time()))
    node.add_version("small", theirs, it.plain_egg())
    assert "plain" in node.api("listspiders.json", project="small")["spiders"]
    change(it, "second")
    run_cli(it, "crawl", "news", "-O", "items.jl", code=0)
    assert by(it) == {"second": 5}
    assert node.versions("small")[-1] == theirs
    assert "plain" in node.api("listspiders.json", project="small")["spiders"]
    # What sdist deploys is the newest until scrapyd-deploy is used again; so it is beside a name that sorts last.
    ours = run_cli(it, "deploy", "--all", "--json").json()["version"]
    assert node.versions("small")[-1] == ours
    node.add_version("small", "r9-main", it.plain_egg())
    job = run_cli(it, "jobs", "schedule", "news", "--json")
    assert job.json()["version"] == ours, said(job)
    run_cli(it, "code", "versions").expect(None, "r9-main", ours)
    told = run_cli(it, "doctor", "--json").json()["findings"]
    assert [ours in one["text"] for one in told if "r9-main" in one["text"]] == [True]


def test_after_a_rollback_a_crawl_says_which_code_it_takes(
    news: Callable[..., Any], run_cli: RunCommand
) -> None:
    it, (node, *_), _ = news(4)
    run_cli(it, "deploy", "--all", code=0)
    change(it, "second")
    run_cli(it, "deploy", "--all", code=0)
    back = run_cli(it, "code", "rollback", "--json").json()["version"]
    done = run_cli(it, "crawl", "news", "-o", "items.jl")
    assert by(it) == {"second": 5}
    done.expect(0, f"{last_crawl(it).version}", f"--version {back}")
    planned = run_cli(it, "plan", "news", "--version", back, "--json")
    assert planned.json()["version"] == back, said(planned)
    run_cli(it, "crawl", "news", "-O", "items.jl", "--version", back, code=0)
    assert by(it) == {"first": 5}
    assert last_crawl(it).version == back
    assert node.versions("small")[-1] == back
    run_cli(it, "crawl", "news", "--version", "1.0", "-O", "items.jl").expect(
        4, "is not kept", back
    )


# nodes with other code


CHANGED = """
    from properties.spiders.plain import PlainSpider


    class Own(PlainSpider):
        name = "changed"

        def parse_article(self, response):
            for item in super().parse_article(response):
                item["title"] = "{title}"
                yield item
"""


def test_a_node_with_older_code_gets_no_work_until_it_has_the_crawls(
    scene: MakeScene, fleet: StartFleet, run_cli: RunCommand
) -> None:
    """N9: uploading is switched off, and one of two nodes was left behind."""
    new, old = fleet(2, poll_interval=0.2)
    it = scene(12, nodes=[new, old], DISTRIBUTED_BATCH_SIZE=3, DISTRIBUTED_DEPLOY="never").it
    it.spider("changed", CHANGED.format(title="old"))
    run_cli(it, "deploy", "--all", code=0)
    it.spider("changed", CHANGED.format(title="new"))
    run_cli(it, "deploy", new.name, code=0)
    line = ("crawl", "changed", "--callback", "parse_article", "-O", ITEMS, "--json")
    first = run_cli(it, *line, code=0)
    titles = [item["title"] for item in it.items(ITEMS)]
    assert titles == ["new"] * 12, "old and new code were mixed"
    assert {attempt.node for attempt in attempts(it)} == {new.name}
    (named,) = [node for node in first.json()["nodes"] if node["name"] == old.name]
    assert (named["state"], named["jobs"]) == ("unfit", 0)
    assert first.json()["version"] in named["reason"], "which version it lacks"
    assert f"{old.name} has the version" in run_cli(it, "status", first.json()["crawl"]).out

    run_cli(it, "deploy", "--all", "--only-missing", code=0)
    second = run_cli(it, *line, code=0)
    assert {node["name"]: node["state"] for node in second.json()["nodes"]} == {
        new.name: "up",
        old.name: "up",
    }
    assert {attempt.node for attempt in attempts(it)} == {new.name, old.name}
    assert second.json()["version"] == first.json()["version"]
    assert [item["title"] for item in it.items(ITEMS)] == titles


def test_a_fleet_that_refuses_as_one_stops_it(
    project: MakeProject, fleet: StartFleet, run_cli: RunCommand
) -> None:
    (locked,) = fleet(1, username="me", password="right")
    section = f"[deploy:web2]\nurl = {locked.url}\nproject = properties\nusername = me\npassword = ${{WEB2_PASSWORD}}\n"
    it = project(settings=QUICK, extra=section)
    for command in ("plan", "crawl"):
        run_cli(it, command, "easy").expect(6, "WEB2_PASSWORD", "[deploy:web2]")


#: an older checkout of the package, in the folder in which Scrapyd was started
OLD_CHECKOUT = {
    "small/__init__.py": "",
    "small/settings.py": 'BOT_NAME = "small"\nSPIDER_MODULES = ["small.spiders"]\n',
    "small/spiders/__init__.py": "",
    "small/spiders/news.py": NEWS.replace("first", "old"),
}


@pytest.mark.real_start
@pytest.mark.promise("What runs is what was deployed")
def test_an_old_checkout_in_the_nodes_folder_is_not_what_runs(
    news: Callable[..., Any], run_cli: RunCommand, fleet: StartFleet
) -> None:
    it, _, the_site = news(8)
    (node,) = fleet(1)
    for name, text in OLD_CHECKOUT.items():
        path = node.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    it.targets([node])
    run_cli(it, "crawl", "news", "-o", "items.jl", code=0)
    assert by(it) == {"first": 9}
    start = f"START_URL={the_site.start_url}"
    job = run_cli(it, "jobs", "schedule", "news", "-s", start, "--json", code=0).json()["jobs"][0][
        "job"
    ]
    node.wait_idle()
    assert node.job_log(job).count("'by': 'first'") == 9
