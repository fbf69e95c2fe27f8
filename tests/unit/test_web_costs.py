"""What the pages of `sdist web` cost: nodes are asked once for all viewers, and a large fleet makes no page slow."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rig.fleet_sender import FleetSender, loaded
from rig.web_pages import RECORD, fill_store, project_at, served, write_targets

from scrapyd_dist.batches import Crawl
from scrapyd_dist.fleet.live_crawls import list_crawls
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.scrapyd.api import Job, Jobs, JobState
from scrapyd_dist.store import Store
from scrapyd_dist.store.ports.rows import Door
from scrapyd_dist.web import application, project_pages
from scrapyd_dist.web.project_pages import NEWEST

NODES = 300
#: bytes of a page, and seconds of the process's time for one request, on a machine that takes `USUAL` for the yardstick
MOST_BYTES = 150_000
MOST_SECONDS = 0.5
USUAL = 0.02


def slowness() -> float:
    """How much longer than a usual machine this one takes at the moment, beside all that runs on it; 1 at least.

    The yardstick is work like that of a page: many threads, each of which makes the rows of a node.
    """

    def make_rows(_node: int) -> int:
        return len([{"number": number, "text": str(number)} for number in range(300)])

    began = time.process_time()
    with ThreadPoolExecutor(32) as threads:
        made = sum(threads.map(make_rows, range(NODES)))
    assert made == 300 * NODES
    return max(1.0, (time.process_time() - began) / USUAL)


def job(number: int, now: datetime) -> Job:
    started = now - timedelta(seconds=number)
    return Job(
        id=f"easy-{number}", project="shop", spider="easy", state=JobState.FINISHED, start_time=started,
        end_time=started + timedelta(seconds=30),
    )  # fmt: skip


def large_fleet(listed: int) -> FleetSender:
    """Nodes that run two jobs each, and list so many that are over."""
    now = datetime.now(timezone.utc).astimezone().replace(microsecond=0, tzinfo=None)
    answers = {}
    for place in range(NODES):
        answer = loaded(running=2, finished=listed)
        running = answer["listjobs.json"].running
        over = tuple(job(number, now) for number in range(place * listed, (place + 1) * listed))
        answer["listjobs.json"] = Jobs(pending=(), running=running, finished=over)
        answers[f"web{place}"] = {**answer, "listversions.json": ("1",)}
    return FleetSender(**answers)


def records(total: int, listed: int) -> Iterator[JobRecord]:
    """Jobs that are over: the newest has the number 0, and ended now."""
    now = time.time()
    for number in range(total):
        node = f"web{number // listed % NODES}"
        ended = now - number
        yield replace(
            RECORD, id=f"easy-{number}", node=node, url=f"http://{node}:6800", created=ended - 60, posted=ended - 60,
            started=ended - 30, ended=ended, state=Outcome.FINISHED,
        )  # fmt: skip


@pytest.mark.full
def test_fifty_viewers_cost_the_nodes_what_one_costs(root: Path) -> None:
    write_targets(root, ["web1", "web2"])
    crawl = fill_store(root)
    pages = [
        "/",
        "/jobs",
        "/nodes/web1",
        "/jobs/running0?node=web1",
        f"/crawls/{crawl.id}/jobs",
        "/crawls",
    ]
    asked = []
    for viewers in (1, 50):
        sender = FleetSender(web1=loaded(running=1), web2=loaded(running=2, finished=3))
        now = [0.0]
        with served(root, sender, clock=lambda now=now: now[0]) as client:  # type: ignore[misc]
            with ThreadPoolExecutor(viewers) as threads:
                for path in pages:
                    for answer in threads.map(client.get, [path] * viewers):
                        assert answer.status_code == 200
            asked.append(sorted(sender.asked))
            once = len(sender.asked)
            now[0] += 3600.0  # no page is viewed, and no node asked
            assert len(sender.asked) == once
            client.get("/")
            assert len(sender.asked) > once
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("total", "listed"), [(1_000, 10), (100_000, 100)])
@pytest.mark.full
def test_a_large_fleet_with_many_remembered_jobs_makes_no_page_slow(
    root: Path, monkeypatch: pytest.MonkeyPatch, total: int, listed: int
) -> None:
    write_targets(root, [f"web{place}" for place in range(NODES)])
    crawl = fill_store(root)
    sender = large_fleet(listed)
    with closing(project_at(root, sender)) as workspace:
        workspace.new_store.keep_jobs([*records(total, listed)])
    read: list[str] = []
    judge = Door.job

    def noted(door: Door, name: Any, kept: Any) -> JobRecord:
        read.append(str(name))
        return judge(door, name, kept)

    monkeypatch.setattr(Door, "job", noted)
    paths = [
        "/", "/crawls", "/jobs", "/jobs?state=failed", "/jobs?since=2h&spider=easy", "/jobs?node=web7",
        f"/jobs/easy-{total - 1}", "/jobs/running0?node=web3", "/nodes/web3", "/throttle", "/frontiers",
        f"/crawls/{crawl.id}", f"/crawls/{crawl.id}/jobs",
    ]  # fmt: skip
    ticks = count(0.0, 3600.0)  # nothing that was answered before is kept
    with served(root, sender, clock=lambda: next(ticks)) as client:
        for path in paths:
            seconds = []
            # The least of three counts: other processes on the machine slow this one down.
            for _ in range(3):
                read.clear()
                slow = slowness()
                began = time.process_time()
                answer = client.get(path)
                seconds.append((time.process_time() - began) / slow)
                assert answer.status_code == 200
                assert len(answer.content) < MOST_BYTES, path
                assert len(read) <= 2 * NEWEST + 10, path
            assert min(seconds) < MOST_SECONDS, path


def test_the_crawls_are_read_once_for_the_pages_that_list_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(root, ["web1"])
    fill_store(root)
    reads: list[object] = []

    def noted(store: Store | None) -> list[Crawl]:
        reads.append(store)
        return list_crawls(store)

    monkeypatch.setattr(project_pages, "list_crawls", noted)
    with served(root, FleetSender(web1=loaded()), clock=lambda: 0.0) as client:
        for path in ("/", "/crawls", "/crawls.json"):
            assert client.get(path).status_code == 200
    assert len(reads) == 1


def test_the_head_of_a_crawl_that_runs_is_sent_until_it_ends(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(root, ["web1"])
    crawl = fill_store(root)
    lives = iter([True, True, False])
    monkeypatch.setattr(project_pages, "runs", lambda _: next(lives))
    monkeypatch.setattr(application, "EVERY", 0.0)
    ticks = count(0.0, 10.0)
    with served(root, FleetSender(), clock=lambda: next(ticks)) as client:
        answer = client.get(f"/crawls/{crawl.id}/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [
            part.partition("\n")[0].removeprefix("event: ") for part in answer.text.split("\n\n")
        ]
        assert events[0] == "head"
        assert events[-2:] == ["end", ""]
        assert "Found, sent, ended" in answer.text
        gone = client.get("/crawls/none/events").text
        assert "event: end" in gone
