"""What is remembered of plain jobs when their nodes have forgotten them; by label, in both stores, and for how long."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rig.crawls import store_of
from rig.fixtures import StartFleet
from rig.prometheus import parse
from rig.redis import RedisServer
from rig.shops import Shop

from scrapyd_dist.job_record import OPEN_ONLY, Outcome
from scrapyd_dist.jobs.job_judge import LOST


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, module_fleet: StartFleet) -> Iterator[Shop]:
    with closing(Shop(tmp_path_factory.mktemp("shop"), module_fleet(2, max_proc=2))) as made:
        yield made


def listed(shop: Shop, *options: str) -> dict[str, dict[str, object]]:
    """Job -> row of `sdist jobs`."""
    return {row["job"]: row for row in shop.run("jobs", *options, "--json").json()["jobs"]}


def test_a_job_is_listed_with_its_outcome_when_its_node_has_forgotten_it(shop: Shop) -> None:
    options = (
        "--on",
        "node1",
        "-a",
        "category=hats",
        "-s",
        "API_KEY=hush",
        "--label",
        "night=1",
        "--label",
        "hats",
    )
    (seen,) = shop.scheduled("good", *options)
    shop.wait_idle()
    row = listed(shop)[seen["job"]]
    assert (row["state"], row["remembered"], row["codes"]) == ("finished", False, {"200": 3})
    (unseen,) = shop.scheduled("broken", *options)
    shop.wait_idle()
    shop.nodes[0].restart()
    assert not shop.nodes[0].jobs("finished")
    rows = listed(shop, "--label", "night=1", "--since", "1h")
    assert (rows[seen["job"]]["remembered"], rows[seen["job"]]["state"]) == (True, "finished")
    (log,) = shop.nodes[0].logs_dir.glob(f"*/*/{unseen['job']}.log")
    log.unlink()  # as jobs_to_keep does: by now the store knows
    row = listed(shop)[unseen["job"]]
    assert (row["state"], row["pages"], row["errors"], row["remembered"]) == ("failed", 3, 3, True)
    assert (row["args"], row["settings"], row["labels"]) == (
        {"category": "hats"},
        ["API_KEY"],
        ["night=1", "hats"],
    )
    assert str(row["ended"]) >= str(row["started"] or "")
    assert "hush" not in (shop.project.path / ".sdist" / "store.db").read_bytes().decode("latin-1")
    assert listed(shop, "--label", "night=2") == {}
    shown = shop.run("jobs", "--label", "night", "--state", "failed").out
    assert ("remembered; ZeroDivisionError: " in shown, seen["job"] in shown) == (True, False)
    shop.run("watch", "--quiet", "--job", seen["job"], code=0)
    assert "category is hats" in shop.run("jobs", "grep", "category is", seen["job"]).out


@pytest.mark.black_box
def test_a_job_that_its_node_forgot_before_anything_looked_is_unknown(shop: Shop) -> None:
    (row,) = shop.scheduled("good", "--on", "node1")
    shop.wait_idle()
    (log,) = shop.nodes[0].logs_dir.glob(f"*/*/{row['job']}.log")
    shop.nodes[0].restart()
    log.unlink()
    assert listed(shop)[row["job"]]["state"] == "pending", "it may be on its way still"
    with closing(store_of(shop.project)) as store:
        (record,) = store.jobs(OPEN_ONLY)
        store.keep_jobs([replace(record, posted=time.time() - 3600)])
    told = listed(shop)[row["job"]]
    assert (told["state"], told["reason"]) == (
        "unknown", "its node forgot it before a command looked, and has no log of it",
    )  # fmt: skip


@pytest.mark.black_box
def test_what_goes_on_though_its_node_was_killed_runs_and_a_node_that_is_down_decides_nothing(
    shop: Shop,
) -> None:
    (row,) = shop.scheduled("slow", "--on", "node2")
    pid = shop.wait_pid(row["job"])
    shop.nodes[1].kill()
    told = listed(shop)[row["job"]]
    assert (told["state"], told["reason"]) == ("unknown", "its node does not tell")
    shop.nodes[1].restart()
    told = listed(shop)[row["job"]]
    assert (told["state"], told["reason"]) == ("running", LOST)
    assert pid in shop.nodes[1].kill_jobs()


@pytest.mark.black_box
def test_the_stats_of_a_window_are_those_of_all_jobs_that_ended_in_it(shop: Shop) -> None:
    options = ("--label", "window=1", "--on", "node2")
    shop.scheduled("good", "broken", *options)
    shop.wait_idle()
    shop.nodes[1].restart()
    done = shop.run(
        "jobs", "stats", "--since", "1h", "--label", "window=1", "--json", code=0
    ).json()
    assert (done["jobs"], done["states"]) == (2, {"finished": 1, "failed": 1})
    assert done["stats"]["downloader/response_status_count/200"] == {
        "jobs": 2,
        "sum": 6,
        "min": 3,
        "max": 3,
    }
    assert (
        done["stats"]["item_scraped_count"]["sum"],
        done["stats"]["log_count/ERROR"]["sum"],
    ) == (3, 3)
    only = shop.run(
        "jobs", "stats", "--since", "1h", "--label", "window", "--spider", "goo*", "--json", code=0
    ).json()
    assert only["states"] == {"finished": 1}
    assert (
        "Jobs: 1 failed, 1 finished."
        in shop.run("jobs", "stats", "--since", "1h", "--label", "window=1").err
    )
    for words in ((), ("x", "--since", "1h"), ("x", "--label", "y")):
        shop.run("jobs", "stats", *words).expect(2, "One of the two")
    numbers = parse(shop.run("nodes", "metrics", code=0).out)
    assert (
        numbers["sdist_recent_job_ends"].value(window="15m", spider="broken", state="failed") >= 1
    )


def test_what_is_remembered_is_told_where_no_node_is_named_and_none_runs(shop: Shop) -> None:
    (row,) = shop.scheduled("good", "--label", "alone=1")
    shop.wait_idle()
    listed(shop)
    shop.project.targets([])
    try:
        shown = shop.run("jobs", "--label", "alone", "--json", code=0)
        sums = shop.run("jobs", "stats", "--since", "1h", "--label", "alone", "--json", code=0)
        shop.run("jobs", "--node", "node1").expect(2, "names no node")
    finally:
        shop.project.targets(shop.nodes)
    assert [(one["job"], one["state"]) for one in shown.json()["jobs"]] == [
        (row["job"], "finished")
    ]
    assert (shown.err.count("names no node"), sums.json()["states"]) == (1, {"finished": 1})


@pytest.mark.black_box
def test_jobs_go_from_the_memory_after_a_time(shop: Shop) -> None:
    (row,) = shop.scheduled("good")
    shop.wait_idle()
    listed(shop)
    with closing(store_of(shop.project)) as store:
        (record,) = (one for one in store.jobs() if one.id == row["job"])
        store.keep_jobs(
            [
                replace(record, id=f"old-{days}", ended=time.time() - days * 86400)
                for days in (2, 30)
            ]
        )
        assert record.state is Outcome.FINISHED
    shop.scheduled("good")  # forgets what is older than DISTRIBUTED_KEEP_DAYS
    assert ("old-2" in listed(shop), "old-30" in listed(shop)) == (True, False)
    done = shop.run("crawls", "clean", "--older-than", "1d", "--dry-run", "--json", code=10)
    assert (done.json()["removed"], done.json()["jobs"]) == ([], 1)
    shop.run("crawls", "clean", "--older-than", "1d", code=0)
    assert "old-2" not in listed(shop)


@pytest.mark.black_box
def test_machines_that_share_a_server_share_the_memory(shop: Shop, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    settings = shop.project.path / "shop" / "settings.py"
    before = settings.read_text("utf-8")
    settings.write_text(
        f"{before}\nDISTRIBUTED_STORE = {server.url + '?prefix=memory:'!r}\n", "utf-8"
    )
    try:
        (row,) = shop.scheduled("good", "--on", "node1", "--label", "shared")
        waits = (
            "--limit",
            "spider=1",
            "--retries",
            "1",
            "--after",
            row["job"],
            "-s",
            "API_KEY=hush",
        )
        done = shop.start(
            "jobs", "schedule", "broken", "good", *waits, "--label", "shared", "--json"
        ).wait(90, code=3)
        assert {(one["spider"], one["state"], one["attempt"]) for one in done.json()["jobs"]} == {
            ("good", "finished", 1), ("broken", "failed", 2),
        }  # fmt: skip
        shop.nodes[0].restart()
        states = [str(one["state"]) for one in listed(shop, "--label", "shared").values()]
        assert sorted(states) == ["failed", "failed", "finished", "finished"]
    finally:
        settings.write_text(before, "utf-8")
        server.close()


@pytest.mark.black_box
def test_a_store_that_cannot_be_written_keeps_no_plain_job_from_starting(shop: Shop) -> None:
    settings = shop.project.path / "shop" / "settings.py"
    before = settings.read_text("utf-8")
    settings.write_text(f"{before}\nDISTRIBUTED_STORE = '/proc/none/store.db'\n", "utf-8")
    try:
        done = shop.run("jobs", "schedule", "good", "--json", code=0)
        waits = shop.run("jobs", "schedule", "good", "--retries", "1")
    finally:
        settings.write_text(before, "utf-8")
    assert done.json()["jobs"][0]["state"] == "scheduled"
    assert (
        done.err.count(
            "The jobs are not remembered: the store /proc/none/store.db cannot be opened"
        )
        == 1
    )
    waits.expect(2, "/proc/none/store.db")
    shop.wait_idle()
