"""The requests that `sdist doctor` makes to one node, and what speaks on its port. Reads only."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from scrapyd_dist.diagnostics.diagnosis import KeptLogs, NodeDiagnosis, host_of
from scrapyd_dist.errors import ApiRefused, NodeError, NotFound, NotJson
from scrapyd_dist.scheduling.node_state import skew_of
from scrapyd_dist.scrapyd import api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Job
    from scrapyd_dist.scrapyd.call import Call
    from scrapyd_dist.transports import Sender

#: most seconds for one try
PATIENCE = 2.0


def _connect(node: Node, timeout: float) -> socket.socket:
    parts = urlsplit(node.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return socket.create_connection((node.host, port), min(PATIENCE, timeout))


def speaks_tls(node: Node, timeout: float) -> bool | None:
    """Whether a TLS handshake comes about, whatever the certificate; None where no connection does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with closing(_connect(node, timeout)) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=node.tls_name or node.host):
                    return True
            except (OSError, ValueError):  # SSLError is an OSError
                return False
    except (OSError, UnicodeError):
        return None


def speaks_http(node: Node, timeout: float) -> bool | None:
    """Whether the port answers HTTP without TLS; None where no connection comes about."""
    try:
        plain = _connect(node, timeout)
    except (OSError, UnicodeError):
        return None
    with closing(plain), suppress(OSError):
        plain.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        return plain.recv(5) == b"HTTP/"
    return False


def certificate_end(node: Node, timeout: float) -> datetime | None:
    """When the server's certificate ends, UTC; None where it is not checked, or there is none."""
    if not node.url.startswith("https") or not node.verify:
        return None
    import certifi

    try:
        context = ssl.create_default_context(cafile=node.ca or certifi.where())
        with (
            closing(_connect(node, timeout)) as plain,
            context.wrap_socket(plain, server_hostname=node.tls_name or node.host) as wrapped,
        ):
            ends = (wrapped.getpeercert() or {}).get("notAfter")
    except (OSError, ValueError):
        return None
    if not isinstance(ends, str):
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), timezone.utc)


T = TypeVar("T")


#: an id that no job has
NO_JOB = "sdist-doctor-asks"


def examine(sender: Sender, node: Node, project: str | None, timeout: float) -> NodeDiagnosis:
    """Ask a node everything.

    Args:
        sender: what asks.
        node: whom.
        project: whose code is looked at; None = nobody's.
        timeout: seconds for each answer.
    """
    exam = NodeDiagnosis(node=node, project=project)
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


def _not_reached(sender: Sender, exam: NodeDiagnosis, timeout: float) -> NodeDiagnosis:
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


def _files(sender: Sender, exam: NodeDiagnosis, timeout: float) -> NodeDiagnosis:
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
    from scrapyd_dist.joblogs.verdict import Place

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


def _code(sender: Sender, exam: NodeDiagnosis, timeout: float) -> NodeDiagnosis:
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
