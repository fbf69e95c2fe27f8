"""The loop that starts waiting jobs: when it waits for nodes, and when it gives up."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from scrapyd_dist.errors import ConnectionRefused, NoNodeReachable
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.jobs.queue_runner import QueueNodes, QueueRunner
from scrapyd_dist.jobs.waiting_jobs import JobQueue
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.store import Store, open_store

NODE = replace(Node.parse("http://web1:6800", name="web1"), project="shop")
FIRST = JobRecord(
    id="easy-1", spider="easy", project="shop", version="1", created=1.0, state=Outcome.WAITING, retries=1
)  # fmt: skip
SECOND = replace(FIRST, id="easy-2", first="easy-1", attempt=2)
PATIENCE = 300.0
Happening = tuple[float, list[JobRecord]]


class SilentNode:
    """A node that does not answer."""

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        raise ConnectionRefused.at(str(node))


@dataclass
class Script:
    """What other processes do while the runner waits, and how late it is then."""

    store: Store
    happenings: list[Happening]  #: seconds by the clock, and the records as they are then
    now: float = 0.0
    shown: list[str] = field(default_factory=list)

    def pause(self, _seconds: float) -> None:
        self.now, records = self.happenings.pop(0)
        self.store.keep_jobs(records)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / "store.db")) as made:
        made.keep_jobs([FIRST])
        yield made


@pytest.fixture
def run(tmp_path: Path, store: Store) -> Callable[..., tuple[list[JobRecord], Script]]:
    """Runs a queue while these things happen; gives the last attempts and the script."""

    def run_queue(*happenings: Happening) -> tuple[list[JobRecord], Script]:
        script = Script(store, [*happenings])
        nodes = QueueNodes(
            find=lambda: [NODE],
            find_times=lambda _: {},
            timeout=1.0,
            patience=PATIENCE,
            long_patience=PATIENCE,
        )
        runner = QueueRunner(
            site=JobSite(root=tmp_path, sender=SilentNode(), find_store=lambda: store),
            queue=JobQueue(store=store, key=bytes(32), keep_days=1.0),
            nodes=nodes,
            own=["easy-1"],
            clock=lambda: script.now,
        )
        return runner.run(script.pause, script.shown.append), script

    return run_queue


Run = Callable[..., tuple[list[JobRecord], Script]]


def test_it_gives_up_when_no_node_has_been_there_for_long(run: Run) -> None:
    with pytest.raises(NoNodeReachable, match="web1"):
        run((PATIENCE, []), (PATIENCE + 1, []))


def test_the_time_without_nodes_begins_anew_after_nothing_has_waited(
    store: Store, run: Run
) -> None:
    begun = replace(FIRST, state=Outcome.PENDING, posted=2.0, node="web1", url=NODE.url)
    failed = begun.end(Outcome.FAILED, 3.0, "errors")
    cancelled = SECOND.end(Outcome.CANCELLED, 4.0, "")
    ended, script = run(
        (100.0, [begun]),  # by another process, which found a node
        (PATIENCE + 1, [failed, SECOND]),
        (PATIENCE + 2, [cancelled]),
    )
    assert [(record.id, record.state) for record in ended] == [("easy-2", Outcome.CANCELLED)]
    assert script.shown == [
        "jobs: 0 sent · 1 waiting (for a node)",
        "jobs: 1 sent · 0 waiting",
        "jobs: 0 sent · 1 waiting (for a node)",
    ]
