"""Defines the calls of Scrapyd's HTTP API. No IO.

One function per endpoint returns the `Call` that requests it and reads its reply.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from scrapyd_dist.errors import NotFound, NotJson
from scrapyd_dist.scrapyd.jobs import check_job
from scrapyd_dist.scrapyd.reply import Document, Reply, content_range, document, judge_raw, moment

T = TypeVar("T")

#: timeout in seconds of a call that a node answers at once, unless it is reading an egg
TIMEOUT = 15.0
#: timeout in seconds of a call that makes the node run `scrapy list` (listspiders, the first
#: schedule of a version)
SLOW_TIMEOUT = 60.0
#: seconds without data after which a download fails; it has no total timeout: parts can be large,
#: and links slow
SILENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """Describes a request to an endpoint or file of a node, and reads its reply."""

    path: str  #: relative to the node's base, already quoted
    read: Callable[[Reply], T] = field(repr=False)
    method: str = "GET"
    params: tuple[tuple[str, str], ...] = ()
    #: form fields of a POST; names may repeat
    data: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: a file that makes the form a multipart one: the field's name, the file's name, its content
    upload: tuple[str, str, bytes] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    #: default timeout in seconds for the whole reply; with a sink, for the next bytes
    timeout: float = TIMEOUT
    start: int | None = None  #: first byte of a raw file to fetch, or None for any
    limit: int | None = None  #: maximum bytes of a raw file to fetch, or None for all
    #: called with the bytes of a raw file as they arrive, which are not kept then; not called for
    #: any other reply
    sink: Callable[[bytes], object] | None = field(default=None, repr=False)
    #: whether the reply echoes what was sent to jobs, which is shortened in a large one
    echoes: bool = False

    @property
    def target(self) -> str:
        """Return the path with its query."""
        if not self.params:
            return self.path
        return f"{self.path}?{urlencode(self.params)}"

    def body(self) -> tuple[str | None, bytes | None]:
        """Return content type and body of the request; (None, None) for a GET."""
        if self.upload is not None:
            from urllib3 import encode_multipart_formdata  # noqa: PLC0415 - only an upload needs it

            name, filename, content = self.upload
            file = (filename, content, "application/octet-stream")
            body, content_type = encode_multipart_formdata([*self.data, (name, file)])
            return content_type, body
        if self.method == "POST":
            return "application/x-www-form-urlencoded", urlencode(self.data).encode("ascii")
        return None, None


class JobState(str, Enum):
    """Names the state of a job by Scrapyd; `joblogs.verdict` says how a finished one ended."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class Load:
    """Gives the load of a node, in numbers of jobs."""

    pending: int
    running: int
    finished: int  #: finished jobs that the node still remembers
    node_name: str
    date: datetime | None  #: the node's clock, UTC, whole seconds


@dataclass(frozen=True, kw_only=True)
class Job:
    """Describes a row of a node's job list; its times are the node's local time, without a zone."""

    id: str
    project: str
    spider: str
    state: JobState
    pid: int | None = None  #: only while running
    start_time: datetime | None = None
    end_time: datetime | None = None
    #: path from the server's root, without a proxy's prefix; None if the file is gone
    log_url: str | None = None
    version: str | None = None  #: version, settings and args are listed only while pending
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    args: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Gives a node's job list.

    Finished jobs are newest first, and limited to those that the node remembers.
    """

    pending: tuple[Job, ...]
    running: tuple[Job, ...]
    finished: tuple[Job, ...]

    def state_of(self, job: str) -> JobState | None:
        """Return the state of a job, None if the node does not know it (any more).

        A finished job of the same id may belong to an earlier crawl of the same name.
        """
        for listed in (*self.running, *self.pending, *self.finished):
            if listed.id == job:
                return listed.state
        return None


def daemonstatus() -> Call[Load]:
    """Ask for the numbers of pending, running and remembered finished jobs."""

    def read(doc: Document) -> Load:
        """Return the load in the reply."""
        return Load(
            pending=doc.number("pending"),
            running=doc.number("running"),
            finished=doc.number("finished"),
            node_name=doc.text("node_name"),
            date=doc.reply.date,
        )

    return _get("daemonstatus", read)


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

    Raises `ConfigError` when the node would silently lose the job, or it would certainly fail
    there.
    """
    settings = settings or {}
    args = args or {}
    check_job(spider, jobid, settings, args)
    number = None if priority is None else repr(float(priority))
    data = _given(project=project, spider=spider, jobid=jobid, _version=version, priority=number)
    data += tuple(("setting", f"{name}={value}") for name, value in settings.items())
    data += tuple(args.items())
    return _post("schedule", lambda doc: doc.text("jobid"), data, timeout=SLOW_TIMEOUT)


