"""Jobs that wait in the store: attempts on other nodes, limits, what follows what, and what a killed command left."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rig.crawls import store_of
from rig.documents import document_misfits
from rig.fixtures import StartFleet
from rig.nodes import free_port
from rig.shops import SPIDERS, Shop
from rig.waiting import wait_for

from scrapyd_dist.job_record import JobRecord, Outcome

FLAKY = """

import os, signal, sys

if {"dies=1", "attempt=1"} <= set(sys.argv):  # before Scrapy has a log
    os.kill(os.getpid(), signal.SIGKILL)


class Opens(Good):
    # Its first attempt never opens.

    name = "opens"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if kwargs.get("stops") and self.attempt == "1":
            signal.pause()


class Quiet(Good):
    name = "quiet"
    custom_settings = {"LOG_LEVEL": "ERROR"}


class Flaky(Good):
    name = "flaky"
    good_from = "2"

    def parse(self, response):
        self.logger.info("attempt %s, key %s", self.attempt, self.settings["API_KEY"])
        if int(self.attempt) < int(self.good_from):
            raise ZeroDivisionError("not yet")
        yield {"attempt": self.attempt}
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, module_fleet: StartFleet) -> Iterator[Shop]:
    nodes = [
        *module_fleet(1, max_proc=2),
        *module_fleet(1, max_proc=2, username="me", password="pass"),
    ]
    with closing(Shop(tmp_path_factory.mktemp("shop"), nodes, SPIDERS + FLAKY)) as made:
        yield made


def records(shop: Shop, label: str) -> list[JobRecord]:
    with closing(store_of(shop.project)) as store:
        return [one for one in store.jobs() if label in one.labels]


def rows_of(shop: Shop, *words: str, code: int) -> list[dict[str, Any]]:
    document = shop.start("jobs", "schedule", *words, "--json").wait(120, code=code).json()
    return checked("jobs schedule", document)


def checked(command: str, document: Any) -> list[dict[str, Any]]:
    """The jobs of a document, which has the command's shape."""
    assert document_misfits(command, document) == []
    rows: list[dict[str, Any]] = document["jobs"]
    return rows


@pytest.mark.real_start
def test_a_job_that_fails_is_tried_again_on_another_node_with_its_settings(shop: Shop) -> None:
    told = shop.project.path / "told.json"
    words = (
        "flaky",
        "--retries",
        "2",
        "-s",
        "API_KEY=hush",
        "--label",
        "retried",
        "--on-finish",
        f"cat > {told}",
    )
    (row,) = rows_of(shop, *words, code=0)
    document = json.loads(told.read_text("utf-8"))
    assert (document["exit_code"], document["items"], document["jobs"]) == (0, 3, [row])
    assert (row["state"], row["attempt"], row["items"], row["version"] is not None) == (
        "finished",
        2,
        3,
        True,
    )
    first, second = records(shop, "retried")
    assert (first.state, second.state, second.first, second.id) == (
        Outcome.FAILED, Outcome.FINISHED, first.id, row["job"],
    )  # fmt: skip
    assert {first.node, second.node} == {"node1", "node2"}
    assert first.sealed == second.sealed == ""
    assert "attempt 2, key hush" in shop.run("jobs", "grep", "attempt 2, key", second.id).out
    assert "hush" not in str([first, second]) + shop.run("jobs", "--json").out
    given_up = rows_of(shop, "flaky", "--retries", "1", "-a", "good_from=9", code=1)
    assert [(one["state"], one["attempt"]) for one in given_up] == [("failed", 2)]


@pytest.mark.black_box
def test_no_more_jobs_run_at_once_than_the_limit_says_and_none_is_left_out(shop: Shop) -> None:
    words = (
        "schedule",
        "good",
        "good",
        "broken",
        "--limit",
        "spider=1",
        "--label",
        "limited",
        "--json",
    )
    commands = [shop.start(*words) for _ in range(2)]
    for command in commands:
        rows = command.wait(120, code=3).json()["jobs"]
        assert sorted(one["state"] for one in rows) == ["failed", "finished", "finished"]
    assert len(records(shop, "limited")) == 6
    runs = sorted(
        (one.posted or 0.0, one.ended or 1e12)
        for one in records(shop, "limited")
        if one.spider == "good"
    )
    assert all(before[1] <= after[0] for before, after in pairwise(runs)), runs


