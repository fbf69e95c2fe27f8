"""`sdist doctor`: looks at every node for what endangers work; each finding comes with its remedy. Reads only."""

import socket
import ssl
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from scrapyd_dist.config import STATE_FOLDER
from scrapyd_dist.diagnostics import (
    Finding,
    KeptLogs,
    NodeDiagnosis,
    Severity,
    findings,
    fleet_findings,
)
from scrapyd_dist.errors import ApiRefused, NodeError, NotFound, NotJson
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.nodes import Node
from scrapyd_dist.ownership import fault_of_file
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.node_state import IdleWatch
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call, Job
from scrapyd_dist.store.address import is_url
from scrapyd_dist.transports import Sender, sweep

from ..context import Context, exit_code, quick_project, where
from ..node_status import start_delays
from ..options import (
    CONNECT_TIMEOUT,
    ConnectTimeout,
    Timeout,
    argument,
    nodes,
    option,
    project_option,
)
from ..output import NEVER, Output, put, say, waiting
from ..silence import heard
from .fleet_screen import shorten_names

#: most seconds for one try to connect
PATIENCE = 2.0
#: seconds between two looks at a node whose work may be stuck, and most seconds that are spent on such looks
EVERY, LOOKING = 1.0, 60.0
T = TypeVar("T")
#: what findings of this machine stand under, where a node's name stands
HERE = "this machine"
_OTHERS_READ = stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH


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
            return _certificate(node, plain, context) is not None
    except (OSError, UnicodeError):
        return None


def _certificate(
    node: Node, plain: socket.socket, context: ssl.SSLContext
) -> dict[str, Any] | None:
    """The certificate after a handshake, empty where it is not checked; None where none comes about."""
    try:
        with context.wrap_socket(plain, server_hostname=node.tls_name or node.host) as wrapped:
            return wrapped.getpeercert() or {}
    except (OSError, ValueError):  # SSLError is an OSError
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
        with closing(_connect(node, timeout)) as plain:
            ends = (_certificate(node, plain, context) or {}).get("notAfter")
    except (OSError, ValueError):
        return None
    return (
        datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), timezone.utc)
        if isinstance(ends, str)
        else None
    )


def examine(sender: Sender, exam: NodeDiagnosis, timeout: float) -> None:
    """Ask a node everything, and its project's code where it has one; timeout: seconds for each answer."""
    try:
        exam.ask_load(sender, timeout)
    except NodeError as error:
        _not_reached(sender, exam, error, timeout)
        return
    exam.certificate_ends = certificate_end(exam.node, timeout)
    try:
        sender.send(exam.node, api.status("sdist-doctor-asks"), timeout=timeout)
        exam.knows_status = True
    except NodeError as error:
        exam.knows_status = False if isinstance(error, NotFound) else None
    _files(sender, exam, timeout)
    if exam.project is not None:
        _code(sender, exam, timeout)


def _asked(sender: Sender, node: Node, call: Call[T], timeout: float) -> T | None:
    try:
        return sender.send(node, call, timeout=timeout)
    except NodeError:
        return None


def _not_reached(sender: Sender, exam: NodeDiagnosis, error: NodeError, timeout: float) -> None:
    """What listens there, where it is no Scrapyd."""
    node = exam.node
    if error.exit_code == 6 and not node.url.startswith("https"):
        return
    exam.speaks_tls = speaks_tls(node, timeout)
    exam.speaks_http = None if exam.speaks_tls else speaks_http(node, timeout)
    if isinstance(error, (NotFound, NotJson)):
        parts = urlsplit(node.url)
        root = replace(node, url=f"{parts.scheme}://{parts.netloc}")  # without a path prefix
        if root.url != node.url and _asked(sender, root, api.daemonstatus(), timeout) is not None:
            exam.found_at = root.url


