"""The pages of `sdist web`, without a network: what they show, the JSON beside them, what is refused, what it costs."""

import html
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rig.commands import Result
from rig.documents import document_misfits
from rig.fleet_sender import FleetSender, loaded
from rig.web_pages import RECORD, fill_store, served, write_targets
from starlette.testclient import TestClient

from scrapyd_dist.batches import Crawl
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.scrapyd.api import Chunk, fetch
from scrapyd_dist.web.drawing import (
    describe_time_since,
    list_bars,
    pages_per_minute,
    rate_or_dash,
    sort_jobs,
    state_of_batch,
)

Run = Callable[..., Result]


@pytest.fixture
def sender() -> FleetSender:
    """web1 runs two jobs; web2 is down."""
    return FleetSender(web1={**loaded(running=2, finished=1), "listversions.json": ("1", "2")})


@pytest.fixture
def crawl(root: Path) -> Crawl:
    write_targets(root, ["web1", "web2"])
    return fill_store(root)


@pytest.fixture
def client(root: Path, crawl: Crawl, sender: FleetSender) -> Iterator[TestClient]:
    with served(root, sender) as made:
        yield made


def document(client: TestClient, path: str) -> dict[str, object]:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), (
        answer.text
    )
    found: dict[str, object] = answer.json()
    return found


def text_of(client: TestClient, path: str, status: int = 200) -> str:
    """The words of a page, without its markup."""
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert "<script>" not in answer.text
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))


def test_json_beside_what_the_store_has_is_the_document_of_the_command(
    client: TestClient, crawl: Crawl, sdist: Run
) -> None:
    same = {
        "/crawls.json": ("crawls", "--json"),
        f"/crawls/{crawl.id}.json": ("status", crawl.id, "--json"),
        f"/crawls/{crawl.id}/batches.json": ("crawls", "show", crawl.id, "--batches", "--json"),
        f"/crawls/{crawl.id}/misses.json": ("crawls", "show", crawl.id, "--misses", "--json"),
        "/throttle.json": ("throttle", "show", "--json"),
        "/frontiers.json": ("frontier", "--json"),
        "/strategies.json": ("strategy", "--json"),
    }
    for path, words in same.items():
        assert document(client, path) == sdist(*words).expect(0).json(), path


def test_json_beside_what_nodes_answer_has_the_shape_of_the_command_s(client: TestClient) -> None:
    fleet = document(client, "/index.json")
    assert set(fleet) == {"schema", "nodes", "running", "pending", "per_min"}
    assert fleet["running"] == 2
    jobs = document(client, "/jobs.json?node=web1")
    assert document_misfits("jobs list", jobs) == []
    assert {row["job"] for row in jobs["jobs"]} >= {"running0", "finished0", "easy-1"}  # type: ignore[attr-defined]
    one = document(client, "/jobs/easy-1.json")
    assert document_misfits("jobs list", one) == []
    assert one["log_errors"] is None, "its node has no answer for its log"
    node = document(client, "/nodes/web1.json")
    assert document_misfits("doctor", node) == []


def test_the_first_page_has_troubles_the_fleet_and_the_last_crawls(
    client: TestClient, crawl: Crawl
) -> None:
    text = text_of(client, "/")
    assert "The node web2 does not work" in text
    assert re.search(r"nodes up 1 of 2 .*jobs running 2", text)
    assert crawl.id in text
    assert "web1" in text
    page = client.get("/").text
    assert page.index('href="/nodes/web2"') < page.index('href="/nodes/web1"'), "troubled first"
    assert 'hx-trigger="every 2s"' in page


def test_the_first_page_has_the_spiders_whose_last_job_failed(
    client: TestClient, root: Path
) -> None:
    text = text_of(client, "/")
    assert "The job easy-1" not in text, "a later one finished"
    with closing(Workspace(root)) as workspace:
        ended = time.time()
        failed = replace(RECORD, id="hard-1", spider="hard", ended=ended, started=ended - 9)
        workspace.store.keep_jobs([failed])
    with served(root, FleetSender()) as anew:
        assert "The job hard-1 of hard on web1 failed: 2 errors logged." in text_of(anew, "/")


def test_a_crawl_has_its_report_and_tabs(client: TestClient, crawl: Crawl) -> None:
    base = f"/crawls/{crawl.id}"
    text = text_of(client, base)
    assert "Found, sent, ended" in text
    assert "sdist jobs stats" in text or "How to go on" in text
    for tab in ("batches", "misses", "jobs", "log"):
        assert crawl.id in text_of(client, f"{base}/{tab}")
    assert "no attempt" not in text_of(client, f"{base}/batches")
    report = client.get(f"{base}/report").text
    assert report.startswith("<!doctype html>")
    assert text_of(client, "/crawls/none", 404)


def test_jobs_are_filtered_by_the_address(client: TestClient) -> None:
    assert "easy-1" in text_of(client, "/jobs")
    only = text_of(client, "/jobs?state=failed&spider=easy&label=night=1")
    assert "easy-1" in only
    assert "easy-2" not in only
    assert "easy-1" not in text_of(client, "/jobs?since=1h&spider=easy&state=&node=&label=")
    assert "There is no state 'ended'" in text_of(client, "/jobs?state=ended", 400)
    assert text_of(client, "/jobs?since=soon", 400)
    assert text_of(client, "/jobs?node=web9", 404)


