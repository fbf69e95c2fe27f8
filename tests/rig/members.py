"""Nodes as a scheduler knows them, and jobs that are out on them."""

from dataclasses import replace
from typing import Any

from scrapyd_dist.batches import Batch
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_capacity import NodeCapacity
from scrapyd_dist.scheduling.node_state import JobRun, NodeState
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scrapyd.api import Load


def member(
    name: str,
    *,
    slots: int | None = 2,
    out: int = 0,
    readiness: Readiness | None = None,
    **fields: Any,
) -> NodeState:
    """A node that has the code, and so many jobs out."""
    made = NodeState(
        node=Node.parse(f"{name}:6800", name=name, slots=slots),
        readiness=readiness or Readiness(prepared=True),
        **fields,
    )
    for number in range(out):
        put(made, number)
    return made


def put(where: NodeState, number: int, kind: Any = JobRun, **fields: Any) -> Any:
    """A job that is out there."""
    values: dict[str, Any] = {
        "batch": Batch(number=number, size=2),
        "number": 1,
        "since": 100.0,
        "start_by": 200.0,
    }
    out = kind(job=str(number), member=where, **{**values, **fields})
    where.add(out)
    return out


def report(**fields: Any) -> WorkerReport:
    counts = dict.fromkeys(("done", "missed", "pages", "items"), 0)
    return WorkerReport(**{"ended": False, "updated": 1.0, "requests": 10, **counts, **fields})


def load(running: int, pending: int = 0) -> Load:
    return Load(pending=pending, running=running, finished=0, node_name="n", date=None)


def paced(
    name: str,
    *,
    slots: int = 1,
    pace: float = 0.0,
    others: int = 0,
    to_do: tuple[int, ...] = (),
    **fields: Any,
) -> NodeState:
    """A node that has so many requests left in each of its jobs."""
    made = member(name, slots=slots, **fields)
    made.capacity = NodeCapacity(stated=slots, pace=pace, unproven=not pace, others=others)
    for number, left in enumerate(to_do):
        put(made, number, batch=Batch(number=1000 + number, size=left))
    return made


def node(name: str) -> NodeState:
    """A node that has the code, of which no slots are stated."""
    return member(name, slots=None)


def at_work(
    member: NodeState, number: int, done: int = 0, *, size: int = 1000, **fields: Any
) -> JobRun:
    """A job out there that has done so many of its requests."""
    seen = WorkerReport(
        ended=False, updated=1.0, requests=size, done=done, missed=0, pages=done, items=done
    )
    out = JobRun(batch=Batch(number=number, size=size), number=1, job=f"c.b{number}.a1", member=member, since=0.0,
              start_by=9.0, report=replace(seen, **fields))  # fmt: skip
    member.out[out.job] = out
    return out
