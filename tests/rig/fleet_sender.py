"""A sender for tests of a fleet: it answers for nodes by their names, and sends nothing."""

from datetime import datetime, timezone
from typing import Any, TypeVar

from scrapyd_dist.errors import ConnectionRefused, NodeError, NotFound
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, Job, Jobs, JobState, Load

T = TypeVar("T")


class FleetSender:
    """Answers by the name of the node and the path of the call; a node without answers is down.

    An answer that is an error is raised.
    """

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []  #: name of a node, path

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        self.asked.append((node.name, call.path))
        if node.name not in self.answers:
            raise ConnectionRefused.at(str(node))
        found = self.answers[node.name]
        if call.path not in found:
            raise NotFound.at(str(node))
        value: T = found[call.path]
        if isinstance(value, NodeError):
            raise value
        return value


def loaded(pending: int = 0, running: int = 0, finished: int = 0) -> dict[str, Any]:
    """The answers of a node that has so many jobs."""
    now = datetime.now(timezone.utc)
    load = Load(pending=pending, running=running, finished=finished, node_name="x", date=now)
    return {"daemonstatus.json": load, "listjobs.json": listed(pending, running, finished)}


def listed(pending: int = 0, running: int = 0, finished: int = 0) -> Jobs:
    """A list of so many jobs."""
    jobs = []
    for state, count in (
        (JobState.PENDING, pending),
        (JobState.RUNNING, running),
        (JobState.FINISHED, finished),
    ):
        made = [
            Job(id=f"{state.value}{number}", project="p", spider="s", state=state)
            for number in range(count)
        ]
        jobs.append(tuple(made))
    return Jobs(pending=jobs[0], running=jobs[1], finished=jobs[2])