def test_a_job_and_a_node(client: TestClient) -> None:
    text = text_of(client, "/jobs/easy-1")
    assert "2 errors logged" in text
    assert "night=1" in text
    text = text_of(client, "/nodes/web1")
    assert "Findings" in text
    assert "running0" in text
    assert "There is no job" in text_of(client, "/jobs/none", 404)


def test_the_errors_of_a_job_have_their_exception_and_an_example(root: Path) -> None:
    entry = (
        "2026-11-20 12:00:10 [scrapy.core.scraper] ERROR: Spider error processing"
        " <GET http://shop/{}> (referer: None)\nTraceback (most recent call last):\n"
        "  File \"shop.py\", line 5, in parse\nKeyError: 'name'\n"
    )
    log = (entry.format(1) + entry.format(2)).encode()
    chunk = Chunk(body=log, start=0, total=len(log), date=None, modified=None)
    write_targets(root, ["web1"])
    path = fetch("logs/p/s/running0.log").path
    with served(root, FleetSender(web1={**loaded(running=1), path: chunk})) as client:
        text = text_of(client, "/jobs/running0")
        assert "2 \N{MULTIPLICATION SIGN} KeyError: 'name' , for example http://shop/2" in text
        told = document(client, "/jobs/running0.json")
    assert document_misfits("jobs list", told) == []
    group = {"name": "KeyError: 'name'", "count": 2, "example": "http://shop/2"}
    assert told["log_errors"] == {"whole": True, "groups": [group]}


def test_every_page_says_what_a_browser_may_do(client: TestClient) -> None:
    for path in ("/", "/jobs", "/crawls/none", "/static/style.css", "/throttle.json"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith(
            "default-src 'none'; style-src 'unsafe-inline' 'self'; script-src 'self'"
        )
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/static/htmx.min.js").text.startswith("var htmx")
    assert client.get("/static/../application.py").status_code == 404
    assert json.loads(client.get("/crawls/none.json").text)["error"]


def test_rates_ages_and_the_order_of_jobs_are_those_of_the_commands() -> None:
    assert [rate_or_dash(rate) for rate in (None, 0, 0.4, 1234.0)] == [
        "\u2013",
        "0",
        "0.4",
        "1,234",
    ]
    assert describe_time_since(1000.0, 8200.0) == "2h ago"
    started = "2026-11-20T20:0{}:00+00:00"
    jobs: list[dict[str, str | None]] = [
        {"job": "ended", "state": "finished", "started": started.format(9)},
        {"job": "ran before", "state": "running", "started": started.format(1)},
        {"job": "runs", "state": "running", "started": started.format(2)},
        {"job": "waits", "state": "waiting", "started": None},
    ]
    assert [job["job"] for job in sort_jobs(jobs)] == ["waits", "runs", "ran before", "ended"]


def test_jobs_have_their_pace_and_what_the_site_answered(client: TestClient, root: Path) -> None:
    with closing(Workspace(root)) as workspace:
        ended = time.time()
        codes = {"200": 190, "404": 10}
        fine = replace(
            RECORD, id="hard-1", spider="hard", started=ended - 600, ended=ended, pages=200, codes=codes
        )  # fmt: skip
        workspace.store.keep_jobs([fine])
    row = re.search(r'id="job-hard-1-web1".*?</tr>', client.get("/jobs").text, re.DOTALL)
    assert row is not None
    assert 'data-heading="per minute">20</td>' in row[0]
    assert 'data-heading="took">10:00 min</td>' in row[0]
    text = text_of(client, "/jobs/hard-1")
    assert re.search(r"pages 200 20 per minute", text)
    assert "What the site answered: 190 times 200, 10 times 404." in text


def test_states_are_words_and_a_walked_index_has_a_full_bar() -> None:
    assert [state_of_batch(state) for state in ("sealed", "done")] == ["waiting", "done"]
    index = {"pages": 12, "total": None}
    bars = [list_bars({"state": state, "index": index})[0] for state in ("finding", "working")]
    assert [bar.percent for bar in bars] == [0.0, 100.0]
    row = {"pages": 20, "duration_s": None, "started": None, "state": "running"}
    assert pages_per_minute(row) is None


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("since=yesterday", 400, "yesterday"),
        ("foo=1", 400, "There is no filter 'foo' of jobs. There are: state, spider, node,"),
        ("state=lost", 400, "There is no state 'lost' of a job."),
        ("node=nope", 404, "nope"),
    ],
)
def test_a_wrong_filter_keeps_the_form_and_says_why(
    client: TestClient, query: str, status: int, told: str
) -> None:
    text = text_of(client, f"/jobs?{query}&spider=easy", status)
    assert told in text and "no such page" not in text
    page = client.get(f"/jobs?{query}&spider=easy").text
    assert 'name="spider" value="easy"' in page
    answer = client.get(f"/jobs.json?{query}")
    assert (answer.status_code, told in answer.json()["error"]) == (status, True)


def test_a_spider_without_jobs_is_named(client: TestClient) -> None:
    assert "No job of spider nope is known." in text_of(client, "/jobs?spider=nope")
    found = text_of(client, "/jobs?spider=nope&state=failed")
    assert "No job of spider nope is known that fits the other filters." in found
    assert 'name="since" value="2h"' in client.get("/jobs?since=2h").text


def test_a_page_that_is_not_there_has_no_json_beside_it(client: TestClient) -> None:
    assert client.get("/index.json").status_code == 200
    assert "The same as JSON" not in text_of(client, "/index", 404)
    assert "The same as JSON" in text_of(client, "/")
