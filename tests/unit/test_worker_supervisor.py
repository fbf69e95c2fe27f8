"""Workers: on which nodes they start, and what is known of those that an earlier process has started."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from rig.members import member, report
from rig.steps import growth

from scrapyd_dist.batches import Attempt, WorkerEntry
from scrapyd_dist.frontier.backlog import WorkerRequest
from scrapyd_dist.scheduling import (
    collector,
    foreign_projects,
    node_state,
    scheduler_state,
    worker_supervisor,
)
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.foreign_projects import ForeignProjects
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import JobRun, NodeState
from scrapyd_dist.scheduling.scaling_policy import ALL, CircuitBreaker
from scrapyd_dist.scheduling.scheduler_state import SchedulerLimits, SchedulerState
from scrapyd_dist.scheduling.worker_supervisor import WorkerSupervisor

MODULES = (collector, foreign_projects, node_state, scheduler_state, worker_supervisor)


def supervisor_of(members: list[NodeState], *entries: WorkerEntry) -> WorkerSupervisor:
    """Of nodes that are not called: what is posted is out at once."""
    state = SchedulerState(
        spec=JobRequest(crawl="c", home="c.1", project="p", spider="s", version="v"),
        members=members,
        store=AsyncMock(return_value=(list(entries), len(entries))),
        sender=Mock(),
        limits=SchedulerLimits(),
        reach=Mock(),
    )

    def send_out(out: JobRun, post: Coroutine[Any, Any, None]) -> None:
        post.close()
        out.member.add(out)

    state.send_out = send_out  # type: ignore[method-assign]
    return WorkerSupervisor(
        state=state,
        breaker=CircuitBreaker(attempts=4),
        collector=Mock(),
        others=ForeignProjects(state=state, terms=WorkerRequest(), key=None),
    )


def test_each_worker_starts_where_there_is_the_most_room_for_each_slot() -> None:
    members = [member("a", slots=4), member("b", slots=2, out=1), member("c", slots=2)]
    supervisor = supervisor_of(members)
    supervisor.start([ALL] * 4)
    assert [len(one.out) for one in members] == [3, 1, 1]
    supervisor.start([ALL] * 9)
    assert [len(one.out) for one in members] == [4, 2, 2]
    assert supervisor.last == 7


def test_a_worker_of_another_project_starts_on_a_node_where_it_may() -> None:
    members = [member("a"), member("b"), member("c")]
    supervisor = supervisor_of(members)
    pool = "@shop:login"
    supervisor.start([pool, pool, ALL, pool])
    introduced = [one for one in supervisor.state.workers() if one.introduces]
    assert [one.member.node.name for one in introduced] == ["a", "b", "c"]
    supervisor.start([pool, ALL])
    assert [len(one.out) for one in members] == [2, 1, 2], "its handshakes have not ended"


def test_a_start_costs_no_more_with_many_nodes() -> None:
    def start_all(number: int) -> Callable[[], object]:
        supervisor = supervisor_of([member(f"n{at}") for at in range(number)])
        return lambda: supervisor.start([ALL] * 2 * number)

    assert growth(start_all, 20, *MODULES) < 5


def test_what_workers_did_for_an_earlier_process_is_read_once_for_all() -> None:
    def recover_all(number: int) -> Callable[[], object]:
        members = [member(f"n{at}") for at in range(number)]
        entries = []
        accepted = []
        for at, one in enumerate(members):
            entry = WorkerEntry(number=at, job=f"w{at}", url=one.node.url, pool=ALL, since=1.0)
            entries.append(entry)
            attempt = Attempt(
                batch=at,
                number=1,
                job="j",
                node="n",
                url=one.node.url,
                worker=f"w{at}",
                report={"pages": 3},
            )
            accepted.append(attempt)
        supervisor = supervisor_of(members, *entries)

        def work() -> None:
            with pytest.raises(StopIteration):  # it waits for nothing
                supervisor.recover(accepted).send(None)
            assert all(one.recalled["pages"] == 3 for one in supervisor.state.workers())

        return work

    assert growth(recover_all, 20, *MODULES) < 5


def test_a_batch_that_is_home_is_found_at_its_worker_without_a_look_at_all_nodes() -> None:
    def bring_home_all(number: int) -> Callable[[], object]:
        members = [member(f"n{at}") for at in range(number)]
        supervisor = supervisor_of(members)
        supervisor.start([ALL] * number)
        state = supervisor.state
        home = Collector(state=state, folder=Path(), worked=Mock())
        workers = list(state.workers())

        def work() -> None:
            for at, worker in enumerate(workers):
                attempt = Attempt(
                    batch=at,
                    number=1,
                    job="j",
                    node="n",
                    url=worker.member.node.url,
                    worker=worker.job,
                )
                home._discount(attempt, report(pages=2))

        return work

    assert growth(bring_home_all, 20, *MODULES) < 5
