"""When a job is over for one who waits for it."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.joblogs import log_reads
from scrapyd_dist.jobs.job_judge import LOST, still_there
from scrapyd_dist.jobs.job_list import listed_again
from scrapyd_dist.jobs.job_wait import WaitedJobs
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, Chunk, Jobs
from scrapyd_dist.web.drawing import state_of_job


class ForgetfulNode:
    """A node that lists no job, and whose log of one was written to so many seconds ago."""

    def __init__(self, silent: float) -> None:
        self.silent = timedelta(seconds=silent)

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        now = datetime(2026, 11, 20, tzinfo=timezone.utc)
        if call.path == "listjobs.json":
            return Jobs(pending=(), running=(), finished=())
        return Chunk(body=b"x\n", start=0, total=2, date=now, modified=now - self.silent)


@pytest.mark.parametrize(("silent", "left"), [(100.0, ["easy-1"]), (200.0, [])])
def test_a_job_that_its_node_does_not_list_is_over_to_wait_when_it_is_to_jobs(
    silent: float, left: list[str]
) -> None:
    node = Node.parse("http://web1:6800/", name="web1")
    record = JobRecord(
        id="easy-1", spider="easy", project="shop", version="1", created=1.0, url=node.url
    )
    known, sender = {"easy-1": [listed_again(record, node)]}, ForgetfulNode(silent)
    assert (
        WaitedJobs(sender=sender, nodes=[node], names=("easy-1",), remembered=known).find_left()
        == left
    )
    seen = log_reads.read_log_end(sender, node, "logs/shop/easy/easy-1.log", timeout=1.0)
    assert (still_there(record, seen, 2.0) is not None) == bool(left)


def test_a_job_that_its_node_does_not_list_is_lost_at_once_unless_it_was_just_posted() -> None:
    node = Node.parse("http://web1:6800/", name="web1")
    record = JobRecord(
        id="easy-1", spider="easy", project="shop", version="1", created=100.0, url=node.url
    )
    reasons = []
    for now in (101.0, 130.0):
        verdict = still_there(record, None, now)
        assert verdict is not None
        reasons.append(verdict.reason)
    assert reasons == ["", LOST]
    seen = log_reads.read_log_end(
        ForgetfulNode(1.0), node, "logs/shop/easy/easy-1.log", timeout=1.0
    )
    began = still_there(record, seen, 101.0)
    assert began is not None
    assert state_of_job({"state": began.outcome.value, "reason": began.reason}) == "lost"
    assert state_of_job({"state": "running", "reason": ""}) == "running"
