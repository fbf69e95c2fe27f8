"""`sdist doctor`: looks at every node for what endangers work, and says what to do about it."""

import re
import socket
import ssl
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from scrapyd_dist.deploy.boot import OLDEST_PACKAGES

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
from scrapyd_dist.joblogs.joblog import scrapy_version
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.ownership import fault_of_file
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.liveness import IdleWatch
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
from ..silence import without_drained
from .fleet_screen import shorten_names

#: most seconds for one try to connect
PATIENCE = 2.0
#: seconds between two looks at a node whose work may be stuck
EVERY = 1.0
#: most seconds that are spent on such looks
LOOKING = 60.0
#: most bytes of a log that are read for the version of Scrapy, which it begins with
HEAD = 4096
#: what the home page of a Scrapyd before 1.4 links to, and that of no later one
OLD_LINK = b"http://curl.haxx.se/"
T = TypeVar("T")
#: what findings of this machine stand under, where a node's name stands
HERE = "this machine"
_OTHERS_READ = stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH
#: the fields of a node's document that are in that of the doctor, too
_FIELDS = ("name", "url", "state", "latency_ms", "skew_s")


def _connect(node: Node, timeout: float) -> socket.socket:
    parts = urlsplit(node.url)
    usual_port = 443 if parts.scheme == "https" else 80
    return socket.create_connection((node.host, parts.port or usual_port), min(PATIENCE, timeout))


def speaks_tls(node: Node, timeout: float) -> bool | None:
    """Return whether a TLS handshake comes about, whatever the certificate.

    None where no connection does; timeout: in seconds.
    """
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
    """Return the certificate after a handshake, empty where it is not checked; else None."""
    try:
        with context.wrap_socket(plain, server_hostname=node.tls_name or node.host) as wrapped:
            return wrapped.getpeercert() or {}
    except (OSError, ValueError):  # SSLError is an OSError
        return None


def speaks_http(node: Node, timeout: float) -> bool | None:
    """Return whether the port answers HTTP without TLS; None where no connection comes about."""
    try:
        plain = _connect(node, timeout)
    except (OSError, UnicodeError):
        return None
    with closing(plain), suppress(OSError):
        plain.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        return plain.recv(5) == b"HTTP/"
    return False


def certificate_end(node: Node, timeout: float) -> datetime | None:
    """Return when the server's certificate ends, UTC; None where it is not checked, or is none."""
    if not node.url.startswith("https") or not node.verify:
        return None
    import certifi

    try:
        context = ssl.create_default_context(cafile=node.ca or certifi.where())
        with closing(_connect(node, timeout)) as plain:
            ends = (_certificate(node, plain, context) or {}).get("notAfter")
    except (OSError, ValueError):
        return None
    if not isinstance(ends, str):
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), timezone.utc)


def examine(sender: Sender, exam: NodeDiagnosis, timeout: float) -> None:
    """Ask a node everything, and its project's code where it has one.

    timeout: seconds for each answer.
    """
    try:
        exam.ask_load(sender, timeout)
    except NodeError as error:
        _find_listener(sender, exam, error, timeout)
        return
    exam.certificate_ends = certificate_end(exam.node, timeout)
    exam.knows_status = _knows_status(sender, exam.node, timeout)
    if exam.knows_status is False:
        exam.too_old = _is_too_old(sender, exam.node, timeout)
    _examine_files(sender, exam, timeout)
    if exam.project is not None:
        _examine_code(sender, exam, timeout)


def _knows_status(sender: Sender, node: Node, timeout: float) -> bool | None:
    """Return whether the node has the endpoint `status`; None where it does not say."""
    try:
        sender.send(node, api.status("sdist-doctor-asks"), timeout=timeout)
    except NotFound:
        return False
    except NodeError:
        return None
    return True


def _is_too_old(sender: Sender, node: Node, timeout: float) -> bool:
    """Return whether a node without status.json is older than Scrapyd 1.4, by its home page."""
    page = _answer(sender, node, api.home_page(), timeout)
    return page is not None and OLD_LINK in page


def _answer(sender: Sender, node: Node, call: Call[T], timeout: float) -> T | None:
    try:
        return sender.send(node, call, timeout=timeout)
    except NodeError:
        return None


def _find_listener(sender: Sender, exam: NodeDiagnosis, error: NodeError, timeout: float) -> None:
    """Find out what listens there, where it is no Scrapyd."""
    node = exam.node
    if error.exit_code == 6 and not node.url.startswith("https"):
        return
    exam.speaks_tls = speaks_tls(node, timeout)
    exam.speaks_http = None if exam.speaks_tls else speaks_http(node, timeout)
    if isinstance(error, (NotFound, NotJson)):
        parts = urlsplit(node.url)
        root = replace(node, url=f"{parts.scheme}://{parts.netloc}")  # without a path prefix
        if root.url != node.url and _answer(sender, root, api.daemonstatus(), timeout) is not None:
            exam.found_at = root.url