@pytest.mark.black_box
def test_a_job_follows_others_and_never_starts_if_they_failed(shop: Shop) -> None:
    (broken,) = shop.scheduled("broken", "--label", "night=1")
    (row,) = rows_of(shop, "good", "--after", f"{broken['job']}:failed", code=0)
    assert row["state"] == "finished"
    (row,) = rows_of(shop, "good", "--after", "night=1", code=1)
    assert (row["state"], row["reason"]) == (
        "cancelled",
        "not started: night=1 did not finish well",
    )
    (row,) = rows_of(shop, "good", "--after", "night:over", "--after", row["job"] + ":over", code=0)
    assert row["state"] == "finished"


@pytest.mark.black_box
def test_what_a_killed_command_left_waiting_is_taken_up_and_may_be_cancelled(shop: Shop) -> None:
    words = (
        "--limit",
        "site=1",
        "--label",
        "site=x",
        "--label",
        "killed",
        "-s",
        "API_KEY=hush",
        "--retries",
        "1",
    )
    command = shop.start("jobs", "schedule", "slow", "flaky", "good", *words)

    def running() -> str:
        return next((one.id for one in records(shop, "killed") if one.state is Outcome.PENDING), "")

    slow = wait_for(running, 60, "the first job")
    shop.wait_pid(slow)
    os.kill(command.pid, signal.SIGKILL)
    waits = {one.spider: one for one in records(shop, "killed") if one.state is Outcome.WAITING}
    assert waits.keys() == {"flaky", "good"}
    assert "hush" not in (shop.project.path / ".sdist" / "store.db").read_bytes().decode("latin-1")
    waiting = checked("jobs list", shop.run("jobs", "--state", "waiting", "--json").json())
    listed = {row["spider"]: row for row in waiting}
    assert (listed["good"]["reason"], listed["good"]["node"]) == ("limit site=1", None)
    shop.run("watch", "--quiet", "--job", waits["good"].id).expect(
        2, "waits in the store (limit site=1)"
    )
    left_out = shop.scheduled("good", "--unless-running")
    assert (left_out[0]["state"], left_out[0]["reason"]) == ("skipped", "it waits in the store")
    cancelled = shop.run("jobs", "cancel", waits["good"].id, "--yes", "--json", code=0)
    gone = checked("jobs cancel", cancelled.json())
    assert [(row["job"], row["was"], row["state"]) for row in gone] == [
        (waits["good"].id, "waiting", "gone")
    ]
    shop.run("jobs", "cancel", slow, "--yes", code=0)
    rows = rows_of(shop, "--resume", code=3)
    assert {(row["spider"], row["state"], row["attempt"]) for row in rows} == {
        ("slow", "cancelled", 1), ("flaky", "finished", 2),
    }  # fmt: skip
    assert {one.spider: one.state for one in records(shop, "killed") if one.attempt == 1} == {
        "slow": Outcome.CANCELLED, "flaky": Outcome.FAILED, "good": Outcome.CANCELLED,
    }  # fmt: skip
    nothing = shop.start("jobs", "schedule", "--resume").wait(code=0)
    assert ("No job waits" in nothing.err, nothing.out) == (True, "")


@pytest.mark.black_box
def test_a_job_whose_log_does_not_tell_how_it_ended_is_not_tried_again(shop: Shop) -> None:
    (row,) = rows_of(shop, "quiet", "--retries", "2", code=1)
    assert (row["state"], row["attempt"]) == ("unknown", 1)


