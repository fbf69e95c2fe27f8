"""What the pages of `sdist web` say while answers are late, old or missing, and when they fail themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import pytest
from rig.fleet_sender import FleetSender, loaded
from rig.waiting import wait_for
from rig.web_pages import ADDRESS, fill_store, served, write_targets
from starlette.testclient import TestClient

from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.web import project_pages
from scrapyd_dist.web.project_pages import ProjectPages

T = TypeVar("T")


class HeldSender(FleetSender):
    """Answers calls of these paths only once it may."""

    def __init__(self, held: set[str], **answers: dict[str, Any]) -> None:
        super().__init__(**answers)
        self.held = held
        self.may_answer = Event()

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        if call.path in self.held:
            assert self.may_answer.wait(60)
        return super().send(node, call, timeout=timeout)


@contextmanager
def held(root: Path, *paths: str) -> Iterator[tuple[TestClient, Event]]:
    """Pages of a node that does not answer calls of these paths, and what lets it."""
    sender = HeldSender({*paths}, web1={**loaded(running=1), "listversions.json": ("1",)})
    try:
        with served(root, sender, patience=0.05) as client:
            yield client, sender.may_answer
    finally:
        sender.may_answer.set()


def live_part(text: str) -> str:
    """The part of a page that is fetched again and again."""
    live, end, _ = text.partition('<div id="live"')[2].partition("</footer>\n</div>\n</main>")
    assert end, "the footer belongs to it"
    return live


def test_a_page_says_as_of_when_its_oldest_answer_is(root: Path) -> None:
    write_targets(root, ["web1"])
    now, wall = [0.0], [1_800_000_000.0]
    sender = FleetSender(web1={**loaded(running=1), "listversions.json": ("1",)})
    with served(root, sender, clock=lambda: now[0], wall=lambda: wall[0]) as client:
        client.get("/nodes/web1")
        assert "As of 2027-01-15 08:00:00 UTC" in live_part(client.get("/").text)
        now[0] += 10.0
        wall[0] += 10.0
        assert "As of 2027-01-15 08:00:10 UTC" in live_part(client.get("/").text)
        # It is examined every 30 seconds.
        assert "As of 2027-01-15 08:00:00 UTC" in live_part(client.get("/nodes/web1").text)
        assert "As of 2" in live_part(client.get("/jobs/none").text)


def test_a_fleet_that_is_not_known_is_no_empty_document(root: Path) -> None:
    fill_store(root)
    with served(root, FleetSender()) as client:
        answer = client.get("/index.json")
        assert (answer.status_code, "names no node" in answer.json()["error"]) == (503, True)
    write_targets(root, ["web1"])
    with held(root, "daemonstatus.json") as (client, may_answer):
        answer = client.get("/index.json")
        assert (answer.status_code, "being asked" in answer.json()["error"]) == (503, True)
        assert "being asked" in client.get("/").text
        may_answer.set()
        wait_for(lambda: client.get("/index.json").status_code == 200, 20, "the fleet")


def test_a_node_is_shown_while_it_is_examined(root: Path) -> None:
    write_targets(root, ["web1"])
    with held(root, "listversions.json") as (client, may_answer):

        def shown() -> bool:
            answer = client.get("/nodes/web1")
            assert answer.status_code == 200
            assert "is being examined" in answer.text
            return "running0" in answer.text and "jobs running" in answer.text

        wait_for(shown, 20, "its state and its jobs")
        assert "All is well" not in client.get("/nodes/web1").text
        assert client.get("/nodes/web1.json").status_code == 503
        may_answer.set()
        wait_for(lambda: client.get("/nodes/web1.json").status_code == 200, 20, "what was found")
        assert "is being examined" not in client.get("/nodes/web1").text
    with held(root, "listjobs.json") as (client, _):
        wait_for(lambda: "Its jobs are being asked for" in client.get("/nodes/web1").text, 20, "it")


def test_every_error_has_the_part_of_a_page_that_is_fetched_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ProjectPages) -> None:
        raise RuntimeError("a password")

    monkeypatch.setattr(ProjectPages, "throttle", fail)
    with served(root, FleetSender()) as client:
        quiet = TestClient(client.app, base_url=ADDRESS, raise_server_exceptions=False)
        for path, status in (("/throttle", 500), ("/none", 404), ("/nodes/", 404)):
            answer = quiet.get(path)
            assert answer.status_code == status
            assert "hx-get" in live_part(answer.text)
            assert "a password" not in answer.text
            assert quiet.get(f"{path}.json").json()["error"]
        assert "default-src" in quiet.get("/throttle").headers["content-security-policy"]
        assert quiet.put("/jobs").headers["allow"]


def test_a_report_that_takes_long_comes_by_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(root, ["web1"])
    crawl = fill_store(root)
    may_answer = Event()
    gather = project_pages._whole_facts_of

    def gather_late(*args: Any) -> Any:
        assert may_answer.wait(60)
        return gather(*args)

    monkeypatch.setattr(project_pages, "_whole_facts_of", gather_late)
    with served(root, FleetSender(), patience=0.05) as client:
        try:
            answer = client.get(f"/crawls/{crawl.id}/report")
        finally:
            may_answer.set()
        assert answer.status_code == 503
        assert 'http-equiv="refresh"' in answer.text
        assert "hx-get" not in answer.text, "the report has no part that could be put here"
        path = f"/crawls/{crawl.id}/report"
        wait_for(lambda: client.get(path).status_code == 200, 20, "the report")


def test_nodes_that_hang_keep_no_page_of_the_store_away(root: Path) -> None:
    write_targets(root, ["web1"])
    crawl = fill_store(root)
    with held(root, "listjobs.json", "daemonstatus.json") as (client, _):
        for number in range(12):
            assert client.get(f"/jobs?spider=s{number}").status_code == 503
        for path in ("/crawls", f"/crawls/{crawl.id}", f"/crawls/{crawl.id}/misses", "/throttle"):
            wait_for(lambda path=path: client.get(path).status_code == 200, 10, path)  # type: ignore[misc]
