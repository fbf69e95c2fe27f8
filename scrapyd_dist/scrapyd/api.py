"""Scrapyd's HTTP API as values: one function per page gives the Call that asks it and reads its reply. Rule: no IO."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from scrapyd_dist.scrapyd.call import SLOW_TIMEOUT, TIMEOUT, Call, Upload
from scrapyd_dist.scrapyd.jobargs import RESERVED_ARGS, check_job
from scrapyd_dist.scrapyd.rawfile import Chunk, fetch, serves_items, serves_logs, tail
from scrapyd_dist.scrapyd.reply import Document, Reply, document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = [
    "RESERVED_ARGS",
    "SLOW_TIMEOUT",
    "TIMEOUT",
    # what is asked, and what comes back
    "Call",
    "Chunk",
    "Job",
    "JobState",
    "Jobs",
    "Load",
    "Reply",
    # one function per page
    "addversion",
    "cancel",
    "daemonstatus",
    "delproject",
    "delversion",
    "fetch",
    "listjobs",
    "listprojects",
    "listspiders",
    "listversions",
    "schedule",
    "serves_items",
    "serves_logs",
    "status",
    "tail",
]


class JobState(str, Enum):
    """What Scrapyd says about a job. "finished" is how it ended in no way: see outcome."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a node has to do."""

    pending: int
    running: int
    #: how many finished jobs it still remembers
    finished: int
    node_name: str
    #: the node's clock, UTC, whole seconds
    date: datetime | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row of a node's job list. Times are the node's local ones, without a zone."""

    id: str
    project: str
    spider: str
    state: JobState
    #: only while running
    pid: int | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    #: path from the server's root, without a proxy's prefix; None once the file is gone
    log_url: str | None = None
    #: these three only while pending
    version: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    args: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """A node's job list; finished ones newest first, and only as many as it remembers."""

    pending: tuple[Job, ...]
    running: tuple[Job, ...]
    finished: tuple[Job, ...]


def daemonstatus() -> Call[Load]:
    """How many jobs are pending, running and remembered as finished."""

    def read(reply: Reply) -> Load:
        doc = document(reply)
        return Load(
            pending=doc.number("pending"),
            running=doc.number("running"),
            finished=doc.number("finished"),
            node_name=doc.text("node_name"),
            date=reply.date,
        )

    return Call(path="daemonstatus.json", read=read)


def schedule(
    project: str,
    spider: str,
    *,
    jobid: str,
    version: str | None = None,
    settings: Mapping[str, str] | None = None,
    args: Mapping[str, str] | None = None,
    priority: float | None = None,
) -> Call[str]:
    """Start a job under an id of our choice; gives that id. Posting it twice runs it twice.

    Raises:
        ConfigError: what is asked would be lost by the node without a word, or fail there for certain.
    """
    settings, args = settings or {}, args or {}
    check_job(jobid, settings, args)
    data = [("project", project), ("spider", spider), ("jobid", jobid)]
    if version is not None:
        data.append(("_version", version))
    if priority is not None:
        data.append(("priority", repr(float(priority))))
    data += [("setting", f"{name}={value}") for name, value in settings.items()]
    data += args.items()
    return Call(
        path="schedule.json",
        method="POST",
        data=tuple(data),
        read=lambda reply: document(reply).text("jobid"),
        idempotent=False,
        timeout=SLOW_TIMEOUT,
    )


def status(job: str, project: str | None = None) -> Call[JobState | None]:
    """The state of a job; None = the node knows no such job (any more). Scrapyd 1.5 and later."""
    return Call(
        path="status.json",
        params=_given(job=job, project=project),
        read=lambda reply: _state(document(reply), "currstate"),
    )


def cancel(project: str, job: str, signal: str = "INT") -> Call[JobState | None]:
    """Take a pending job out of the queue, or signal a running one; gives the state it was in, None = unknown.

    A finished job is unknown here too. INT and TERM end a job in order; a second one at once.
    """
    return Call(
        path="cancel.json",
        method="POST",
        data=_given(project=project, job=job, signal=signal),
        read=lambda reply: _state(document(reply), "prevstate"),
        # a second INT makes a job that is closing stop at once
        idempotent=False,
    )


def listprojects() -> Call[tuple[str, ...]]:
    """The names of the projects of a node."""
    return Call(path="listprojects.json", read=lambda reply: document(reply).texts("projects"))


def listversions(project: str) -> Call[tuple[str, ...]]:
    """The versions of a project, in Scrapyd's order: the last one is its default. An unknown project has none."""
    return Call(
        path="listversions.json",
        params=_given(project=project),
        read=lambda reply: document(reply).texts("versions"),
    )


def listspiders(project: str, version: str | None = None) -> Call[tuple[str, ...]]:
    """The spiders of a version; the node imports the project for it when asked for the first time."""
    return Call(
        path="listspiders.json",
        params=_given(project=project, _version=version),
        read=lambda reply: document(reply).texts("spiders"),
        timeout=SLOW_TIMEOUT,
    )


def listjobs(project: str | None = None) -> Call[Jobs]:
    """The job list. It echoes the settings and arguments of pending jobs, whole batches included."""

    def read(reply: Reply) -> Jobs:
        doc = document(reply)
        return Jobs(
            pending=tuple(_pending(row) for row in doc.documents("pending")),
            running=tuple(_started(row, JobState.RUNNING) for row in doc.documents("running")),
            finished=tuple(_started(row, JobState.FINISHED) for row in doc.documents("finished")),
        )

    return Call(path="listjobs.json", params=_given(project=project), read=read)


def addversion(project: str, version: str, egg: bytes) -> Call[int]:
    """Upload an egg; gives the number of its spiders.

    A node that refuses it with `ApiRefused` keeps it all the same, and may make it the default: delete it then.
    """
    return Call(
        path="addversion.json",
        method="POST",
        data=_given(project=project, version=version),
        upload=Upload(name="egg", filename="project.egg", content=egg),
        read=lambda reply: document(reply).number("spiders"),
        timeout=SLOW_TIMEOUT,
    )


def delversion(project: str, version: str) -> Call[None]:
    """Delete one version of a project. One that is not there is refused."""
    return Call(
        path="delversion.json", method="POST", data=_given(project=project, version=version), read=_read_nothing
    )


def delproject(project: str) -> Call[None]:
    """Delete a project with all its versions. One that is not there is refused."""
    return Call(path="delproject.json", method="POST", data=_given(project=project), read=_read_nothing)


def _given(**values: str | None) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in values.items() if value is not None)


def _read_nothing(reply: Reply) -> None:
    document(reply)


def _state(doc: Document, name: str) -> JobState | None:
    if name not in doc.values:
        raise doc.wrong(name)
    if not doc.has(name):
        return None
    try:
        return JobState(doc.text(name))
    except ValueError as e:
        raise doc.wrong(name) from e


def _pending(row: Document) -> Job:
    return Job(
        id=row.text("id"),
        project=row.text("project"),
        spider=row.text("spider"),
        state=JobState.PENDING,
        version=row.text("version") if row.has("version") else None,
        # Scrapyd 1.5 was the first to show these
        settings=row.mapping("settings") if row.has("settings") else {},
        args=row.mapping("args") if row.has("args") else {},
    )


def _started(row: Document, state: JobState) -> Job:
    return Job(
        id=row.text("id"),
        project=row.text("project"),
        spider=row.text("spider"),
        state=state,
        pid=row.number("pid") if row.has("pid") else None,
        start_time=row.time("start_time"),
        end_time=row.time("end_time") if state is JobState.FINISHED else None,
        log_url=row.text("log_url") if row.has("log_url") else None,
    )