def _files(sender: Sender, exam: NodeDiagnosis, timeout: float) -> None:
    """Its log folder, its items folder, and which logs are left."""
    node = exam.node
    exam.logs = _asked(sender, node, api.serves("logs"), timeout)
    exam.items = _asked(sender, node, api.serves("items"), timeout)
    jobs = _asked(sender, node, api.listjobs(), timeout)
    if jobs is None or not exam.logs:
        return
    exam.kept_logs = kept_logs(jobs.finished)
    with_log = next((job for job in jobs.finished if job.log_url is not None), None)
    if with_log is not None:
        log = Place(
            node=node, project=with_log.project, spider=with_log.spider, job=with_log.id
        ).log
        chunk = _asked(sender, node, api.fetch(log, start=0, limit=1), timeout)
        # Whether it gives a byte where a byte is asked for; a log may be too short to tell.
        exam.ranges = len(chunk.body) == 1 if chunk is not None and (chunk.total or 0) > 1 else None


def kept_logs(finished: Sequence[Job]) -> KeptLogs:
    """Which of these jobs, newest first, still have a log."""
    by_spider: dict[tuple[str, str], list[bool]] = {}
    for job in finished:
        by_spider.setdefault((job.project, job.spider), []).append(job.log_url is not None)
    rows = list(by_spider.values())
    lost, most = (
        sum(len(row) - sum(row) for row in rows),
        max((sum(row) for row in rows), default=0),
    )
    # One job without a log is no limit: it may have written none.
    by_limit = lost != 1 and all(_is_cut(row, most) for row in rows if not all(row))
    return KeptLogs(kept=sum(sum(row) for row in rows), lost=lost, most=most, by_limit=by_limit)


def _is_cut(row: Sequence[bool], most: int) -> bool:
    """Whether the jobs of a spider, newest first, have logs as if only the newest so many were kept, or one less."""
    return list(row) == sorted(row, reverse=True) and max(1, most - 1) <= sum(row) <= most


def _code(sender: Sender, exam: NodeDiagnosis, timeout: float) -> None:
    """Its versions of the project, and whether it can read the one that it would run."""
    exam.project = exam.node.project or exam.project or ""
    exam.versions = _asked(sender, exam.node, api.listversions(exam.project), timeout)
    try:
        if exam.versions:
            call = api.listspiders(exam.project, exam.versions[-1])
            sender.send(exam.node, call, timeout=max(timeout, api.SLOW_TIMEOUT))
    except ApiRefused as error:
        exam.eggs = error.said
    except NodeError:
        pass


def doctor(
    *,
    context: Context,
    node: Annotated[
        list[str] | None, argument("NODE", "Names of nodes, or globs; all if left out.", nodes)
    ] = None,
    project: Annotated[
        str | None, project_option("Whose code is tried: [deploy] project, else BOT_NAME.")
    ] = None,
    verbose: Annotated[bool, option("Show notes too.", "--verbose", "-v")] = False,
    timeout: Timeout = 15.0,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    output: Output,
) -> int:
    """Look for what endangers work on the nodes.

    Each finding says what to do; nothing is changed. Looked at: user name and password, TLS and certificate,
    the url's path, clock, time to answer, /logs/ and pieces of files, items_dir,
    jobs_to_keep, Scrapyd's age, versions, whether eggs can be read, process
    slots that are lost (that takes some seconds where work waits); and here,
    whether others can write the store or look into the state folder. Exit code 1
    when something endangers work, else as with `sdist nodes`.

    Example: sdist doctor 'eu-*'
    """
    chosen = context.nodes(node)
    sender = context.sender_within(connect_timeout)
    name = quick_project(context.project, project)
    known = context.known_times(chosen, name)
    exams = [NodeDiagnosis(node=one, project=name, known=known) for one in chosen]
    with waiting(first=NEVER) as show:
        for done, _ in enumerate(sweep(exams, lambda one: examine(sender, one, timeout)), 1):
            show(f"{done} of {len(chosen)} nodes examined …")
    _watch(context, sender, exams, timeout)
    now = datetime.now(timezone.utc)
    results = [result for one in exams for result in findings(one, now)]
    results += fleet_findings(exams, () if node else context.project.targets)
    results += _of_this_machine(context.root)
    results.sort(key=lambda one: list(Severity).index(one.severity))
    _tell(exams, results, output, verbose=verbose)
    # 1 when a node that answers endangers work; else by the nodes that do not answer.
    unreached = {one.node.name: one.error for one in exams if one.error is not None}
    if any(
        result.severity is Severity.DANGER and result.node not in unreached for result in results
    ):
        return 1
    left = heard(context, {one.node: one.error for one in exams})
    return exit_code(len(left), left.values())


