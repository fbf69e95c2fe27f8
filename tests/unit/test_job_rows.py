"""Jobs as documents: those that nodes list and those that the store remembers, and how each ended."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from scrapyd_dist.errors import ConnectionRefused, NothingMatched, StoreError
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.joblogs.verdict import NEEDLESS
from scrapyd_dist.jobs.job_list import JobFilter
from scrapyd_dist.jobs.job_rows import JobChoice, list_jobs, newest_first
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.jobs.leaving_nodes import read_last_ends
from scrapyd_dist.messenger import NoMessenger
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, Chunk, Job, Jobs, JobState
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.ports.rows import Door

NODE = Node.parse("http://web1:6800/", name="web1")
NOW = datetime.now(timezone.utc).replace(microsecond=0)
HERE = NOW.astimezone().utcoffset() or timedelta()
LOCAL = NOW.astimezone().replace(tzinfo=None)
RECORD = JobRecord(
    id="easy-1", spider="easy", project="shop", version="1", created=1.0, url=NODE.url, node="web1", labels=("night=1",)
)  # fmt: skip
LOG = b"""\
2026-11-20 12:00:10 [scrapy.statscollectors] INFO: Dumping Scrapy stats:
{'item_scraped_count': 98, 'response_received_count': 101}
2026-11-20 12:00:10 [scrapy.core.engine] INFO: Spider closed (finished)
"""


def job(name: str, state: JobState, began: int = 0, ended: int = 0) -> Job:
    """A job of the node; began, ended: minutes ago, by its clock."""
    times: dict[str, Any] = {
        "start_time": LOCAL - timedelta(minutes=began) if began else None,
        "end_time": LOCAL - timedelta(minutes=ended) if ended else None,
    }
    return Job(id=name, project="shop", spider=name.partition("-")[0], state=state, **times)


class NodeOfThree:
    """A node with a job that waits, one that runs and one that is over; all of the same log."""

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        if node.name == "web2":
            raise ConnectionRefused.at(str(node))
        if call.path == "listjobs.json":
            return Jobs(
                pending=(job("hard-3", JobState.PENDING),),
                running=(job("hard-2", JobState.RUNNING, began=5),),
                finished=(job("easy-1", JobState.FINISHED, began=90, ended=80),),
            )
        return Chunk(body=LOG, start=0, total=len(LOG), date=NOW, modified=NOW)


class Complaints(NoMessenger):
    """Keeps the complaints."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def complain(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "store.db")) as made:
        made.keep_jobs([RECORD])
        yield made


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def site(tmp_path: Path, store: Store, complaints: Complaints) -> JobSite:
    return JobSite(
        root=tmp_path, sender=NodeOfThree(), find_store=lambda: store, messenger=complaints
    )


def states(site: JobSite, **chosen: Any) -> dict[str, str]:
    found = list_jobs(site, JobFilter(nodes=[NODE]), JobChoice(**chosen))
    return {row["job"]: row["state"] for row in found.rows}


def test_a_job_of_a_node_that_is_back_at_another_address_has_one_row(
    site: JobSite, store: Store
) -> None:
    gone = replace(RECORD, id="easy-0", state=Outcome.FAILED, ended=2.0)
    store.keep_jobs([RECORD, gone])
    back = Node.parse("http://web1:6801/", name="web1", local=True)
    with_its_port = Node.parse(NODE.url, name="web2", local=True)
    for nodes in ([back], [back, with_its_port]):
        for names in ([], ["easy-1", "easy-0"]):
            found = list_jobs(site, JobFilter(nodes=nodes), JobChoice(), names)
            rows = [row for row in found.rows if row["spider"] == "easy"]
            assert [(row["job"], row["node"], row["version"]) for row in rows] == [
                ("easy-1", "web1", "1"),
                ("easy-0", "web1", "1"),
            ]
            assert rows[0]["labels"] == ["night=1"]
    # A node of scrapy.cfg may be another server there: only what it lists is on it.
    moved = replace(back, local=False)
    found = list_jobs(site, JobFilter(nodes=[moved]), JobChoice())
    reasons = {row["job"]: row["reason"] for row in found.rows if row["spider"] == "easy"}
    assert reasons == {"easy-1": "", "easy-0": ""}


def test_all_jobs_are_listed_with_what_they_did(site: JobSite, store: Store) -> None:
    found = list_jobs(site, JobFilter(nodes=[NODE]), JobChoice())
    document = found.document()
    assert (document["nodes"], document["unreached"]) == (1, [])
    pending, running, over = document["jobs"]
    assert (pending["job"], pending["state"], pending["started"]) == ("hard-3", "pending", None)
    assert (running["state"], running["labels"]) == ("running", [])
    assert (over["state"], over["pages"], over["items"]) == ("finished", 101, 98)
    assert (over["duration_s"], over["labels"], over["version"]) == (600.0, ["night=1"], "1")
    (kept,) = store.jobs()
    assert (kept.state, kept.items) == (Outcome.FINISHED, 98), "how it ended is written down"


