"""Troubles of a fleet are told once each, and once more when it is well again, whatever is started again meanwhile."""

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scrapyd_dist.batches import Attempt, Crawl, CrawlState
from scrapyd_dist.errors import ConfigError, StoreError
from scrapyd_dist.fleet import present_troubles, trouble_log
from scrapyd_dist.fleet.fleet_alarm import FleetAlarm
from scrapyd_dist.fleet.trouble_log import EndWatch
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.joblogs.verdict import STALL
from scrapyd_dist.messenger import NoMessenger
from scrapyd_dist.transports.event_hook import EventHook

Tell = tuple[str, str, str]


class KeptMessages(NoMessenger):
    """Keeps what was complained of."""

    def __init__(self) -> None:
        self.complaints: list[str] = []

    def complain(self, text: str) -> None:
        self.complaints.append(text)


class Bench:
    """A project, an alarm that writes what it tells into a file, and a clock that is turned."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        target = "[deploy:web1]\nurl = http://127.0.0.1:9/\nproject = shop\n"
        (root / "scrapy.cfg").write_text(f"[settings]\ndefault = shop.settings\n{target}")
        self.root, self.now, self.told_in = root, 1000.0, root / "told.jl"
        self.command = f"cat >> {self.told_in}; echo >> {self.told_in}"
        self.workspace = Workspace(root)
        self.store = self.workspace.new_store
        self.messenger = KeptMessages()
        self.begin()

    def begin(self) -> None:
        """Start the watch, again."""
        hook = EventHook(target=self.command, option="--on-trouble", event="a trouble")
        self.alarm = FleetAlarm(self.workspace, hook, self.recent_jobs, self.messenger)

    def recent_jobs(self) -> list[JobRecord]:
        """What a command remembers of plain jobs when no node has to be asked."""
        store = self.workspace.store_if_any
        return [] if store is None else store.jobs(time.time() - 86400)

    def look(self, after: float = 20.0, *jobs: dict[str, Any], **node: Any) -> list[Tell]:
        """Let time pass, look, and give what is told of it: event, kind, subject."""
        self.now += after
        fields = {
            "name": "web1",
            "url": "http://127.0.0.1:9",
            "state": "up",
            "reason": "",
            "running": len(jobs),
        }
        self.alarm.check({"nodes": [{**fields, "jobs": jobs, **node}]}, self.now)
        if not self.told_in.exists():
            return []
        rows = [json.loads(line) for line in self.told_in.read_text().splitlines()]
        self.told_in.unlink()
        assert all(row["schema"] == 1 and row["message"] and row["since"] for row in rows)
        for row in rows:
            # What is well again is not called by the words for what was wrong.
            assert row["subject"] in row["message"] or row["kind"] in BY_SPIDER, row
            assert row["event"] == "trouble" or "(before: " in row["message"], row
        return [(row["event"], row["kind"], row["subject"]) for row in rows]


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    made = Bench(tmp_path / "shop")
    with closing(made.workspace):
        yield made


#: kinds of trouble that are a spider's
BY_SPIDER = {"few-items", "job-failed", "crawl-failed"}
DOWN: dict[str, Any] = {"state": "down", "reason": "it refused the connection", "running": None}
WEDGED: dict[str, Any] = {"state": "wedged", "reason": "jobs wait and none is ever started"}


def test_a_node_that_is_down_or_wedged(bench: Bench) -> None:
    assert bench.look(**DOWN) == [], "it may be restarted"
    assert bench.look(**DOWN) == []
    assert bench.look(**DOWN) == [("trouble", "node-down", "web1")]
    bench.begin()
    assert bench.look(100, **DOWN) == bench.look(100, **DOWN) == [], "told before"
    assert bench.look() == [("well", "node-down", "web1")]
    assert bench.look(**WEDGED) == [("trouble", "node-wedged", "web1")]
    assert bench.look(**DOWN) == [], "not known now"
    assert bench.look(**WEDGED) == []
    assert bench.look() == [("well", "node-wedged", "web1")]
    assert bench.look() == []


def test_a_drained_node_that_is_down_is_no_trouble_until_it_gets_work_again(bench: Bench) -> None:
    drained = {**DOWN, "draining": "2026-11-20T12:00:00+00:00"}
    for _ in range(4):
        assert bench.look(**drained) == []
    assert bench.look(**DOWN) == [], "it may be restarted"
    bench.look(**DOWN)
    assert bench.look(**DOWN) == [("trouble", "node-down", "web1")]
    assert bench.look(**drained) == bench.look(**drained) == []
    assert bench.look() == [("well", "node-down", "web1")]


def test_a_node_that_is_taken_out_of_the_fleet_is_no_trouble_any_more(bench: Bench) -> None:
    for _ in range(2):
        bench.look(**DOWN)
    assert bench.look(**DOWN) == [("trouble", "node-down", "web1")]
    assert bench.look(name="web2") == [("well", "node-down", "web1")]
    assert bench.look(**DOWN) == [], "it has joined again, and may be just starting"


def test_a_job_that_makes_no_progress(bench: Bench) -> None:
    job = {"job": "shop-1", "crawl": None, "state": "running", "silent_s": 1}
    stalled = {**job, "state": "stalled", "silent_s": STALL + 5}
    assert bench.look(20, job) == []
    assert bench.look(20, stalled) == [("trouble", "job-stalled", "shop-1")]
    bench.begin()
    assert bench.look(20, job) == [], "a watch that has just begun cannot tell"
    assert bench.look(STALL, job) == [("well", "job-stalled", "shop-1")]
    assert bench.look(20, stalled) == [("trouble", "job-stalled", "shop-1")]
    assert bench.look(20, **DOWN) == []
    assert bench.look() == [("well", "job-stalled", "shop-1")], "it is over"


def test_plain_jobs_that_fail(bench: Bench) -> None:
    def ended(name: str, state: Outcome) -> None:
        job = JobRecord(
            id=name,
            spider="good",
            project="shop",
            version="1",
            created=time.time(),
            node="web1",
            url="u",
        )
        bench.store.keep_jobs(
            [replace(job, state=state, ended=time.time(), reason="2 errors logged")]
        )

    ended("old", Outcome.FAILED)
    assert bench.look() == [], "it failed before the watch began"
    ended("one", Outcome.FAILED)
    ended("two", Outcome.DIED)
    assert bench.look(1) == [], "the store is not read at each look"
    assert bench.look() == [("trouble", "job-failed", "shop/good")]
    bench.begin()
    ended("three", Outcome.FAILED)
    assert bench.look() == []
    ended("four", Outcome.CANCELLED)
    assert bench.look() == []
    ended("five", Outcome.FINISHED)
    bench.begin()
    assert bench.look() == [("well", "job-failed", "shop/good")], "it ended while no watch ran"
    assert bench.look() == []


def test_crawls_without_progress_and_with_few_items(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = True
    monkeypatch.setattr(
        present_troubles, "alive_state", lambda row: row.state.value if alive else "died"
    )
    crawl = Crawl(
        id="c1", project="shop", spider="easy", state=CrawlState.WORKING, created=time.time()
    )
    bench.store.add_crawl(crawl)

    def does(pages: int, **changes: Any) -> None:
        bench.store.update_crawl("c1", summary={"pages": pages, **changes})

    does(1)
    assert bench.look() == []
    does(2)
    assert bench.look() == []
    assert bench.look(STALL) == [("trouble", "crawl-stalled", "c1")]
    bench.begin()
    assert bench.look(STALL / 2) == [], "told before, and nothing has moved"
    does(3)
    assert bench.look() == [("well", "crawl-stalled", "c1")]
    bench.store.want("c1", "pause")
    assert bench.look(STALL) == bench.look(STALL) == [], "it rests"
    bench.store.want("c1", "")
    alive = False
    assert bench.look() == [("trouble", "crawl-stalled", "c1")]
    few = "3 items are unusually few: the median of the last 3 crawls of this spider is 9."
    does(3, warnings=[few])
    bench.store.update_crawl("c1", state=CrawlState.FINISHED, ended=time.time())
    assert bench.look() == [("well", "crawl-stalled", "c1"), ("trouble", "few-items", "easy")]
    bench.store.add_crawl(replace(crawl, id="c2", state=CrawlState.FINISHED, ended=time.time()))
    assert bench.look() == [("well", "few-items", "easy")]


def test_crawls_that_ended_badly(bench: Bench) -> None:
    def ends(name: str, state: CrawlState, code: int, **summary: Any) -> None:
        now = time.time()
        bench.store.add_crawl(Crawl(id=name, project="shop", spider="easy", created=now))
        bench.store.update_crawl(name, state=state, ended=now, exit_code=code, summary=summary)

    assert bench.look() == []
    ends("c1", CrawlState.FINISHED, 0)
    ends("c2", CrawlState.STOPPED, 3)
    assert bench.look() == [], "one ended well, and one was stopped"
    ends("c3", CrawlState.FINISHED, 3, failed_urls=2)
    ends("c4", CrawlState.REFUSED, 2)
    assert bench.look() == [("trouble", "crawl-failed", "easy")], "once for the spider"
    ends("c5", CrawlState.FINISHED, 0)
    assert bench.look() == [("well", "crawl-failed", "easy")]


def test_of_a_crawl_that_ended_badly_its_own_words_are_told_else_how_it_goes_on() -> None:
    crawl = Crawl(id="c1", project="shop", spider="easy", state=CrawlState.FINISHED, created=1.0)
    few = replace(crawl, exit_code=1, message="3 items are too few.")
    assert present_troubles.failure_of_crawl(few).endswith(" 3 items are too few.")
    summary = {"failed_urls": 2, "requests": {"done": 9, "succeeded": 7}}
    partial = replace(crawl, exit_code=3, summary=summary)
    assert present_troubles.failure_of_crawl(partial) == (
        "The crawl c1 of easy has ended: finished, 2 failed."
        " Go on with: sdist retry c1 --failed-urls"
    )
    assert present_troubles.failure_of_crawl(replace(crawl, exit_code=0)) == ""


def test_a_node_without_disk(bench: Bench) -> None:
    crawl = Crawl(
        id="c1", project="shop", spider="easy", state=CrawlState.WORKING, created=time.time()
    )
    bench.store.add_crawl(crawl)
    bench.store.update_crawl(
        "c1", state=CrawlState.WORKING, pid=None, host="elsewhere", beat=time.time()
    )
    batch = bench.store.seal("c1", NewBatch(payload={}, size=1), [b"1"], {})
    out = Attempt(
        batch=batch.number, number=1, job="c1.b1.a1", node="web1", url="http://127.0.0.1:9"
    )
    bench.store.open_attempt("c1", out)
    reason = "the worker ended early (disk-full)"
    bench.store.fail("c1", batch.number, 1, reason=reason, now=time.time(), max_attempts=4)
    assert ("trouble", "node-full", "web1") in bench.look()
    assert bench.look() == []
    bench.store.update_crawl("c1", state=CrawlState.FINISHED, ended=time.time())
    assert ("well", "node-full", "web1") in bench.look()


def test_what_could_not_be_told_is_told_later_and_a_store_that_is_away_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble_log, "HOOK_RETRY_SECONDS", 0.0)
    good, bench.command = bench.command, "exit 3"
    bench.begin()
    bench.look(**DOWN)
    assert bench.look(100, **DOWN) == []
    bench.look(**DOWN)
    assert "\n".join(bench.messenger.complaints).count("ended with code 3") == 1
    bench.command = good

    def away(_self: object) -> None:
        raise StoreError("the store does not answer")

    monkeypatch.setattr(Workspace, "store_if_any", property(away))
    bench.begin()
    assert bench.look(**DOWN) == [("trouble", "node-down", "web1")]
    assert bench.look() == [("well", "node-down", "web1")]
    assert "\n".join(bench.messenger.complaints).count("does not answer") == 1


def test_a_job_is_told_of_that_came_with_the_store_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as early:
        early.setattr(Workspace, "store_if_any", None)
        assert bench.look() == []
    job = JobRecord(
        id="j",
        spider="good",
        project="shop",
        version="1",
        created=time.time(),
        node="web1",
        url="u",
    )
    bench.store.keep_jobs([replace(job, state=Outcome.FAILED, ended=time.time())])
    assert bench.look() == [("trouble", "job-failed", "shop/good")]


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--on-trouble"):
        EventHook(target="ftp://host/x", option="--on-trouble", event="a trouble").check()


@pytest.mark.parametrize(
    "text",
    [
        "", "5", "[" * 100_000, '{"told": {"x": 5}, "pending": [], "ends": {}}',
        '{"told": {}, "pending": [5], "ends": {"jobs": [0, []], "crawls": [0, []]}}',
        '{"told": {}, "pending": [], "ends": {"jobs": [Infinity, []], "crawls": [0, []]}}',
        '{"told": {}, "pending": [], "ends": {"jobs": [NaN, []], "crawls": [0, []]}}',
        '{"told": {"node-down web1": {"kind": "x"}}, "pending": [], "ends": {"jobs": [0, []], "crawls": [0, []]}}',
    ],
)  # fmt: skip
def test_a_file_of_troubles_that_is_broken_is_none(text: str, bench: Bench) -> None:
    (bench.root / ".sdist/troubles.json").write_text(text)
    bench.begin()
    assert bench.look() == []
    bench.look(**DOWN)
    assert bench.look(100, **DOWN) == [("trouble", "node-down", "web1")]


def test_no_end_is_missed_by_a_watch_that_is_started_again_or_whose_clock_was_wrong(
    bench: Bench,
) -> None:
    now = float(int(time.time()))
    job = JobRecord(
        id="one", spider="s", project="shop", version="1", created=now - 9.4, node="web1", url="u"
    )
    bench.store.keep_jobs([job])
    assert bench.look() == []
    bench.begin()
    bench.store.keep_jobs([replace(job, state=Outcome.FAILED, ended=time.time())])
    assert bench.look() == [("trouble", "job-failed", "shop/s")]
    watch = EndWatch(since=now + 1e8)
    assert watch.new([("a", now, True)], now) == {"a"}
