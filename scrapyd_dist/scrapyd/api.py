"""Scrapyd's HTTP API: one function per endpoint returns the Call that requests it and reads its reply. No IO."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from scrapyd_dist.scrapyd.call import SLOW_TIMEOUT, TIMEOUT, Call, Upload
from scrapyd_dist.scrapyd.jobs import RESERVED_ARGS, check_job
from scrapyd_dist.scrapyd.rawfile import Chunk, fetch, serves_items, serves_logs, tail
from scrapyd_dist.scrapyd.reply import Document, Reply, document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = [
    "RESERVED_ARGS",
    "SLOW_TIMEOUT",
    "TIMEOUT",
    # calls, and the values that replies are read into
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
    """The state of a job by Scrapyd; "finished" does not say how it ended, see `jobs.judged`."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load of a node: numbers of jobs."""

    pending: int
    running: int
    #: finished jobs that the node still remembers
    finished: int
    node_name: str
    #: the node's clock, UTC, whole seconds
    date: datetime | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row of a node's job list. Times are the node's local time, without a zone."""

    id: str
    project: str
    spider: str
    state: JobState
    #: only while running
    pid: int | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    #: path from the server's root, without a proxy's prefix; None after the file was removed
    log_url: str | None = None
    #: version, settings and args are listed only while pending
    version: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    args: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """A node's job list; finished jobs are newest first, and limited to those that the node remembers."""

    pending: tuple[Job, ...]
    running: tuple[Job, ...]
    finished: tuple[Job, ...]


def daemonstatus() -> Call[Load]:
    """Ask for the numbers of pending, running and remembered finished jobs."""

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
    """Start a job under the given id; the reply is that id. Posting it twice runs it twice.

    Raises:
        ConfigError: the node would silently lose the job, or it would certainly fail there.
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
    """Ask for the state of a job, None if the node does not know it (any more). Scrapyd 1.5 and later."""
    return Call(
        path="status.json",
        params=_given(job=job, project=project),
        read=lambda reply: _state(document(reply), "currstate"),
    )


def cancel(project: str, job: str, signal: str = "INT") -> Call[JobState | None]:
    """Remove a pending job from the queue, or signal a running one; the reply is its earlier state, None if unknown.

    A finished job is unknown here too. INT and TERM shut a job down gracefully; a second signal ends it at once.
    """
    return Call(
        path="cancel.json",
        method="POST",
        data=_given(project=project, job=job, signal=signal),
        read=lambda reply: _state(document(reply), "prevstate"),
        # a second INT ends a job that is shutting down at once
        idempotent=False,
    )


def listprojects() -> Call[tuple[str, ...]]:
    """Ask for the names of a node's projects."""
    return Call(path="listprojects.json", read=lambda reply: document(reply).texts("projects"))


def listversions(project: str) -> Call[tuple[str, ...]]:
    """Ask for a project's versions in Scrapyd's order, the default last. An unknown project has none."""
    return Call(
        path="listversions.json",
        params=_given(project=project),
        read=lambda reply: document(reply).texts("versions"),
    )


def listspiders(project: str, version: str | None = None) -> Call[tuple[str, ...]]:
    """Ask for the spiders of a version; for the first such call the node imports the project."""
    return Call(
        path="listspiders.json",
        params=_given(project=project, _version=version),
        read=lambda reply: document(reply).texts("spiders"),
        timeout=SLOW_TIMEOUT,
    )


def listjobs(project: str | None = None) -> Call[Jobs]:
    """Ask for the job list, which echoes settings and arguments of pending jobs, whole batches included."""

    def read(reply: Reply) -> Jobs:
        doc = document(reply)
        return Jobs(
            pending=tuple(_pending(row) for row in doc.documents("pending")),
            running=tuple(_started(row, JobState.RUNNING) for row in doc.documents("running")),
            finished=tuple(_started(row, JobState.FINISHED) for row in doc.documents("finished")),
        )

    return Call(path="listjobs.json", params=_given(project=project), read=read)


def addversion(project: str, version: str, egg: bytes) -> Call[int]:
    """Upload an egg; the reply is the number of its spiders.

    A node that refuses the egg with `ApiRefused` keeps it nevertheless, possibly as the default: delete it then.
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
    """Delete a version of a project. Refused if it does not exist."""
    return Call(
        path="delversion.json", method="POST", data=_given(project=project, version=version), read=_read_nothing
    )


def delproject(project: str) -> Call[None]:
    """Delete a project with all its versions. Refused if it does not exist."""
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
        # since Scrapyd 1.5
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