def _of_this_machine(root: Path) -> Iterator[Finding]:
    """What of the store and the state folder others can write or read."""
    address, state = where(root), root / STATE_FOLDER
    if not is_url(address) and (fault := fault_of_file(Path(address))):
        text = f"others could write the store {address}, so no command uses it"
        yield Finding(Severity.DANGER, HERE, "store", text, fault)
    with suppress(OSError):
        if stat.S_IMODE(state.stat().st_mode) & _OTHERS_READ:
            text = f"others can look into {state}, which has the key and the eggs"
            yield Finding(Severity.WARNING, HERE, "state", text, f"Forbid it: chmod 700 {state}")


def _watch(
    context: Context, sender: Sender, exams: Sequence[NodeDiagnosis], timeout: float
) -> None:
    """Look again, and again, where work waits and none runs; and tell which nodes are draining."""
    records = context.node_records(one.node for one in exams)
    own = context.local_nodes
    for one in exams:
        record = records[one.node.name]
        one.draining, one.start_delay = (
            record.draining,
            0.0 if one.node in own else record.start_delay,
        )
    left, end, watches = [one for one in exams if one.idle], time.monotonic() + LOOKING, {}
    if not left:
        return
    delays = start_delays(context, {one.node.url: one.skew or 0.0 for one in left})
    for one in left:
        delay = max(delays.get(one.node.url, 0.0), records[one.node.name].start_delay)
        watches[one.node] = IdleWatch(start_delay=delay, looks=(time.time(),))
    with waiting(LOOKING) as show:
        while left and time.monotonic() < end:
            names = ", ".join(one.node.name for one in left)
            show(f"Work waits on {names}, and none runs; looking again for some seconds …")
            time.sleep(EVERY)
            for one in left:
                load, watch = (
                    _asked(sender, one.node, api.daemonstatus(), timeout),
                    watches[one.node],
                )
                if load is None:
                    watch.looks = ()
                else:
                    watch.saw(
                        load,
                        time.time(),
                        moved=one.load is not None and load.finished != one.load.finished,
                    )
                one.wedged = watch.wedged
            left = [one for one in left if watches[one.node].looks and not one.wedged]


def _tell(
    exams: Sequence[NodeDiagnosis], results: Sequence[Finding], output: Output, *, verbose: bool
) -> None:
    rows = [{**one._asdict(), "severity": one.severity.value} for one in results]
    if output.document({"nodes": [_node_row(one) for one in exams], "findings": rows}):
        return
    counts = Counter(result.severity.value for result in results)
    for result, names in _group_by_node(results):
        if result.severity is Severity.NOTE and not verbose:
            continue
        put(f"{result.severity.value}: {shorten_names(names)}: {result.topic}: {result.text}.")
        put(f"    {result.remedy}")
    worst = [counted(counts[name], name) for name in ("danger", "warning", "note") if counts[name]]
    if counts["note"] and not verbose:
        worst[-1] += " (--verbose shows them)"
    say(f"{counted(len(exams), 'node')} examined: {', '.join(worst) or 'all is well'}.")


def _group_by_node(results: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return each finding once, with the names of the nodes that it is about."""
    grouped: dict[Finding, list[str]] = {}
    for result in results:
        grouped.setdefault(result._replace(node=""), []).append(result.node)
    return list(grouped.items())


def _node_row(exam: NodeDiagnosis) -> dict[str, Any]:
    row = exam.document()
    return {
        **{name: row[name] for name in ("name", "url", "state", "latency_ms", "skew_s")},
        "versions": exam.versions,
        "logs": exam.logs,
        "ranges": exam.ranges,
        "items_dir": exam.items,
        "certificate_ends": None
        if exam.certificate_ends is None
        else exam.certificate_ends.isoformat(),
    }