def _examine_files(sender: Sender, exam: NodeDiagnosis, timeout: float) -> None:
    """Ask for its log folder, its items folder, and which logs are left."""
    node = exam.node
    exam.logs = _answer(sender, node, api.serves("logs"), timeout)
    exam.items = _answer(sender, node, api.serves("items"), timeout)
    jobs = _answer(sender, node, api.listjobs(), timeout)
    if jobs is None or not exam.logs:
        return
    exam.kept_logs = kept_logs(jobs.finished)
    exam.old_scrapy = _find_old_scrapy(sender, node, (*jobs.running, *jobs.finished), timeout)
    for job in jobs.finished:
        if job.log_url is not None:
            exam.ranges = _gives_ranges(sender, node, job, timeout)
            break


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


def kept_logs(finished: Sequence[Job]) -> KeptLogs:
    """Return how many of these jobs, newest first, still have a log."""
    by_spider: dict[tuple[str, str], list[bool]] = {}
    for job in finished:
        by_spider.setdefault((job.project, job.spider), []).append(job.log_url is not None)
    kept = 0
    lost = 0
    most = 0
    for has_logs in by_spider.values():
        count = sum(has_logs)
        kept += count
        lost += len(has_logs) - count
        most = max(most, count)
    # One job without a log is no limit: it may have written none.
    by_limit = lost != 1
    for has_logs in by_spider.values():
        if not all(has_logs) and not _is_cut(has_logs, most):
            by_limit = False
    return KeptLogs(kept=kept, lost=lost, most=most, by_limit=by_limit)


def _is_cut(has_logs: Sequence[bool], most: int) -> bool:
    """Return whether only the newest so many jobs of a spider, or one less, have logs.

    has_logs: of each of its jobs, the newest first.
    """
    is_sorted = list(has_logs) == sorted(has_logs, reverse=True)
    return is_sorted and max(1, most - 1) <= sum(has_logs) <= most


