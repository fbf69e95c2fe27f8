"""The lists on the pages of `sdist web`: what is left out of a long one, and that the page says so."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.fleet_sender import FleetSender, loaded
from rig.web_pages import fill_store, project_at, served, write_targets

from scrapyd_dist.batches import CrawlState, Miss, job_id
from scrapyd_dist.fleet.missing import missing
from scrapyd_dist.scrapyd.api import Job, Jobs, JobState
from scrapyd_dist.web import project_pages
from scrapyd_dist.web.application import Actions
from scrapyd_dist.web.project_pages import ROWS, ProjectPages

VERSIONS = {"listversions.json": ("1",)}


def test_jobs_without_a_time_are_not_left_out_for_it(root: Path) -> None:
    write_targets(root, ["web1"])
    with served(root, FleetSender(web1=loaded(finished=310))) as client:
        assert len(client.get("/jobs.json").json()["jobs"]) == ROWS
        assert client.get("/jobs/finished309").status_code == 200


def test_a_name_without_a_job_is_no_page(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_targets(root, ["web1"])
    monkeypatch.setattr(ProjectPages, "_list_jobs", lambda *_: {"jobs": [], "unreached": []})
    with served(root, FleetSender(web1=loaded())) as client:
        assert client.get("/jobs/gone").status_code == 404


def test_a_crawl_without_a_job_names_the_nodes_that_do_not_answer(root: Path) -> None:
    write_targets(root, ["web1", "web2"])
    crawl = fill_store(root)
    with served(root, FleetSender(web1=loaded())) as client:
        (unreached,) = client.get(f"/crawls/{crawl.id}/jobs.json").json()["unreached"]
        assert "web2" in unreached
        assert "web2" in client.get(f"/crawls/{crawl.id}/jobs").text
    with served(root, FleetSender(web1=loaded(), web2=loaded())) as client:
        document = client.get(f"/crawls/{crawl.id}/jobs.json").json()
        assert (document["jobs"], document["unreached"]) == ([], [])


@pytest.mark.parametrize("names", [[], ["web2"]])
def test_a_job_is_shown_whose_node_is_no_target_any_more(root: Path, names: list[str]) -> None:
    write_targets(root, names)
    fill_store(root)
    with served(root, FleetSender(web2=loaded())) as client:
        assert client.get("/jobs.json").status_code == 200
        document = client.get("/jobs.json").json()
        assert [row["job"] for row in document["jobs"]] == ["easy-1", "easy-2"]
        if not names:
            assert "names no node" in document["unreached"][0]
            assert "names no node" in client.get("/jobs").text
        for address in ("/jobs/easy-1?node=web1", "/jobs/easy-1"):
            page = client.get(address).text
            assert "2 errors logged" in page
            assert "cannot be read: its node is no target any more" in page
        (row,) = client.get("/jobs/easy-1.json?node=web1").json()["jobs"]
        assert (row["version"], row["labels"]) == ("7", ["night=1"])
        assert client.get("/jobs/easy-1?node=web3").status_code in {400, 404}


def test_of_a_node_that_is_down_nothing_is_said_to_be_missing(root: Path) -> None:
    write_targets(root, ["web1", "web2"])
    with served(root, FleetSender(web2={**loaded(), "listversions.json": ()})) as client:
        down = client.get("/nodes/web1").text
        assert down.count("Not known: the node could not be asked.") == 2
        up = client.get("/nodes/web2").text
        assert "None of this project is known there." in up
        assert "It lists no job." in up
        assert "could not be asked" not in up


def test_jobs_that_wait_leave_those_that_run_on_the_list(root: Path) -> None:
    write_targets(root, ["web1"])
    with served(root, FleetSender(web1=loaded(pending=250, running=3))) as client:
        states = [row["state"] for row in client.get("/jobs.json").json()["jobs"]]
    assert (len(states), len([state for state in states if state != "pending"])) == (ROWS, 3)


def test_a_page_says_among_which_jobs_it_looks(root: Path) -> None:
    write_targets(root, ["web1"])
    with served(root, FleetSender(web1=loaded(running=1))) as client:
        assert "among the last 300" not in client.get("/jobs").text
        for asked in ("state=failed", "spider=s", "label=a"):
            assert "among the last 300" in client.get(f"/jobs?{asked}").text


def test_a_page_says_what_it_leaves_out(root: Path) -> None:
    write_targets(root, ["web1"])
    crawl = fill_store(root)
    job = Job(id="", project="p", spider="s", state=JobState.RUNNING)
    running = [replace(job, id=job_id(crawl.id, number, 1)) for number in range(1, 251)]
    answers = {**loaded(), **VERSIONS}
    answers["listjobs.json"] = Jobs(pending=(), running=tuple(running), finished=())
    misses = [Miss(url=f"http://a/{n}", kind="failed", reason=f"reason {n}x") for n in range(60)]
    with closing(project_at(root, FleetSender())) as workspace:
        workspace.new_store.add_misses(crawl.id, misses)
    with served(root, FleetSender(web1=answers)) as client:
        assert "The newest 200" in client.get(f"/crawls/{crawl.id}/jobs").text
        assert "The newest 200" in client.get("/nodes/web1").text
        assert "The 50 most frequent of 60 reasons" in client.get(f"/crawls/{crawl.id}/misses").text


def test_misses_are_read_and_grouped_once_for_all(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(root, ["web1"])
    crawl = fill_store(root)
    grouped: list[int] = []
    group = project_pages._group_by_reason

    def noted(rows: Any) -> Any:
        grouped.append(len(rows))
        return group(rows)

    monkeypatch.setattr(project_pages, "_group_by_reason", noted)
    with served(root, FleetSender(), clock=lambda: 0.0) as client:
        for _ in range(3):
            assert client.get(f"/crawls/{crawl.id}/misses").status_code == 200
    with closing(project_at(root, FleetSender())) as workspace:
        assert grouped == [len(missing(workspace.store, root, crawl.id))]


def test_a_crawl_that_runs_is_on_the_first_page_however_many_came_after_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(root, ["web1"])
    crawl = fill_store(root)
    with closing(project_at(root, FleetSender())) as workspace:
        long = replace(crawl, id="long", state=CrawlState.WORKING, created=1.0, ended=None)
        workspace.new_store.add_crawl(long)
    monkeypatch.setattr(project_pages, "ROWS", 2)
    monkeypatch.setattr(project_pages, "runs", lambda row: row.id == "long")
    with served(root, FleetSender(web1=loaded())) as client:
        assert 'id="running-long"' in client.get("/").text
        assert "3 of 7" in client.get("/crawls").text


def test_the_name_of_a_node_may_have_a_slash(root: Path) -> None:
    lines = ["[settings]", "default = shop.settings", "[deploy:eu/web1]", "url = http://web1:6800/"]
    (root / "scrapy.cfg").write_text("\n".join(lines), encoding="utf-8")
    with served(root, FleetSender(**{"eu/web1": {**loaded(running=1), **VERSIONS}})) as client:
        for page in ("/", "/jobs"):
            assert 'href="/nodes/eu%2Fweb1"' in client.get(page).text
        page = client.get("/nodes/eu%2Fweb1").text
        assert "running0" in page
        assert 'hx-get="/nodes/eu/web1"' in page
        assert client.get("/nodes/eu/web1.json").status_code == 200


@pytest.mark.parametrize(
    ("states", "status"), [(("skipped", "failed"), 502), (("failed", "scheduled"), 201)]
)
def test_jobs_that_no_node_took_are_not_started(
    root: Path, states: tuple[str, ...], status: int
) -> None:
    def start(_: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"jobs": [{"state": state} for state in states]}

    actions = Actions(token="t", start_crawl=start, start_jobs=start)
    with served(root, FleetSender(), actions=actions) as client:
        answer = client.post("/jobs", json={"spider": "s"}, headers={"X-Sdist-Token": "t"})
        assert (answer.status_code, len(answer.json()["jobs"])) == (status, 2)


def test_the_form_reads_what_it_shows(root: Path) -> None:
    write_targets(root, ["web1", "web2"])
    fill_store(root)
    with served(root, FleetSender(web1=loaded(), web2=loaded())) as client:
        page = client.get("/jobs?label=a=1&label=b=2&node=web1&node=w*2").text
        assert 'value="a=1, b=2"' in page
        assert 'value="web1, w*2"' in page
        for label, found in (("night=1, a=1", 0), ("night=1,", 2)):
            rows = client.get("/jobs.json", params={"label": label, "node": "web1, w*2"}).json()
            assert len(rows["jobs"]) == found, label
