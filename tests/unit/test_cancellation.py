"""Cancelling jobs: which are meant, what they are sent, and what is remembered of that."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import ConnectionRefused, NothingMatched, StillRuns
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.jobs.cancellation import Cancellation, CancelResult, SignalTerms
from scrapyd_dist.jobs.job_list import JobFilter
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.messenger import NoMessenger
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, Job, Jobs, JobState
from scrapyd_dist.store import Store, open_store

NODE = Node.parse("http://web1:6800", name="web1")
AWAY = Node.parse("http://web2:6800", name="web2")
WAITS = JobRecord(
    id="easy-9", spider="easy", project="shop", version="1", created=1.0, state=Outcome.WAITING
)
SENT = replace(
    WAITS, id="easy-1", state=Outcome.PENDING, posted=2.0, node="web1", url=NODE.url, retries=1
)


@dataclass
class OneNode:
    """A node that ends a job when it gets so many signals; another one does not answer."""

    jobs: dict[str, JobState]
    patience: int = 1  #: signals that a running job needs
    signals: list[tuple[str, str]] = field(default_factory=list)  #: job, signal

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        if node == AWAY:
            raise ConnectionRefused.at(str(node))
        match call.path:
            case "listjobs.json":
                rows = [
                    Job(id=name, project="shop", spider=name.partition("-")[0], state=state)
                    for name, state in self.jobs.items()
                ]
                running = tuple(row for row in rows if row.state is JobState.RUNNING)
                pending = tuple(row for row in rows if row.state is JobState.PENDING)
                return Jobs(pending=pending, running=running, finished=())
            case "cancel.json":
                fields = dict(call.data)
                name = fields["job"]
                self.signals.append((name, fields.get("signal", "")))
                if len(self.signals) >= self.patience or self.jobs[name] is JobState.PENDING:
                    self.jobs.pop(name, None)
                return None
            case "status.json":
                return self.jobs.get(dict(call.params)["job"])
        return None  # no log


@dataclass
class Producers:
    """The process of a crawl, which sends one more job while it stops."""

    node: OneNode
    stops: bool = True

    def runs(self, crawl: Crawl) -> bool:
        return not crawl.state.ended

    def stop(self, crawl: Crawl, wait: float) -> bool:
        self.node.jobs[f"{crawl.id}.b2.a1"] = JobState.PENDING
        return self.stops


class Listener(NoMessenger):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def node() -> OneNode:
    return OneNode({"easy-1": JobState.RUNNING, "hard-1": JobState.PENDING})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "store.db")) as made:
        made.keep_jobs([WAITS, SENT])
        yield made


@pytest.fixture
def site(tmp_path: Path, node: OneNode, store: Store) -> JobSite:
    return JobSite(root=tmp_path, sender=node, find_store=lambda: store, messenger=Listener())


def cancel(
    site: JobSite, *names: str, nodes: tuple[Node, ...] = (NODE,), stops: bool = True, **terms: Any
) -> CancelResult:
    wanted = JobFilter(nodes=nodes)
    producers = Producers(site.sender, stops=stops)  # type: ignore[arg-type]
    cancellation = Cancellation(site, wanted, names, SignalTerms(**terms), producers)
    return cancellation.carry_out(cancellation.plan())


def test_it_is_said_what_is_waited_for(site: JobSite, node: OneNode) -> None:
    shown: list[str] = []

    def end(text: str) -> None:
        shown.append(text)
        node.jobs.clear()

    node.patience = 2
    producers = Producers(node)
    cancellation = Cancellation(
        site, JobFilter(nodes=(NODE,)), ["easy-1"], SignalTerms(wait=9), producers
    )
    cancellation.carry_out(cancellation.plan(), end)
    assert shown == ["Waiting until 1 job has ended, at most 9 s (--wait): easy-1 (web1)"]


def test_all_jobs_are_cancelled_also_those_that_wait_in_the_store(
    site: JobSite, node: OneNode, store: Store
) -> None:
    result = cancel(site)
    rows = {row["job"]: (row["was"], row["state"]) for row in result.document()["jobs"]}
    assert rows == {
        "easy-9": ("waiting", "gone"),
        "easy-1": ("running", "gone"),
        "hard-1": ("pending", "gone"),
    }
    assert (node.jobs, result.exit_code) == ({}, 0)
    kept = {record.id: record for record in store.jobs()}
    assert kept["easy-9"].state is Outcome.CANCELLED
    assert (kept["easy-1"].state, kept["easy-1"].signals) == (Outcome.PENDING, ("INT",)), (
        "how a running job ends is judged by its log, and it is not tried again"
    )


def test_a_job_that_was_told_to_end_before_gets_no_second_signal(
    site: JobSite, node: OneNode
) -> None:
    node.patience = 2
    for _ in range(2):
        with pytest.raises(
            StillRuns, match=r"INT was sent\. Go on with: sdist jobs cancel --force"
        ):
            cancel(site, "easy-1", wait=0)
    assert node.signals == [("easy-1", "INT")]
    assert isinstance(site.messenger, Listener)
    assert any("no second INT is sent" in text for text in site.messenger.texts)
    cancel(site, "easy-1", wait=0, kill=True)
    assert node.signals[1:] == [("easy-1", "KILL")]


def test_a_crawl_is_cancelled_after_its_producer_with_what_that_sent_last(
    site: JobSite, node: OneNode, store: Store
) -> None:
    crawl = Crawl(id="c", project="shop", spider="s", created=1.0, state=CrawlState.WORKING)
    store.add_crawl(crawl)
    node.jobs["c.b1.a1"] = JobState.PENDING
    with pytest.raises(StillRuns, match="has not stopped within 0 seconds"):
        cancel(site, "c", stops=False, wait=0)
    assert node.signals == []
    result = cancel(site, "c")
    assert sorted(row.job for row in result.jobs) == ["c.b1.a1", "c.b2.a1"]


def test_what_means_nothing_is_an_error_and_so_is_what_is_over(site: JobSite, store: Store) -> None:
    with pytest.raises(NothingMatched, match="no job or crawl 'nosuch'"):
        cancel(site, "nosuch")
    store.add_crawl(
        Crawl(id="c", project="shop", spider="s", created=1.0, state=CrawlState.FINISHED)
    )
    with pytest.raises(NothingMatched):
        cancel(site, "c")


def test_a_node_that_does_not_answer_costs_the_exit_code_unless_all_named_are_found(
    site: JobSite,
) -> None:
    assert cancel(site, "hard-1", nodes=(NODE, AWAY)).exit_code == 0
    assert cancel(site, nodes=(NODE, AWAY)).exit_code == 3
