"""What `sdist doctor` asks of one node; rule: it only looks, and a question that fails stops no other."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from scrapyd_dist.coordination.health import skew_of
from scrapyd_dist.errors import ApiRefused, NodeError, NotFound, NotJson
from scrapyd_dist.scrapyd import api
from scrapyd_dist.upkeep.checkup import Exam, KeptLogs, host_of

from .ports import certificate_end, speaks_http, speaks_tls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Job
    from scrapyd_dist.scrapyd.call import Call
    from scrapyd_dist.transports import Sender

T = TypeVar("T")

#: an id that no job has
NO_JOB = "sdist-doctor-asks"


def examine(sender: Sender, node: Node, project: str | None, timeout: float) -> Exam:
    """Ask a node everything.

    Args:
        sender: what asks.
        node: whom.
        project: whose code is looked at; None = nobody's.
        timeout: seconds for each answer.
    """
    exam = Exam(node=node, project=project)
    began, before = time.monotonic(), time.time()
    try:
        load = sender.send(node, api.daemonstatus(), timeout=timeout)
    except NodeError as error:
        return _not_reached(sender, replace(exam, error=error), timeout)
    latency, skew = time.monotonic() - began, skew_of(load.date, (before + time.time()) / 2)
    exam = replace(exam, load=load, latency=latency, skew=skew, certificate_ends=certificate_end(node, timeout))
    exam = _files(sender, replace(exam, knows_status=_knows_status(sender, node, timeout)), timeout)
    return _code(sender, exam, timeout) if project is not None else exam


def _asked(sender: Sender, node: Node, call: Call[T], timeout: float) -> T | None:
    """The answer, or None where there is none."""
    try:
        return sender.send(node, call, timeout=timeout)
    except NodeError:
        return None


def _not_reached(sender: Sender, exam: Exam, timeout: float) -> Exam:
    """What listens there, where it is no Scrapyd."""
    node, error = exam.node, exam.error
    if error is None or (error.exit_code == 6 and not node.url.startswith("https")):
        return exam
    tls = speaks_tls(node, timeout)
    exam = replace(exam, speaks_tls=tls, speaks_http=None if tls else speaks_http(node, timeout))
    if isinstance(error, (NotFound, NotJson)):
        root = replace(node, url=host_of(node.url))
        if root.url != node.url and _asked(sender, root, api.daemonstatus(), timeout) is not None:
            return replace(exam, found_at=root.url)
    return exam


def _knows_status(sender: Sender, node: Node, timeout: float) -> bool | None:
    try:
        sender.send(node, api.status(NO_JOB), timeout=timeout)
    except NotFound:
        return False
    except NodeError:
        return None
    return True


def _files(sender: Sender, exam: Exam, timeout: float) -> Exam:
    """Its log folder, its items folder, and which logs are left."""
    node = exam.node
    logs = _asked(sender, node, api.serves_logs(), timeout)
    items = _asked(sender, node, api.serves_items(), timeout)
    jobs = _asked(sender, node, api.listjobs(), timeout)
    finished = jobs.finished if jobs is not None else ()
    with_log = next((job for job in finished if job.log_url is not None), None)
    ranges = _ranges(sender, node, with_log, timeout) if logs and with_log is not None else None
    return replace(exam, logs=logs, items=items, ranges=ranges, kept_logs=kept_logs(finished) if logs else KeptLogs())


def _ranges(sender: Sender, node: Node, job: Job, timeout: float) -> bool | None:
    """Whether the node gives a byte where a byte is asked for; None where the log is too short to tell."""
    from scrapyd_dist.jobs.judged import Place

    log = Place(node=node, project=job.project, spider=job.spider, job=job.id).log
    chunk = _asked(sender, node, api.fetch(log, start=0, limit=1), timeout)
    if chunk is None or (chunk.total or 0) < 2:
        return None
    return len(chunk.body) == 1


def kept_logs(finished: Sequence[Job]) -> KeptLogs:
    """Which of these jobs, newest first, still have a log."""
    by_spider: dict[tuple[str, str], list[bool]] = {}
    for job in finished:
        by_spider.setdefault((job.project, job.spider), []).append(job.log_url is not None)
    rows = list(by_spider.values())
    return KeptLogs(
        kept=sum(sum(row) for row in rows),
        lost=sum(len(row) - sum(row) for row in rows),
        most=max((sum(row) for row in rows), default=0),
        in_order=all(row == sorted(row, reverse=True) for row in rows),
    )


def _code(sender: Sender, exam: Exam, timeout: float) -> Exam:
    """Its versions of the project, and whether it can read the one that it would run."""
    node = exam.node
    project = node.project or exam.project or ""
    versions = _asked(sender, node, api.listversions(project), timeout)
    exam = replace(exam, project=project, versions=versions)
    if not versions:
        return exam
    try:
        sender.send(node, api.listspiders(project, versions[-1]), timeout=max(timeout, api.SLOW_TIMEOUT))
    except ApiRefused as error:
        return replace(exam, eggs=error.said)
    except NodeError:
        return exam
    return exam
