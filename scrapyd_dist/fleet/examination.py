"""Asks one node everything that its diagnosis needs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar
from urllib.parse import urlsplit

from scrapyd_dist.deploy.boot import OLDEST_PACKAGES
from scrapyd_dist.errors import ApiRefused, AuthRefused, NodeError, NotFound, NotJson
from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.fleet.kept_logs import find_kept_logs
from scrapyd_dist.fleet.node_poll import poll_load
from scrapyd_dist.fleet.port_probes import certificate_end, speaks_http, speaks_tls
from scrapyd_dist.joblogs.joblog import scrapy_version
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call, Job
from scrapyd_dist.transports import Sender

T = TypeVar("T")
#: most bytes of a log that are read for the version of Scrapy, which it begins with
HEAD = 4096
#: what the home page of a Scrapyd before 1.4 links to, and that of no later one
OLD_LINK = b"http://curl.haxx.se/"


def examine(
    sender: Sender, node: Node, project: str | None, known: Mapping[str, float], timeout: float
) -> NodeDiagnosis:
    """Ask a node everything, and its project's code where it has one.

    project: where the node's target names none; known: when versions were sent whose names do not
    tell it, seconds since the epoch; timeout: seconds for each answer.
    """
    exam = poll_load(sender, NodeDiagnosis(node=node, project=project, known=known), timeout)
    if exam.error is not None:
        return _with_listener(sender, exam, exam.error, timeout)
    ends = certificate_end(node, timeout)
    knows_status = _knows_status(sender, node, timeout)
    old_scrapyd = knows_status is False and _is_scrapyd_too_old(sender, node, timeout)
    exam = replace(exam, certificate_ends=ends, knows_status=knows_status, old_scrapyd=old_scrapyd)
    exam = _with_files(sender, exam, timeout)
    if project is None:
        return exam
    return _with_code(sender, exam, node.project or project, timeout)


def _knows_status(sender: Sender, node: Node, timeout: float) -> bool | None:
    """Return whether the node has the endpoint `status`; None where it does not say."""
    try:
        sender.send(node, api.status("sdist-doctor-asks"), timeout=timeout)
    except NotFound:
        return False
    except NodeError:
        return None
    return True


def _is_scrapyd_too_old(sender: Sender, node: Node, timeout: float) -> bool:
    """Return whether a node without status.json is older than Scrapyd 1.4, by its home page."""
    page = _answer(sender, node, api.home_page(), timeout)
    return page is not None and OLD_LINK in page


def _answer(sender: Sender, node: Node, call: Call[T], timeout: float) -> T | None:
    try:
        return sender.send(node, call, timeout=timeout)
    except NodeError:
        return None


def _with_listener(
    sender: Sender, exam: NodeDiagnosis, error: NodeError, timeout: float
) -> NodeDiagnosis:
    """Return the diagnosis with what listens there, where it is no Scrapyd."""
    node = exam.node
    if error.exit_code == AuthRefused.exit_code and not node.url.startswith("https"):
        return exam
    tls = speaks_tls(node, timeout)
    http = None if tls else speaks_http(node, timeout)
    found_at = ""
    if isinstance(error, (NotFound, NotJson)):
        parts = urlsplit(node.url)
        root = replace(node, url=f"{parts.scheme}://{parts.netloc}")  # without a path prefix
        if root.url != node.url and _answer(sender, root, api.daemonstatus(), timeout) is not None:
            found_at = root.url
    return replace(exam, speaks_tls=tls, speaks_http=http, found_at=found_at)


def _with_files(sender: Sender, exam: NodeDiagnosis, timeout: float) -> NodeDiagnosis:
    """Return the diagnosis with the node's log folder, its items folder, and the logs left."""
    node = exam.node
    logs = _answer(sender, node, api.serves("logs"), timeout)
    items = _answer(sender, node, api.serves("items"), timeout)
    exam = replace(exam, logs=logs, items=items)
    jobs = _answer(sender, node, api.listjobs(), timeout)
    if jobs is None or not logs:
        return exam
    old_scrapy = _find_old_scrapy(sender, node, (*jobs.running, *jobs.finished), timeout)
    ranges = None
    for job in jobs.finished:
        if job.log_url is not None:
            ranges = _gives_ranges(sender, node, job, timeout)
            break
    kept = find_kept_logs(jobs.finished)
    return replace(exam, kept_logs=kept, old_scrapy=old_scrapy, ranges=ranges)


def _find_old_scrapy(sender: Sender, node: Node, jobs: Sequence[Job], timeout: float) -> str:
    """Return the version of a Scrapy that is too old for workers, by the first log of these jobs.

    Empty where it is new enough, or is not known: no call of Scrapyd tells it.
    """
    with_log = next((job for job in jobs if job.log_url is not None), None)
    if with_log is None:
        return ""
    call = api.fetch(_log_of(node, with_log), start=0, limit=HEAD)
    chunk = _answer(sender, node, call, timeout)
    if chunk is None:
        return ""
    version = scrapy_version(chunk.body.decode(errors="replace"))
    if version is None or _release(version) >= dict(OLDEST_PACKAGES)["Scrapy"]:
        return ""
    return version


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _log_of(node: Node, job: Job) -> str:
    return Place(node=node, project=job.project, spider=job.spider, job=job.id).log


def _gives_ranges(sender: Sender, node: Node, job: Job, timeout: float) -> bool | None:
    """Return whether a byte of the job's log comes where a byte is asked for.

    None where the log is too short to tell, or does not come.
    """
    chunk = _answer(sender, node, api.fetch(_log_of(node, job), start=0, limit=1), timeout)
    if chunk is None or (chunk.total or 0) <= 1:
        return None
    return len(chunk.body) == 1


def _with_code(sender: Sender, exam: NodeDiagnosis, project: str, timeout: float) -> NodeDiagnosis:
    """Return the diagnosis with the versions, and whether the one can be read that it would run."""
    versions = _answer(sender, exam.node, api.listversions(project), timeout)
    eggs = ""
    try:
        if versions:
            call = api.listspiders(project, versions[-1])
            sender.send(exam.node, call, timeout=max(timeout, api.SLOW_TIMEOUT))
    except ApiRefused as error:
        eggs = error.scrapyd_message
    except NodeError:
        pass
    return replace(exam, project=project, versions=versions, eggs=eggs)