def status(job: str, project: str | None = None) -> Call[JobState | None]:
    """Ask for the state of a job, None if the node does not know it (any more).

    Scrapyd 1.5 and later has this call.
    """
    return _get("status", lambda doc: _state(doc, "currstate"), job=job, project=project)


def cancel(project: str, job: str, signal: str = "INT") -> Call[JobState | None]:
    """Remove a pending job from the queue, or signal a running one.

    The reply is its earlier state, None if unknown; a finished job is unknown here too. INT and
    TERM shut a job down gracefully; a second signal ends it at once.
    """
    data = _given(project=project, job=job, signal=signal)
    return _post("cancel", lambda doc: _state(doc, "prevstate"), data)


def listprojects() -> Call[tuple[str, ...]]:
    """Ask for the names of the node's projects."""
    return _get("listprojects", lambda doc: doc.texts("projects"))


def listversions(project: str) -> Call[tuple[str, ...]]:
    """Ask for a project's versions in Scrapyd's order, the default last.

    An unknown project has none.
    """
    return _get("listversions", lambda doc: doc.texts("versions"), project=project)


def listspiders(project: str, version: str | None = None) -> Call[tuple[str, ...]]:
    """Ask for the spiders of a version; for the first such call the node imports the project."""
    return _get(
        "listspiders",
        lambda doc: doc.texts("spiders"),
        timeout=SLOW_TIMEOUT,
        project=project,
        _version=version,
    )


def listjobs(project: str | None = None) -> Call[Jobs]:
    """Ask for the job list, which echoes settings and arguments of pending jobs.

    A large one is shortened in them.
    """

    def read(doc: Document) -> Jobs:
        """Return the jobs in the reply, by state."""
        return Jobs(
            pending=_jobs(doc, JobState.PENDING),
            running=_jobs(doc, JobState.RUNNING),
            finished=_jobs(doc, JobState.FINISHED),
        )

    return replace(_get("listjobs", read, project=project), echoes=True)


def addversion(project: str, version: str, egg: bytes) -> Call[int]:
    """Upload an egg; the reply is the number of its spiders.

    A node that refuses the egg with `ApiRefused` keeps it nevertheless, possibly as the default:
    delete it then.
    """
    return _post(
        "addversion",
        lambda doc: doc.number("spiders"),
        _given(project=project, version=version),
        upload=("egg", "project.egg", egg),
        timeout=SLOW_TIMEOUT,
    )


def delversion(project: str, version: str) -> Call[None]:
    """Delete a version of a project. Refused if it does not exist."""
    return _post("delversion", lambda _doc: None, _given(project=project, version=version))


def delproject(project: str) -> Call[None]:
    """Delete a project with all its versions. Refused if it does not exist."""
    return _post("delproject", lambda _doc: None, _given(project=project))


def _get(
    page: str, read: Callable[[Document], T], *, timeout: float = TIMEOUT, **params: str | None
) -> Call[T]:
    return Call(
        path=f"{page}.json",
        params=_given(**params),
        read=lambda reply: read(document(reply)),
        timeout=timeout,
    )


def _post(
    page: str,
    read: Callable[[Document], T],
    data: tuple[tuple[str, str], ...],
    *,
    upload: tuple[str, str, bytes] | None = None,
    timeout: float = TIMEOUT,
) -> Call[T]:
    return replace(_get(page, read, timeout=timeout), method="POST", data=data, upload=upload)


def _given(**values: str | None) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in values.items() if value is not None)


def _state(doc: Document, name: str) -> JobState | None:
    if doc.values.get(name, "") is None:
        return None
    try:
        return JobState(doc.text(name))
    except ValueError as e:
        raise doc.wrong(name) from e


def _jobs(doc: Document, state: JobState) -> tuple[Job, ...]:
    """Return the jobs in one state."""
    return tuple(_job(row, state) for row in doc.documents(state.value))


