"""Scrapyd nodes in memory, for tests of the scheduler alone: replies are judged by the real api."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scrapyd_dist.errors import NodeError, NoReply
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, JobState
from scrapyd_dist.scrapyd.reply import Reply

T = TypeVar("T")

_JOB = re.compile(r".*\.b(\d+)\.a(\d+)")


def file_reply(node: Node, call: Call[Any], data: bytes | None, **headers: str) -> Reply:
    """How a node answers a call of `api.fetch` for a file with these bytes; None: there is no such file."""
    if data is None:
        return Reply(where=str(node), path=call.path, status=404, body=b"File not found")
    begin, status = call.start or 0, 200
    body = data[begin : None if call.limit is None else begin + call.limit]
    if "Range" in call.headers:
        status = 206 if body else 416
        place = f"{begin}-{begin + len(body) - 1}" if body else "*"
        headers["content-range"] = f"bytes {place}/{len(data)}"
    for at in range(0, len(body) if call.sink else 0, 1000):
        call.sink(body[at : at + 1000])  # type: ignore[misc]  # it is one
    headers["content-type"] = "text/plain"
    return Reply(
        where=str(node),
        path=call.path,
        status=status,
        headers=headers,
        body=b"" if call.sink else body,
    )


@dataclass(kw_only=True)
class ModelJob:
    """A job as its node knows it."""

    id: str
    size: int
    settings: dict[str, str]
    args: dict[str, str]
    project: str = ""
    spider: str = ""
    version: str | None = None
    state: JobState = JobState.PENDING
    forgotten: bool = False  #: the node was restarted: it answers that it knows no such job

    @property
    def batch(self) -> int:
        match = _JOB.fullmatch(self.id)
        assert match
        return int(match[1])

    @property
    def told(self) -> dict[str, Any]:
        """What it was told as a job of one batch, or as a worker that leases."""
        told: dict[str, Any] = json.loads(
            self.settings.get("DISTRIBUTED_JOB") or self.settings["DISTRIBUTED_PULL"]
        )
        return told


@dataclass(kw_only=True)
class ModelNode:
    """One node: what it was asked, what it runs, and how it misbehaves."""

    name: str
    node: Node
    slots: int = 2
    quick: bool = True  #: a job is done as soon as it was posted
    down: type[NodeError] | None = None  #: what every call to it gives
    failing: dict[str, type[NodeError]] = field(
        default_factory=dict
    )  #: what calls of these paths give
    posts: list[str] = field(default_factory=list)  #: job ids, also those that were not taken
    cancels: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)  #: paths
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    versions: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  #: of other projects that it has
    #: what to do with the next posts instead of taking them
    plays: list[Callable[[ModelNode, ModelJob], None]] = field(default_factory=list)
    edit: Callable[[dict[str, Any]], None] = lambda _: (
        None
    )  #: changes a report before it is written

    # what a worker does

    def start(self, job: str, *, done: int = 0) -> None:
        """The job runs, and has reported `done` requests."""
        self.jobs[job].state = JobState.RUNNING
        self.report(job, state="running", done=done, items=done)

    def finish(
        self, job: str, *, part: bytes | None = None, sha256: str | None = None, **fields: Any
    ) -> None:
        """The job ends in order: its part is there, then its report."""
        found = self.jobs[job]
        found.state = JobState.FINISHED
        lines = b"".join(
            b'{"batch": %d, "item": %d}\n' % (found.batch, n) for n in range(found.size)
        )
        content = lines if part is None else part
        self.files[f"{self._base(job)}.jl"] = content
        described = {"file": f"{job}.jl", "items": found.size, "bytes": len(content)}
        described["sha256"] = sha256 or hashlib.sha256(content).hexdigest()
        usual = {
            "done": found.size,
            "items": found.size,
            "finish_reason": "finished",
            "part": described,
        }
        self.report(job, **{"state": "ended", **usual, **fields})

    def finish_all(self) -> None:
        """All that it has taken ends in order."""
        for job in list(self.jobs):
            self.finish(job)

    def die(self, job: str) -> None:
        """The job ends without a word more."""
        self.jobs[job].state = JobState.FINISHED

    def _base(self, job: str) -> str:
        return f"logs/_sdist/{self.jobs[job].told['home']}/{job}"

    def report(self, job: str, **fields: Any) -> None:
        """The job writes its report anew."""
        found = self.jobs[job]
        report = {
            "schema": 1,
            "updated": 1.0,
            "requests": found.size,
            "done": 0,
            "missed": 0,
            "pages": 0,
            "items": 0,
        }
        # All that a real worker tells comes back, so that a scheduler may ask for any of it.
        report |= {**found.told, **fields, "pages": fields.get("done", 0)}
        self.edit(report)
        self.files[f"{self._base(job)}.json"] = json.dumps(report).encode()

    # what Scrapyd does

    def answer(self, call: Call[T]) -> T:
        self.calls.append(call.path)
        if self.down is not None:
            raise self.down.at(str(self.node))
        if call.path in self.failing:
            raise self.failing[call.path].at(str(self.node))
        if call.path.startswith("logs/"):
            return call.read(
                file_reply(self.node, call, self.files.get(call.path.replace("%20", " ")))
            )
        return call.read(self._reply(self.pages()[call.path](call)))

    def pages(self) -> dict[str, Callable[[Call[Any]], dict[str, Any]]]:
        """What answers the calls of each path."""
        return {
            "daemonstatus.json": self._daemonstatus,
            "schedule.json": self._schedule,
            "status.json": self._status,
            "cancel.json": self._cancel,
            "listjobs.json": self._listjobs,
            "listversions.json": lambda call: {
                "versions": self.versions.get(dict(call.params)["project"], ())
            },
        }

    def _reply(self, values: dict[str, Any]) -> Reply:
        body = json.dumps({"status": "ok", "node_name": self.name, **values}).encode()
        return Reply(where=str(self.node), path="", status=200, body=body)

    def _daemonstatus(self, _: Call[Any]) -> dict[str, Any]:
        states = [job.state for job in self.jobs.values() if not job.forgotten]
        return {state.value: states.count(state) for state in JobState}

    def _schedule(self, call: Call[Any]) -> dict[str, Any]:
        data = dict(call.data)
        settings = dict(value.split("=", 1) for name, value in call.data if name == "setting")
        own = {"project", "spider", "jobid", "_version", "setting"}
        args = {name: value for name, value in data.items() if name not in own}
        job = ModelJob(
            id=data["jobid"], size=self.requests_in(settings), settings=settings, args=args, project=data["project"],
            spider=data["spider"], version=data.get("_version"),
        )  # fmt: skip
        self.posts.append(job.id)
        if self.plays:
            self.plays.pop(0)(self, job)
        else:
            self.take(job)
        return {"jobid": job.id}

    def requests_in(self, settings: dict[str, str]) -> int:
        """The requests that a job is sent; a batch is not encrypted here."""
        batch = json.loads(settings.get("DISTRIBUTED_START_URLS", "[]"))
        return len(batch["requests"] if isinstance(batch, dict) else batch)

    def take(self, job: ModelJob) -> None:
        self.jobs[job.id] = job
        if self.quick and "DISTRIBUTED_JOB" in job.settings:
            self.finish(job.id)

    def _status(self, call: Call[Any]) -> dict[str, Any]:
        job = self._found(dict(call.params))
        return {"currstate": None if job is None or job.forgotten else job.state.value}

    def _listjobs(self, call: Call[Any]) -> dict[str, Any]:
        """Without ended jobs: they are never requested here."""
        asked = dict(call.params).get("project")
        rows: dict[str, list[dict[str, Any]]] = {state.value: [] for state in JobState}
        for job in self.jobs.values():
            if (
                job.state is not JobState.FINISHED
                and asked in {None, job.project}
                and not job.forgotten
            ):
                times = {"start_time": "2026-01-01 00:00:00.000000"}
                rows[job.state.value].append(
                    {"id": job.id, "project": job.project, "spider": job.spider, **times}
                )
        return rows

    def _found(self, asked: dict[str, str]) -> ModelJob | None:
        """As Scrapyd looks: among the jobs of the project that it is asked for."""
        job = self.jobs.get(asked["job"])
        return job if job is not None and asked.get("project", job.project) == job.project else None

    def _cancel(self, call: Call[Any]) -> dict[str, Any]:
        self.cancels.append(dict(call.data)["job"])
        job = self._found(dict(call.data))
        if job is None or job.forgotten or job.state is JobState.FINISHED:
            return {"prevstate": None}
        before, job.state = job.state, JobState.FINISHED
        return {"prevstate": before.value}


class ModelSender:
    """`AsyncSender` over model nodes."""

    def __init__(self, nodes: Iterable[ModelNode]) -> None:
        self._nodes = {model.node.url: model for model in nodes}
        self.gate = asyncio.Event()  #: closed, it holds every post between the node and the answer
        self.gate.set()

    async def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        await asyncio.sleep(0)
        try:
            return self._nodes[node.url].answer(call)
        finally:
            if call.path == "schedule.json":
                await self.gate.wait()

    def close(self) -> None:
        pass


def model(name: str, *, slots: int = 2, quick: bool = True) -> ModelNode:
    """A node that works; its process slots are stated, as in scrapy.cfg."""
    return ModelNode(
        name=name, node=Node.parse(f"{name}:6800", name=name, slots=slots), slots=slots, quick=quick
    )


def taken_unheard(node: ModelNode, job: ModelJob) -> None:
    """The node takes the job, and its answer is lost."""
    node.take(job)
    raise NoReply.at(str(node.node))


def lost_unheard(node: ModelNode, job: ModelJob) -> None:
    """The node never sees the job, and the answer does not tell."""
    raise NoReply.at(str(node.node))


def refused_with(error: type[NodeError]) -> Callable[[ModelNode, ModelJob], None]:
    """The node certainly does not take the job."""

    def play(node: ModelNode, _: ModelJob) -> None:
        raise error.at(str(node.node))

    return play
