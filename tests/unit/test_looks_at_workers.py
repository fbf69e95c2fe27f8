"""How often a node is looked at where long-lived workers are: each look costs both sides, and the store tells more."""

from types import SimpleNamespace
from typing import Any

import pytest

from scrapyd_dist.batches import Batch, BatchState
from scrapyd_dist.coordination.fleet import Member, Out
from scrapyd_dist.coordination.looking import Looks
from scrapyd_dist.managing.frontdesk import Worker
from scrapyd_dist.nodes import Node


def fields(member: Member) -> dict[str, Any]:
    batch = Batch(number=1, size=0, state=BatchState.RUNNING)
    return {"batch": batch, "number": 1, "job": "c.w1.a1", "member": member, "since": 0.0, "start_by": 9e9}


@pytest.mark.parametrize(("made", "seconds"), [(Out, 0.25), (lambda **given: Worker(**given, lane=""), 2.0)])
def test_a_worker_is_looked_at_now_and_then_and_a_batch_often(made: Any, seconds: float) -> None:
    member = Member(node=Node(name="one", url="http://127.0.0.1:1"))
    member.out["c.w1.a1"] = made(**fields(member))
    desk: Any = SimpleNamespace(limits=SimpleNamespace(poll=1.0))
    looks = Looks(desk=desk, endings=desk, prepare=desk)
    assert looks._pause(member) == seconds