def _examine_code(sender: Sender, exam: NodeDiagnosis, timeout: float) -> None:
    """Ask for its versions of the project, and whether it can read the one that it would run."""
    exam.project = exam.node.project or exam.project or ""
    exam.versions = _answer(sender, exam.node, api.listversions(exam.project), timeout)
    try:
        if exam.versions:
            call = api.listspiders(exam.project, exam.versions[-1])
            sender.send(exam.node, call, timeout=max(timeout, api.SLOW_TIMEOUT))
    except ApiRefused as error:
        exam.eggs = error.scrapyd_message
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

    Each finding says what to do; nothing is changed. Looked at: user name and
    password, TLS and certificate, the url's path, clock, time to answer, /logs/ and
    pieces of files, items_dir, jobs_to_keep, Scrapyd's age, Scrapy's (by a job's log),
    versions, whether eggs can be read, process slots that are lost (that takes some
    seconds where work waits); and here, whether others can write the store or look
    into the state folder. Exit code 1 when something endangers work, else as with
    `sdist nodes`.

    Example: sdist doctor 'eu-*'
    """
    chosen = context.nodes(node)
    sender = context.sender_within(connect_timeout)
    name = quick_project(context.project, project)
    known = context.known_times(chosen, name)
    exams = [NodeDiagnosis(node=node, project=name, known=known) for node in chosen]
    with waiting(first=NEVER) as show:
        answers = sweep(exams, lambda exam: examine(sender, exam, timeout))
        for done, _ in enumerate(answers, 1):
            show(f"{done} of {len(chosen)} nodes examined …")
    _watch_waiting_work(context, sender, exams, timeout)
    results = _all_findings(context, exams, () if node else context.project.targets)
    _report(exams, results, output, verbose=verbose)
    return _exit_code_of(context, exams, results)


def _all_findings(
    context: Context, exams: Sequence[NodeDiagnosis], targets: Sequence[Node]
) -> list[Finding]:
    """Return the findings, the worst first; targets: of scrapy.cfg, where all nodes are asked."""
    now = datetime.now(timezone.utc)
    results: list[Finding] = []
    for exam in exams:
        results += findings(exam, now)
    results += fleet_findings(exams, targets)
    results += _local_findings(context.root)
    results.sort(key=lambda result: list(Severity).index(result.severity))
    return results


def _local_findings(root: Path) -> Iterator[Finding]:
    """Yield what of the store and the state folder others can write or read."""
    address = where(root)
    state = root / STATE_FOLDER
    if not is_url(address) and (fault := fault_of_file(Path(address))):
        text = f"others could write the store {address}, so no command uses it"
        yield Finding(Severity.DANGER, HERE, "store", text, fault)
    with suppress(OSError):
        if stat.S_IMODE(state.stat().st_mode) & _OTHERS_READ:
            text = f"others can look into {state}, which has the key and the eggs"
            yield Finding(Severity.WARNING, HERE, "state", text, f"Forbid it: chmod 700 {state}")


def _exit_code_of(
    context: Context, exams: Sequence[NodeDiagnosis], results: Sequence[Finding]
) -> int:
    """Return 1 when a node that answers endangers work; else by the nodes that do not answer."""
    unreached = {exam.node.name for exam in exams if exam.error is not None}
    for result in results:
        if result.severity is Severity.DANGER and result.node not in unreached:
            return 1
    counting = without_drained(context, {exam.node: exam.error for exam in exams})
    return exit_code(len(counting), counting.values())


def _watch_waiting_work(
    context: Context, sender: Sender, exams: Sequence[NodeDiagnosis], timeout: float
) -> None:
    """Look again, and again, where work waits and none runs; and note which nodes are draining."""
    records = context.node_records([exam.node for exam in exams])
    own = context.local_nodes
    waiting_exams = []
    for exam in exams:
        record = records[exam.node.name]
        exam.draining = record.draining
        exam.start_delay = 0.0 if exam.node in own else record.start_delay
        if exam.idle:
            waiting_exams.append(exam)
    if waiting_exams:
        deadline = time.monotonic() + LOOKING
        watches = _idle_watches(context, waiting_exams, records)
        _watch_until(deadline, sender, waiting_exams, watches, timeout)


def _watch_until(
    deadline: float,
    sender: Sender,
    left: Sequence[NodeDiagnosis],
    watches: Mapping[Node, IdleWatch],
    timeout: float,
) -> None:
    """Look at these nodes until each moves, is wedged, or is silent; deadline: monotonic clock."""
    with waiting(LOOKING) as show:
        while left and time.monotonic() < deadline:
            names = ", ".join([exam.node.name for exam in left])
            show(f"Work waits on {names}, and none runs; looking again for some seconds …")
            time.sleep(EVERY)
            for exam in left:
                _look_again(sender, exam, watches[exam.node], timeout)
            left = [exam for exam in left if watches[exam.node].looks and not exam.wedged]


def _idle_watches(
    context: Context, exams: Sequence[NodeDiagnosis], records: Mapping[str, NodeRecord]
) -> dict[Node, IdleWatch]:
    delays = start_delays(context, {exam.node.url: exam.skew or 0.0 for exam in exams})
    watches = {}
    for exam in exams:
        delay = max(delays.get(exam.node.url, 0.0), records[exam.node.name].start_delay)
        watches[exam.node] = IdleWatch(start_delay=delay, looks=(time.time(),))
    return watches


def _look_again(sender: Sender, exam: NodeDiagnosis, watch: IdleWatch, timeout: float) -> None:
    """Look at a node whose work waits; without an answer it is not looked at any more."""
    load = _answer(sender, exam.node, api.daemonstatus(), timeout)
    if load is None:
        watch.restart()
    else:
        moved = exam.load is not None and load.finished != exam.load.finished
        watch.saw(load, time.time(), moved=moved)
    exam.wedged = watch.wedged


def _report(
    exams: Sequence[NodeDiagnosis], results: Sequence[Finding], output: Output, *, verbose: bool
) -> None:
    if output.document(_document(exams, results)):
        return
    counts: Counter[str] = Counter()
    for result, names in _group_by_node(results):
        counts[result.severity.value] += len(names)
        if result.severity is Severity.NOTE and not verbose:
            continue
        put(f"{result.severity.value}: {shorten_names(names)}: {result.topic}: {result.text}.")
        put(f"    {result.remedy}")
    worst = [counted(counts[name], name) for name in ("danger", "warning", "note") if counts[name]]
    if counts["note"] and not verbose:
        worst[-1] += " (--verbose shows them)"
    say(f"{counted(len(exams), 'node')} examined: {', '.join(worst) or 'all is well'}.")


def _document(exams: Sequence[NodeDiagnosis], results: Sequence[Finding]) -> dict[str, Any]:
    rows = []
    for result in results:
        row = {**result._asdict(), "severity": result.severity.value}
        rows.append(row)
    return {"nodes": list(map(_node_row, exams)), "findings": rows}


def _group_by_node(results: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return each finding once, with the names of the nodes that it is about."""
    grouped: dict[Finding, list[str]] = {}
    for result in results:
        grouped.setdefault(result._replace(node=""), []).append(result.node)
    return list(grouped.items())


def _node_row(exam: NodeDiagnosis) -> dict[str, Any]:
    document = exam.document()
    ends = exam.certificate_ends
    return {
        **{name: document[name] for name in _FIELDS},
        "versions": exam.versions,
        "logs": exam.logs,
        "ranges": exam.ranges,
        "items_dir": exam.items,
        "certificate_ends": None if ends is None else ends.isoformat(),
    }
