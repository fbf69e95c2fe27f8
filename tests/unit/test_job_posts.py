"""Plain jobs on their way to a node: where each goes, what is kept of it, and what came of its post."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from scrapyd_dist.errors import (
    ApiRefused,
    ConfigError,
    ConnectionLost,
    NodeError,
    NothingMatched,
    StoreError,
)
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.jobs.job_fleet import JobFleet
from scrapyd_dist.jobs.job_posts import JobOrder, JobPoster, PlacedJob, name_each_spider, place_jobs
from scrapyd_dist.jobs.waiting_jobs import JobQueue, WaitingTerms
from scrapyd_dist.messenger import NO_MESSENGER, NoMessenger
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, Job, Jobs, JobState, Load
from scrapyd_dist.store import Store, open_store

NODES = [replace(Node.parse(f"web{number}:6800", name=f"web{number}"), project="shop") for number in (1, 2)]  # fmt: skip
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
KEY = bytes(range(32))


@dataclass
class Fleet:
    """Nodes with one version and two spiders; posts may fail."""

    failures: dict[str, NodeError] = field(default_factory=dict)  #: by the spider
    running: dict[str, str] = field(default_factory=dict)  #: the spider that runs, by its node
    silent: str = ""  #: the node that does not say what it runs
    posted: list[str] = field(default_factory=list)  #: ids of jobs

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        match call.path:
            case "daemonstatus.json":
                return Load(pending=0, running=0, finished=0, node_name=node.name, date=NOW)
            case "listversions.json":
                return ["v1"]
            case "listspiders.json":
                return ["easy", "hard"]
            case "schedule.json":
                fields = dict(call.data)
                self.posted.append(fields["jobid"])
                if error := self.failures.get(fields["spider"]):
                    raise error
                return fields["jobid"]
            case "status.json":
                return None
        if node.name == self.silent:
            raise ConnectionLost(f"{node.name}: the connection was lost")
        running: tuple[Job, ...] = ()
        if spider := self.running.get(node.name):
            running = (Job(id="job-1", spider=spider, project="shop", state=JobState.RUNNING),)
        return Jobs(pending=(), running=running, finished=())


@pytest.fixture
def sender() -> Fleet:
    return Fleet()


@pytest.fixture
def fleet(sender: Fleet) -> JobFleet:
    made = JobFleet(sender=sender, nodes=NODES, timeout=1.0)
    made.settle_version(None)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "store.db")) as made:
        yield made


def placed(fleet: JobFleet, *orders: JobOrder, **options: Any) -> list[PlacedJob]:
    return place_jobs(name_each_spider(orders, fleet), fleet, None, **options)


def poster(fleet: JobFleet, store: Store, messenger: NoMessenger = NO_MESSENGER) -> JobPoster:
    return JobPoster(fleet=fleet, make_store=lambda: store, keep_days=1.0, messenger=messenger)


def test_a_pattern_is_a_job_of_each_spider_and_all_nodes_get_one_each(fleet: JobFleet) -> None:
    jobs = placed(fleet, JobOrder(spider="*"))
    assert [(job.order.spider, job.node.name) for job in jobs] == [("easy", "web1"), ("hard", "web2")]  # fmt: skip
    jobs = placed(fleet, JobOrder(spider="easy"), all_nodes=True)
    assert [job.node.name for job in jobs] == ["web1", "web2"]
    with pytest.raises(NothingMatched):
        placed(fleet, JobOrder(spider="none"))


def test_a_job_is_kept_before_it_is_posted_and_again_when_it_was_refused(
    fleet: JobFleet, store: Store, sender: Fleet
) -> None:
    sender.failures = {"hard": ApiRefused("no such spider")}
    jobs = poster(fleet, store).post_jobs(placed(fleet, JobOrder(spider="*", labels=("night=1",))))
    assert [job.state for job in jobs] == ["scheduled", "failed"]
    kept = {record.spider: record for record in store.jobs()}
    assert sorted(record.id for record in kept.values()) == sorted(sender.posted)
    assert (kept["easy"].state, kept["easy"].labels) == (Outcome.PENDING, ("night=1",))
    assert kept["hard"].state is Outcome.FAILED
    assert kept["hard"].reason.startswith("not started: ")


def test_a_job_whose_answer_was_lost_fails_where_its_node_does_not_have_it(
    fleet: JobFleet, store: Store, sender: Fleet
) -> None:
    sender.failures = {"easy": ConnectionLost("web1: the connection was lost")}
    (job,) = poster(fleet, store).post_jobs(placed(fleet, JobOrder(spider="easy")))
    assert (job.state, job.lost, len(sender.posted)) == ("failed", False, 1)


def test_jobs_start_also_when_the_store_cannot_be_written(fleet: JobFleet, sender: Fleet) -> None:
    class Complaints(NoMessenger):
        texts: list[str] = []  # noqa: RUF012

        def complain(self, text: str) -> None:
            self.texts.append(text)

    def fail() -> Store:
        raise StoreError("the disk is full.")

    made = replace(poster(fleet, None), make_store=fail, messenger=Complaints())  # type: ignore[arg-type]
    (job,) = made.post_jobs(placed(fleet, JobOrder(spider="easy")))
    assert (job.state, sender.posted) == ("scheduled", [job.job])
    assert Complaints.texts == ["The jobs are not remembered: the disk is full."]


def test_a_spider_that_waits_in_the_store_is_left_out(fleet: JobFleet, store: Store) -> None:
    waits = JobRecord(id="easy-1", spider="easy", project="shop", version="v1", created=1.0, state=Outcome.WAITING)  # fmt: skip
    store.keep_jobs([waits])
    orders = name_each_spider([JobOrder(spider="*")], fleet)
    easy, hard = place_jobs(orders, fleet, store, unless_running=True)
    assert (easy.state, easy.reason, hard.state) == ("skipped", "it waits in the store", "scheduled")  # fmt: skip


def test_a_spider_that_runs_is_left_out_on_its_node_if_all_nodes_get_one(
    fleet: JobFleet, sender: Fleet
) -> None:
    sender.running = {"web2": "easy"}
    (job,) = placed(fleet, JobOrder(spider="easy"), unless_running=True)
    assert (job.node.name, job.reason) == ("web2", "it waits or runs on web2")

    jobs = placed(fleet, JobOrder(spider="*"), unless_running=True, all_nodes=True)
    states = {(job.order.spider, job.node.name): job.state for job in jobs}
    assert states == {
        ("easy", "web1"): "scheduled",
        ("easy", "web2"): "skipped",
        ("hard", "web1"): "scheduled",
        ("hard", "web2"): "scheduled",
    }


def test_a_node_that_gets_no_job_keeps_none_from_the_others(fleet: JobFleet, sender: Fleet) -> None:
    gone = ConnectionLost("web3: the connection was lost")
    fleet.errors[Node.parse("web3:6800", name="web3")] = gone
    with pytest.raises(NodeError, match="web3"):
        placed(fleet, JobOrder(spider="easy"), unless_running=True)
    jobs = placed(fleet, JobOrder(spider="easy"), unless_running=True, all_nodes=True)
    assert [job.state for job in jobs] == ["scheduled", "scheduled"]

    sender.silent = "web2"  # it would get one: what it runs has to be known
    with pytest.raises(NodeError, match="web2"):
        placed(fleet, JobOrder(spider="easy"), unless_running=True, all_nodes=True)


def test_jobs_wait_in_their_order_with_sealed_settings(fleet: JobFleet, store: Store) -> None:
    queue = JobQueue(store=store, key=KEY, keep_days=1.0)
    order = JobOrder(spider="*", settings={"TOKEN": "hush"})
    terms = WaitingTerms(retries=2, limits=("spider=1",))
    ids = queue.add(placed(fleet, order), "v1", terms)
    first, second = sorted(store.jobs(), key=lambda record: record.place)
    assert [first.id, second.id] == ids
    assert (first.state, first.retries, first.settings, first.url) == (Outcome.WAITING, 2, ("TOKEN",), "")  # fmt: skip
    assert "hush" not in str(first)
    assert first.sealed


@pytest.mark.parametrize(
    ("terms", "error", "said"),
    [
        (WaitingTerms(limits=("site=1",)), ConfigError, "has none"),
        (WaitingTerms(after=("nosuch",)), NothingMatched, "nosuch"),
    ],
)
def test_a_job_that_could_never_start_does_not_wait(
    fleet: JobFleet, store: Store, terms: WaitingTerms, error: type[Exception], said: str
) -> None:
    queue = JobQueue(store=store, key=KEY, keep_days=1.0)
    with pytest.raises(error, match=said):
        queue.add(placed(fleet, JobOrder(spider="easy")), "v1", terms)
    assert store.jobs() == []
