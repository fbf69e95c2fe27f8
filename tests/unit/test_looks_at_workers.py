"""Seconds between two polls of a node: they follow what its jobs have left to do."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from scrapyd_dist.batches import Batch, BatchState
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.monitor import NodeMonitor
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun


def job(kind: Any = JobRun, **given: Any) -> Any:
    batch = Batch(number=1, size=0, state=BatchState.RUNNING)
    member = NodeState(node=Node(name="one", url="http://127.0.0.1:1"))
    return kind(batch=batch, number=1, job="c.w1.a1", member=member, since=0.0, start_by=9e9, **given)


def pause(out: Any, *, closed: bool = False, waits: int = 0) -> float:
    out.member.out[out.job] = out
    desk: Any = SimpleNamespace(limits=SimpleNamespace(poll=1.0), closed=closed, backlog=SimpleNamespace(waiting=waits))
    return NodeMonitor(state=desk, jobs=desk, workers=desk, prepare=desk)._pause(out.member)


@pytest.mark.parametrize(("out", "seconds"), [(job(), 0.25), (job(WorkerRun, pool=""), 2.0)])
def test_a_worker_is_polled_now_and_then_and_a_batch_often(out: Any, seconds: float) -> None:
    assert pause(out) == seconds


@pytest.mark.parametrize(("closed", "waits", "seconds"), [(False, 0, 5.0), (True, 1, 5.0), (True, 0, 1.0)])
def test_a_job_with_far_to_go_is_polled_rarely_unless_the_crawl_ends_with_it(
    closed: bool, waits: int, seconds: float
) -> None:
    """N3: a job whose pace promises 1,000 s may end at once, when what its site held back comes at last."""
    now = time.time()
    far = WorkerReport(ended=False, updated=now, started=now - 100, requests=11, done=1, missed=0, pages=1, items=1)
    assert pause(job(report=far), closed=closed, waits=waits) == seconds