def test_a_job_of_which_nothing_is_known_is_as_old_as_its_post(site: JobSite, store: Store) -> None:
    lost = replace(RECORD, id="easy-0", url="http://gone:6800", posted=NOW.timestamp() - 9000)
    store.keep_jobs([lost])
    found = list_jobs(site, JobFilter(nodes=[NODE]), JobChoice())
    newest = newest_first(found.rows)
    assert [row["job"] for row in newest] == ["hard-3", "hard-2", "easy-1", "easy-0"]
    assert newest[-1]["scheduled"] is not None


def test_workers_that_never_worked_are_left_out_unless_asked_for(
    site: JobSite, store: Store
) -> None:
    worker = replace(
        RECORD, id="six.w1.a1", state=Outcome.CANCELLED, ended=NOW.timestamp(), reason=NEEDLESS
    )
    store.keep_jobs([worker])
    found = list_jobs(site, JobFilter(nodes=[NODE]), JobChoice())
    assert ("six.w1.a1" in {row["job"] for row in found.rows}, found.needless) == (False, 1)
    assert states(site, states=frozenset({Outcome.CANCELLED})) == {"six.w1.a1": "cancelled"}
    named = list_jobs(site, JobFilter(nodes=[NODE]), JobChoice(), ["six.w1.a1"])
    assert [row["job"] for row in named.rows] == ["six.w1.a1"]


def test_workers_that_never_worked_take_no_place_of_others(site: JobSite, store: Store) -> None:
    workers = [
        replace(
            ended(0, minutes=1), id=f"six.w{number}.a1", state=Outcome.CANCELLED, reason=NEEDLESS
        )
        for number in range(9)
    ]
    store.keep_jobs(workers)
    assert set(states(site, newest=2)) == {"hard-3", "hard-2", "easy-1"}, "there are no others"
    store.keep_jobs([ended(number, minutes=10 * number) for number in range(1, 5)])
    assert {"old-1", "old-2"} <= set(states(site, newest=2))


def test_the_ends_on_a_node_that_leaves_are_written_down(site: JobSite, store: Store) -> None:
    runs = replace(RECORD, id="hard-2", spider="hard")
    elsewhere = replace(RECORD, id="easy-9", url="http://web2:6800")
    store.keep_jobs([runs, elsewhere])
    left = read_last_ends(site, [NODE])
    assert [record.id for record in left] == ["hard-2"]
    assert {record.id: record.state.value for record in store.jobs()} == {
        "easy-1": "finished",
        "hard-2": "pending",
        "easy-9": "pending",
    }


def test_jobs_are_chosen_by_state_label_time_and_number(site: JobSite) -> None:
    assert states(site, states=frozenset({Outcome.PENDING})) == {"hard-3": "pending"}
    assert states(site, labels=["night"]) == {"easy-1": "finished"}
    assert states(site, since=timedelta(hours=1)) == {"hard-3": "pending", "hard-2": "running"}
    assert states(site, most=1) == {"hard-3": "pending"}


def ended(number: int, minutes: int) -> JobRecord:
    """A job that its node has forgotten, and that ended so many minutes ago."""
    at = time.time() - 60 * minutes
    return replace(
        RECORD, id=f"old-{number}", spider="old", state=Outcome.FAILED, started=at - 60, ended=at
    )


def test_of_many_remembered_jobs_only_the_last_are_read(
    site: JobSite, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep_jobs([ended(number, minutes=number) for number in range(1, 60)])
    read: list[str] = []
    judge = Door.job

    def noted(door: Door, name: Any, kept: Any) -> JobRecord:
        read.append(str(name))
        return judge(door, name, kept)

    monkeypatch.setattr(Door, "job", noted)
    found = states(site, newest=2)
    assert set(found) == {"hard-3", "hard-2", "easy-1", "old-1", "old-2"}
    assert set(read) == {"easy-1", "old-1", "old-2"}
    read.clear()
    assert "old-9" in states(site, since=timedelta(minutes=30))
    assert "old-31" not in read
    read.clear()
    named = list_jobs(site, JobFilter(nodes=[NODE]), JobChoice(), ["old-30", "easy-1"])
    assert [row["job"] for row in named.rows] == ["old-30", "easy-1"]
    assert {*read} <= {"old-30", "easy-1"}
    with pytest.raises(NothingMatched):
        list_jobs(site, JobFilter(nodes=[NODE]), JobChoice(), ["none"])


def test_a_node_that_does_not_answer_is_named(site: JobSite) -> None:
    nodes = [NODE, Node.parse("http://web2:6800/", name="web2")]
    found = list_jobs(site, JobFilter(nodes=nodes, spider="hard"), JobChoice())
    assert ([row["job"] for row in found.rows], found.listed.exit_code) == (["hard-3", "hard-2"], 3)
    assert "web2" in found.document()["unreached"][0]


def test_jobs_are_listed_also_when_the_store_cannot_be_written(
    site: JobSite, store: Store, complaints: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise StoreError("the disk is full.")

    monkeypatch.setattr(store, "keep_jobs", full)
    assert states(site)["easy-1"] == "finished"
    assert store.jobs() == [RECORD]
    assert complaints.texts == ["How jobs ended is not remembered: the disk is full."]