@pytest.mark.black_box
def test_a_job_that_is_killed_before_its_log_begins_is_tried_again_where_the_spider_is_known_to_have_logs(
    shop: Shop,
) -> None:
    (row,) = rows_of(shop, "good", "--retries", "1", "-a", "dies=0", code=0)
    assert (row["state"], row["attempt"]) == ("finished", 1)
    (row,) = rows_of(shop, "good", "--retries", "1", "-a", "dies=1", "--label", "dies", code=0)
    assert (row["state"], row["attempt"]) == ("finished", 2)
    assert [one.state for one in records(shop, "dies")] == [Outcome.DIED, Outcome.FINISHED]
    # This log tells nothing either, and the job has done all its work.
    (row,) = rows_of(
        shop, "good", "--retries", "1", "-a", "dies=0", "-s", "LOG_LEVEL=ERROR", code=1
    )
    assert row["attempt"] == 1


@pytest.mark.black_box
def test_a_job_is_tried_again_whose_node_was_killed_with_it_before_its_spider_opened(
    shop: Shop,
) -> None:
    assert rows_of(shop, "opens", "--retries", "1", code=0)[0]["attempt"] == 1
    command = shop.start(
        "jobs", "schedule", "opens", "--retries", "1", "-a", "stops=1", "--label", "opens", "--json"
    )

    def log() -> Path | None:
        names = [f"{one.id}.log" for one in records(shop, "opens") if one.posted]
        found = (
            path for node in shop.nodes for name in names for path in node.logs_dir.rglob(name)
        )
        return next((path for path in found if "Scrapy" in path.read_text("utf-8")), None)

    begun = wait_for(log, 60, "the log of the first attempt")
    (node,) = (node for node in shop.nodes if node.logs_dir in begun.parents)
    node.kill()
    node.kill_jobs()
    os.utime(
        begun, (time.time() - 600,) * 2
    )  # a job that no node lists may run on while its log grows
    node.restart()
    (row,) = command.wait(120, code=0).json()["jobs"]
    assert (row["state"], row["attempt"]) == ("finished", 2)
    assert [one.state for one in records(shop, "opens")] == [Outcome.DIED, Outcome.FINISHED]


@pytest.mark.black_box
def test_a_job_whose_node_is_gone_is_tried_again_elsewhere(shop: Shop) -> None:
    shop.project.settings(DISTRIBUTED_NODE_TIMEOUT=3)
    words = ("schedule", "slow", "-a", "pages=9", "--retries", "1", "--label", "moved", "--json")
    command = shop.start(*words)

    def out() -> JobRecord | None:
        return next((one for one in records(shop, "moved") if one.state is Outcome.PENDING), None)

    first = wait_for(out, 60, "the first attempt")
    shop.wait_pid(first.id)
    node = next(node for node in shop.nodes if node.name == first.node)
    node.kill()
    try:
        (row,) = command.wait(120, code=0).json()["jobs"]
    finally:
        node.kill_jobs()
        node.restart()
    assert (row["state"], row["attempt"]) == ("finished", 2)
    assert row["node"] != first.node
    assert "its node has not answered for" in records(shop, "moved")[0].reason


@pytest.mark.black_box
def test_a_job_whose_only_node_is_silent_is_left_in_the_store_and_not_waited_for_without_an_end(
    shop: Shop,
) -> None:
    shop.project.settings(DISTRIBUTED_NODE_TIMEOUT=2, DISTRIBUTED_FLEET_TIMEOUT=3)
    words = (
        "schedule",
        "slow",
        "-a",
        "pages=9",
        "--retries",
        "1",
        "--label",
        "stuck",
        "--on",
        "node1",
    )
    command = shop.start(*words)
    first = wait_for(
        lambda: next((one for one in records(shop, "stuck") if one.posted), None),
        60,
        "the first attempt",
    )
    shop.wait_pid(first.id)
    shop.nodes[0].kill()
    try:
        command.wait(60, code=5).expect(5, "sdist jobs schedule --resume")
    finally:
        shop.nodes[0].kill_jobs()
        shop.nodes[0].restart()
    assert [(one.state, one.attempt) for one in records(shop, "stuck")] == [
        (Outcome.UNKNOWN, 1),
        (Outcome.WAITING, 2),
    ]
    assert [(row["state"], row["attempt"]) for row in rows_of(shop, "--resume", code=0)] == [
        ("finished", 2)
    ]