def _job(row: Document, state: JobState) -> Job:
    if state is JobState.PENDING:  # settings and args since Scrapyd 1.5
        readers: dict[str, Callable[[str], Any]] = {
            "version": row.text,
            "settings": row.mapping,
            "args": row.mapping,
        }
    else:
        readers = {"pid": row.number, "log_url": row.text}
    values = {name: read(name) for name, read in readers.items() if row.has(name)}
    if state is not JobState.PENDING:
        values["start_time"] = row.time("start_time")
    if state is JobState.FINISHED:
        values["end_time"] = row.time("end_time")
    return Job(
        id=row.text("id"),
        project=row.text("project"),
        spider=row.text("spider"),
        state=state,
        **values,
    )


# raw files below /logs/ and /items/, fetched by Range, without decoding


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Holds a piece of a raw file; an empty body means that the file has not grown."""

    body: bytes = field(repr=False)  #: empty if the bytes went to a sink
    start: int  #: offset of the first byte in the file
    #: size of the whole file, if the server reports it; less than `start` if a shorter file has
    #: replaced it
    total: int | None
    date: datetime | None  #: the node's clock, UTC, whole seconds
    modified: datetime | None = None  #: when the file was last written, likewise


def home_page() -> Call[bytes]:
    """Ask for the node's page for people, HTML, which differs from version to version."""

    def read(reply: Reply) -> bytes:
        """Return the page."""
        if reply.status != 200:
            judge_raw(reply)
        return reply.body

    return Call(path="", read=read)


def fetch(
    path: str,
    *,
    start: int | None = None,
    limit: int | None = None,
    sink: Callable[[bytes], object] | None = None,
) -> Call[Chunk | None]:
    """Fetch a raw file, such as `logs/PROJECT/SPIDER/JOB.log`.

    It is fetched from byte `start` on, at most `limit` bytes. The reply is None if there is no such
    file. `path` is not quoted; `sink` as in `Call`.
    """
    first = start or 0
    headers = {}
    if start is not None or limit is not None:
        last = "" if limit is None else str(first + limit - 1)
        headers["Range"] = f"bytes={first}-{last}"
    return Call(
        path=quote(path),
        read=lambda reply: _chunk(reply, first),
        headers=headers,
        start=first,
        limit=limit,
        sink=sink,
        timeout=TIMEOUT if sink is None else SILENCE,
    )


def _chunk(reply: Reply, first: int) -> Chunk | None:
    """Return the piece in a reply to a request from byte `first` on."""
    begins, total = content_range(reply)
    modified = moment(reply.headers.get("last-modified"))
    if reply.status == 416:
        if total is not None and total > first:
            raise reply.error(NotJson, f"nothing from byte {first} on, of a file of {total} bytes")
        return Chunk(body=b"", start=first, total=total, date=reply.date, modified=modified)
    try:
        judge_raw(reply)
    except NotFound:
        return None
    if reply.status == 200:
        total = reply.length
        begins = first
    if begins != first:
        raise reply.error(NotJson, "another piece of the file than was asked for")
    return Chunk(body=reply.body, start=first, total=total, date=reply.date, modified=modified)


def tail(path: str, size: int, head: Chunk | None) -> Call[Chunk | None] | None:
    """Fetch the last `size` bytes of a raw file.

    Returns None if `head`, its first bytes, has them already. The file's size must be known first,
    because Twisted answers a Range of "the last n bytes" with error 500 if the file is shorter.
    """
    if head is None or head.total is None or head.total <= len(head.body):
        return None
    return fetch(path, start=max(0, head.total - size), limit=size)


def serves(folder: str) -> Call[bool]:
    """Ask whether the node serves `logs`, or `items`.

    The latter is its items_dir, which replaces the FEEDS setting of plain jobs. The first job
    creates the folder, so a fresh node answers 404 as a node without that setting does; only the
    former's page says "File not found".
    """

    def read(reply: Reply) -> bool:
        """Return whether this is the reply of a node that serves the folder."""
        if reply.status == 404:
            return b"File not found" in reply.body
        if reply.status != 200:  # judge_raw would take an HTML listing for a proxy's page
            judge_raw(reply)
        return True

    return Call(path=f"{folder}/", read=read)