@pytest.mark.black_box
def test_later_attempts_are_waited_for_and_cancelled_by_the_first_id_and_one_that_was_killed_stays_so(
    shop: Shop,
) -> None:
    signals = shop.project.path / ".sdist" / "signals.jsonl"
    signals.unlink(missing_ok=True)
    signals.symlink_to("/dev/null")  # as if another machine had sent them
    words = ("flaky", "--retries", "2", "-a", "pages=6000", "-s", "CLOSESPIDER_ERRORCOUNT=1")
    command = shop.start(
        "jobs", "schedule", *words, "-s", "DOWNLOAD_DELAY=0.3", "--label", "followed", "--json"
    )
    try:
        first = wait_for(
            lambda: next((one.id for one in records(shop, "followed") if one.posted), ""),
            60,
            "a job",
        )
        waiting = shop.start("watch", "--quiet", "--job", first, "--json")
        second = wait_for(
            lambda: next((one.id for one in records(shop, "followed") if one.first), ""),
            60,
            "attempt 2",
        )
        shop.wait_pid(second)
        assert waiting.running()
        shop.run("jobs", "cancel", first, "--kill", "--yes", code=0)
        (row,) = command.wait(60, code=1).json()["jobs"]
        (waited,) = waiting.wait(60, code=1).json()["jobs"]
    finally:
        signals.unlink()
    assert (row["job"], row["state"], row["attempt"]) == (second, "killed", 2)
    assert (waited["job"], waited["state"]) == (second, "killed")


def test_of_nodes_that_are_all_down_the_wait_for_a_job_tells_once(shop: Shop) -> None:
    shop.project.targets(
        [], f"[deploy:gone]\nurl = http://127.0.0.1:{free_port()}/\nproject = shop"
    )
    try:
        told = shop.start("watch", "--quiet", "--job", "any").wait(code=5).err
    finally:
        shop.project.targets(shop.nodes)
    assert told.count("connection refused") == 1


@pytest.mark.black_box
def test_drained_nodes_are_named_and_not_waited_for_without_an_end_and_one_that_joins_gets_the_job(
    shop: Shop, fleet: StartFleet
) -> None:
    shop.project.settings(DISTRIBUTED_FLEET_TIMEOUT=1)
    (third,) = fleet(1)
    third.name = "third"
    shop.project.targets([*shop.nodes, third])
    shop.run("deploy", "--all", code=0)
    shop.scheduled("good", "--on", "third", "--label", "drained")
    shop.project.targets(shop.nodes)
    (record,) = records(shop, "drained")
    with closing(store_of(shop.project)) as store:
        waits = replace(
            record, id="waits", state=Outcome.WAITING, posted=None, node="", url="", project=""
        )
        store.keep_jobs([waits])
    shop.run("nodes", "drain", "--all", code=0)
    try:
        shop.start("jobs", "schedule", "--resume").wait(60, code=5).expect(
            5, "node1, node2 are draining", "nodes resume"
        )
        shop.project.settings(DISTRIBUTED_FLEET_TIMEOUT=60)
        command = shop.start("jobs", "schedule", "--resume")
        command.wait_text("1 waiting")
        shop.project.targets([*shop.nodes, third])
        command.wait(120, code=0)
    finally:
        shop.project.targets(shop.nodes)
        shop.run("nodes", "resume", "--all", code=0)
    assert {(one.state, one.node) for one in records(shop, "drained") if one.id == "waits"} == {
        (Outcome.FINISHED, "third")
    }


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("good --limit x", 2, "no limit"),
        ("good --limit site=1", 2, "--label site=VALUE"),
        ("good --after nothing", 4, "--after nothing"),
        ("good --retries 1 -a attempt=3", 2, "attempt"),
        ("good --retries -1", 2, "retries"),
        ("good --resume", 2, "--resume"),
        ("--resume --retries 2", 2, "--resume"),
    ],
)
def test_what_could_never_start_is_refused(shop: Shop, line: str, code: int, said: str) -> None:
    shop.run("jobs", "schedule", *line.split()).expect(code, said)
    shop.wait_idle()
