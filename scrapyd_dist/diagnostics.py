"""Keeps how a node answers, and finds what is wrong with nodes and fleets, each with its remedy."""

import ipaddress
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from scrapyd_dist.errors import (
    ConnectionRefused,
    HostNotFound,
    NodeError,
    NoReply,
    NotFound,
    NotJson,
    TlsRefused,
)
from scrapyd_dist.nodes import Node, group_names
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.liveness import SKEW, skew_of
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.scrapyd.versions import behind, content_or_name, current, is_crawls
from scrapyd_dist.transports import Sender

T = TypeVar("T")
#: response time in seconds from which a node is reported as slow
SLOW = 1.0
#: seconds from sent to started from which a node looks at its queue too seldom, or is slow
LATE = 3.0
#: what to do then
POLL_REMEDY = (
    "scrapyd.conf: poll_interval = 0.5, then restart Scrapyd; if it has that, look at its load."
)
#: logs of a spider that Scrapyd keeps unless scrapyd.conf says otherwise
KEPT_BY_DEFAULT = 5
#: clock skew in seconds that network latency cannot explain
WRONG_CLOCK = 60.0
#: time before a certificate's expiry from which it is a warning
SOON = timedelta(days=21)
#: likewise, a danger
TOO_SOON = timedelta(days=3)
#: what an egg of ours says on a node where Python, Scrapy or Scrapyd is too old for it
_TOO_OLD = re.compile(r"(\w+) [\d.]+ is too old for scrapyd-dist; it needs ([\d.]+)")


class NodeHealth(str, Enum):
    """How a node is, as `sdist nodes` says it."""

    UP = "up"
    DOWN = "down"
    REFUSED = "refused"  #: it refuses us: user name, password, certificate
    BUSY = "busy"  #: connected, but no answer in time: it imports a project, or hangs
    DRAINING = "draining"
    WEDGED = "wedged"  #: jobs wait there, and none is ever started


class Severity(str, Enum):
    """How bad a finding is."""

    DANGER = "danger"  #: work is lost, stalls, or cannot be fetched
    WARNING = "warning"  #: a problem that does not lose work
    NOTE = "note"  #: for information


class Finding(NamedTuple):
    """Something that was found out about a node or a fleet, and what to do."""

    severity: Severity
    node: str  #: name of the node, or names
    topic: str  #: one word
    text: str
    remedy: str  #: a command, a line of scrapyd.conf or scrapy.cfg, or other advice


@dataclass(kw_only=True)
class NodeStatus:
    """One node, as far as it is known. None means unknown."""

    node: Node
    load: Load | None = None
    error: NodeError | None = None
    latency: float | None = None  #: seconds
    skew: float | None = None  #: its clock minus ours, seconds
    versions: tuple[str, ...] | None = None  #: of the project
    #: when versions were sent whose names do not tell it
    known: Mapping[str, float] = field(default_factory=dict)
    draining: float | None = None  #: since when, seconds since the epoch
    wedged: bool = False  #: whether jobs wait there, and none is ever started

    def ask_load(self, sender: Sender, timeout: float) -> Load:
        """Ask the node for its load, and measure latency and clock skew.

        What goes wrong is raised, and kept as the error, too.
        """
        began = time.monotonic()
        before = time.time()
        try:
            load = sender.send(self.node, api.daemonstatus(), timeout=timeout)
        except NodeError as error:
            self.error = error
            raise
        self.latency = time.monotonic() - began
        self.skew = skew_of(load.date, (before + time.time()) / 2)
        self.load = load
        return load

    def ask_versions(self, sender: Sender, project: str, timeout: float) -> None:
        """Ask the node for its versions of the project, unless it did not answer before."""
        if self.error is None:
            self.versions = sender.send(
                self.node, api.listversions(self.node.project or project), timeout=timeout
            )

    @property
    def state(self) -> NodeHealth:
        """The health of the node; of several troubles the one that goes before the others."""
        if self.error is not None:
            return self._find_health_by(self.error)
        if self.wedged:  # goes before draining
            return NodeHealth.WEDGED
        if self.draining is not None:
            return NodeHealth.DRAINING
        return NodeHealth.UP

    def _find_health_by(self, error: NodeError) -> NodeHealth:
        if error.exit_code == 6:
            return NodeHealth.REFUSED
        if isinstance(error, NoReply):
            return NodeHealth.BUSY
        return NodeHealth.DOWN

    @property
    def idle(self) -> bool:
        """Whether jobs wait there and none runs."""
        return self.load is not None and bool(self.load.pending) and not self.load.running

    @property
    def version(self) -> str | None:
        """The version that counts as the project's code there."""
        return current(self.versions or (), self.known)

    @property
    def reason(self) -> str:
        """What is wrong with it, in a sentence; empty if nothing is."""
        if self.error is not None:
            return str(self.error).removeprefix(f"{self.node}: ")
        if self.wedged:
            return "jobs wait and none is ever started; `sdist doctor` says what to do"
        return ""

    @property
    def short(self) -> str:
        """What is wrong with it, in a few words; empty if nothing is."""
        if self.error is not None:
            return self.error.short
        return "nothing is started" if self.wedged else ""

    def document(self, newest: str | None = None) -> dict[str, Any]:
        """Return the node as `sdist nodes --json` gives it; newest: the fleet's version."""
        load = self.load
        version = None
        drift = None
        if self.versions is not None:
            version = self.version
            if newest is not None:
                drift = content_or_name(version) != content_or_name(newest)
        latency_ms = None
        if self.latency is not None:
            latency_ms = round(self.latency * 1000, 1)
        return {
            "name": self.node.name,
            "url": self.node.url,
            "state": self.state.value,
            "reason": self.reason,
            "slots": self.node.slots,
            "running": load.running if load else None,
            "pending": load.pending if load else None,
            "finished": load.finished if load else None,
            "latency_ms": latency_ms,
            "skew_s": self.skew,
            "version": version,
            "drift": drift,
            "draining": moment(self.draining),
            "wedged": self.wedged,
        }


def moment(at: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601 in UTC; None for None."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class KeptLogs:
    """Which logs of a node's remembered finished jobs still exist."""

    kept: int = 0
    lost: int = 0
    most: int = 0  #: the largest number of kept logs of one spider
    by_limit: bool = True  #: whether the lost ones are those that jobs_to_keep would remove


@dataclass(kw_only=True)
class NodeDiagnosis(NodeStatus):
    """A node with all that `sdist doctor` has found out about it. None means unknown."""

    #: only if the node did not answer like Scrapyd: whether its port speaks TLS or plain HTTP
    speaks_tls: bool | None = None
    speaks_http: bool | None = None
    found_at: str = ""  #: another base address at which Scrapyd answers
    certificate_ends: datetime | None = None  #: UTC
    knows_status: bool | None = None  #: whether it has status.json
    too_old: bool = False  #: whether it is older than Scrapyd 1.4
    #: the version of a Scrapy that is too old for workers, by the log of a job; empty if it is not
    old_scrapy: str = ""
    logs: bool | None = None  #: whether it serves a log folder
    ranges: bool | None = None  #: whether it supports Range requests
    start_delay: float = 0.0  #: the longest time from sent to started that was seen there, seconds
    items: bool | None = None  #: whether it has an items_dir
    kept_logs: KeptLogs = KeptLogs()
    project: str | None = None  #: the examined project
    eggs: str = ""  #: its error on reading its default version; empty if it can

    def finding(self, severity: Severity, topic: str, text: str, remedy: str) -> Finding:
        """Return a finding about this node."""
        return Finding(severity, self.node.name, topic, text, remedy)


def findings(exam: NodeDiagnosis, now: datetime) -> list[Finding]:
    """Return the findings about a node; `now` is UTC."""
    if exam.error is not None:
        topic, remedy = _explain_error(exam, exam.error)
        first_sentence = exam.reason.split(". ")[0].rstrip(".")
        return [exam.finding(Severity.DANGER, topic, first_sentence, remedy)]
    checks = (
        _check_entry,
        _check_clock,
        _check_start_delay,
        _check_files,
        _check_kept_logs,
        _check_code,
        _check_work,
    )
    found: list[Finding] = []
    for check in checks:
        found += check(exam)
    found += _check_certificate(exam, now)
    return found


def is_local(host: str) -> bool:
    """Return whether the host is this machine, by its name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_entry(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check authentication and encryption."""
    node = exam.node
    is_remote = not is_local(node.host)
    if node.username is None and is_remote:
        text = "it asks for no password: any program that reaches the port can run code there"
        remedy = (
            "scrapyd.conf: username = …, password = … (or SCRAPYD_USERNAME, SCRAPYD_PASSWORD in its"
            " environment)"
        )
        yield exam.finding(Severity.WARNING, "auth", text, remedy)
    if node.username is not None and node.url.startswith("http:") and is_remote:
        text = "the password travels readable, since the url is http://"
        remedy = "Put a proxy with TLS before it, or a tunnel."
        yield exam.finding(Severity.WARNING, "auth", text, remedy)
    if node.url.startswith("https:") and not node.verify:
        text = (
            "its certificate is not checked (verify = no), so anybody can pretend to be this node"
        )
        remedy = _set_in_target(node, "ca = FILE, in place of verify = no")
        yield exam.finding(Severity.WARNING, "tls", text, remedy)


def _check_certificate(exam: NodeDiagnosis, now: datetime) -> Iterator[Finding]:
    ends = exam.certificate_ends
    if ends is None or ends - now > SOON:
        return
    severity = Severity.DANGER if ends - now < TOO_SOON else Severity.WARNING
    days = counted(max(0, (ends - now).days), "day")
    text = f"its certificate ends in {days}, on {ends:%Y-%m-%d %H:%M} UTC"
    remedy = "Renew the certificate of the proxy before this Scrapyd."
    yield exam.finding(severity, "tls", text, remedy)


def _check_clock(exam: NodeDiagnosis) -> Iterator[Finding]:
    if exam.skew is not None and abs(exam.skew) >= SKEW:
        severity = Severity.WARNING if abs(exam.skew) >= WRONG_CLOCK else Severity.NOTE
        direction = "ahead of" if exam.skew > 0 else "behind"
        text = (
            f"its clock is {abs(exam.skew):.0f} s {direction} ours"
            "; start times are corrected for that, the order of merged logs is not"
        )
        remedy = "On the node: timedatectl set-ntp true (or run chrony)."
        yield exam.finding(severity, "clock", text, remedy)
    if exam.latency is not None and exam.latency > SLOW:
        text = f"it took {exam.latency:.1f} s to answer"
        remedy = (
            "Look at its load: max_proc above its number of cores, or a project that takes long to"
            " import."
        )
        yield exam.finding(Severity.WARNING, "latency", text, remedy)


def _check_start_delay(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check how long jobs wait until the node looks at its queue again."""
    if exam.start_delay >= LATE:
        text = (
            "jobs that were sent there, while a slot was free, began up to"
            f" {exam.start_delay:.0f} s later"
        )
        yield exam.finding(Severity.WARNING, "poll_interval", text, POLL_REMEDY)


def _check_files(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check whether items and logs can be fetched."""
    remedy = "On the node: pip install --upgrade 'scrapyd>=1.5'"
    if exam.too_old:
        text = "it is older than Scrapyd 1.4: deployments and crawls leave it out"
        yield exam.finding(Severity.DANGER, "version", text, remedy)
    elif exam.knows_status is False:
        text = (
            "it has no status.json, so it is older than Scrapyd 1.5: a job is looked up in its"
            " whole list, which forgets old ones"
        )
        yield exam.finding(Severity.WARNING, "version", text, remedy)
    if exam.old_scrapy:
        text = (
            f"the log of its last job was written by Scrapy {exam.old_scrapy}, which is too old:"
            " deployments and crawls leave it out"
        )
        remedy = "On the node: pip install --upgrade 'scrapy>=2.13', then restart Scrapyd"
        yield exam.finding(Severity.DANGER, "version", text, remedy)
    if exam.logs is False:
        text = (
            "it serves no /logs/: a crawl's items cannot be fetched from there, and how jobs ended"
            " cannot be told"
        )
        remedy = "scrapyd.conf: logs_dir = logs (or --feed URL for each crawl)"
        yield exam.finding(Severity.DANGER, "logs", text, remedy)
    if exam.ranges is False:
        text = (
            "it sends whole files where a piece is asked for: following logs costs their whole"
            " length each time"
        )
        remedy = (
            "Look at the proxy before it: it has to pass the Range header on, and not compress."
        )
        yield exam.finding(Severity.WARNING, "logs", text, remedy)
    if exam.items:
        text = (
            "items_dir is set: Scrapyd then replaces the FEEDS of plain jobs, and keeps their items"
            " on the node"
        )
        remedy = (
            "Keep it for `sdist items pull JOB`, if no plain job has its own FEEDS; else"
            " scrapyd.conf: items_dir ="
        )
        yield exam.finding(Severity.WARNING, "items", text, remedy)


def _check_kept_logs(exam: NodeDiagnosis) -> Iterator[Finding]:
    logs = exam.kept_logs
    if logs.lost and logs.by_limit:
        yield _describe_deleted_logs(exam)
        return
    if logs.lost:
        text = (
            f"{_count_lost_logs(logs)}: they wrote none (LOG_FILE, LOG_ENABLED, or killed as they"
            " began), or it was removed by hand"
        )
        remedy = "How each of them ended, as far as it is known: sdist jobs"
        yield exam.finding(Severity.NOTE, "logs", text, remedy)
    if logs.most <= KEPT_BY_DEFAULT:
        text = (
            "jobs_to_keep cannot be seen from outside until more than 5 jobs of a spider have run;"
            " its default is 5"
        )
        remedy = (
            "scrapyd.conf: jobs_to_keep = 1000000, if plain jobs run there (crawls do not depend"
            " on it)"
        )
        yield exam.finding(Severity.NOTE, "jobs_to_keep", text, remedy)


def _count_lost_logs(logs: KeptLogs) -> str:
    return f"{logs.lost} of the {logs.kept + logs.lost} finished jobs that it remembers have no log"


def _describe_deleted_logs(exam: NodeDiagnosis) -> Finding:
    logs = exam.kept_logs
    severity = Severity.WARNING
    text = (
        f"{_count_lost_logs(logs)} any more: most likely jobs_to_keep = {max(1, logs.most - 1)} or"
        f" {logs.most}; Scrapyd deletes logs even while their job runs"
    )
    if exam.items:
        severity = Severity.DANGER
        text += ", and with items_dir the items of these jobs too"
    remedy = "scrapyd.conf: jobs_to_keep = 1000000, then restart Scrapyd"
    return exam.finding(severity, "jobs_to_keep", text, remedy)


def _check_code(exam: NodeDiagnosis) -> Iterator[Finding]:
    if exam.eggs:
        yield _describe_unreadable_egg(exam)
    elif exam.project is not None and exam.versions == ():
        text = (
            f"it has no version of the project {exam.project}, so whether it can read eggs is not"
            " known"
        )
        yield exam.finding(Severity.NOTE, "versions", text, "sdist deploy --all --only-missing")
    elif exam.versions:
        yield from _check_default_version(exam, exam.versions)


def _describe_unreadable_egg(exam: NodeDiagnosis) -> Finding:
    text = f"it cannot read the version that it runs by default: {exam.eggs.rstrip('.')}"
    remedy = "Mend the code and deploy again: sdist deploy --all"
    if "pkg_resources" in exam.eggs:
        remedy = (
            "On the node: pip install 'setuptools<81' (82 has no pkg_resources), then restart"
            " Scrapyd"
        )
    elif old := _TOO_OLD.search(exam.eggs):
        package, needed = old.groups()
        remedy = f"On the node: install {package} {needed} or a later one, then restart Scrapyd"
    elif "No module named" in exam.eggs:
        remedy = "Install the module on the node, or: sdist deploy --all --include-dependencies"
    return exam.finding(Severity.DANGER, "eggs", text, remedy)


def _check_default_version(exam: NodeDiagnosis, versions: tuple[str, ...]) -> Iterator[Finding]:
    """Check that jobs that name no version run the newest deployment."""
    default = versions[-1]
    if is_crawls(default):
        text = (
            f"nothing was deployed there: jobs that name no version would run {default}, which a"
            " crawl brought"
        )
        remedy = "For plain jobs: sdist deploy --all"
        yield exam.finding(Severity.NOTE, "versions", text, remedy)
    elif newer := behind(versions, exam.known):
        text = f"jobs that name no version run {default}, which Scrapyd sorts behind {newer}"
        remedy = (
            "When no job needs it any more: sdist nodes api"
            f" {_quote_for_shell(exam.node.name)} delversion project={exam.project}"
            f" version={default}"
        )
        yield exam.finding(Severity.WARNING, "versions", text, remedy)


def _check_work(exam: NodeDiagnosis) -> Iterator[Finding]:
    if exam.wedged:
        pending = exam.load.pending if exam.load else 0
        text = (
            f"{counted(pending, 'job waits', 'jobs wait')}, and none was started in three looks:"
            " its process slots are lost"
        )
        remedy = (
            "Restart its Scrapyd: jobs that wait are kept. Oversized arguments and job ids with a"
            " slash do that."
        )
        yield exam.finding(Severity.DANGER, "slots", text, remedy)
    if exam.draining is not None:
        remedy = f"sdist nodes resume {_quote_for_shell(exam.node.name)}"
        yield exam.finding(Severity.NOTE, "draining", "it is draining: it gets no new work", remedy)


def _quote_for_shell(name: str) -> str:
    if " " in name:
        return f"'{name}'"
    return name


def _set_in_target(node: Node, line: str) -> str:
    """Return the remedy that sets a line in the node's section of scrapy.cfg."""
    return f"scrapy.cfg, [deploy:{node.name}]: {line}"


def _explain_error(exam: NodeDiagnosis, error: NodeError) -> tuple[str, str]:
    """Return why a node does not answer like Scrapyd, in a word or two, and the remedy."""
    node = exam.node
    scheme, rest = node.url.split("://", 1)
    if scheme == "https" and exam.speaks_tls is False and exam.speaks_http:
        return "tls", _set_in_target(node, f"url = http://{rest}/ (this port speaks no TLS)")
    if scheme == "http" and exam.speaks_tls:
        return "tls", _set_in_target(node, f"url = https://{rest}/ (this port speaks TLS)")
    if isinstance(error, TlsRefused):
        return "tls", _find_tls_remedy(node, str(error))
    if error.exit_code == 6:
        line = "username = …, password = $SOME_VARIABLE; or an entry for the host in ~/.netrc"
        return "auth", _set_in_target(node, line)
    if isinstance(error, (NotFound, NotJson)):
        return "base path", _find_address_remedy(exam)
    return "reach", _find_reach_remedy(node, error)


def _find_address_remedy(exam: NodeDiagnosis) -> str:
    node = exam.node
    if exam.found_at:
        return _set_in_target(node, f"url = {exam.found_at}/ (Scrapyd answers there)")
    return (
        f"Is that a Scrapyd? {node.url} has to be its base address, with the path that a proxy puts"
        " before it."
    )


def _find_reach_remedy(node: Node, error: NodeError) -> str:
    if isinstance(error, ConnectionRefused):
        return (
            "Start Scrapyd there; scrapyd.conf: bind_address = 0.0.0.0, if it listens on 127.0.0.1"
            " only."
        )
    if isinstance(error, HostNotFound):
        return _set_in_target(node, "url = …, with a name that this machine can look up")
    return error.hint or "Look into its log."


def _find_tls_remedy(node: Node, error: str) -> str:
    if "expired" in error:
        return "Renew the certificate of the proxy before this Scrapyd."
    if "mismatch" in error or "doesn't match" in error:
        return _set_in_target(node, "url = https://…, with a name that stands in the certificate")
    line = "ca = FILE, with the CA certificate, if it is of your own making"
    if node.ca is not None:
        line = "ca = …, the file with the certificates that signed the server's own (this did not)"
    return _set_in_target(node, line)


def fleet_findings(exams: Sequence[NodeDiagnosis], targets: Iterable[Node]) -> list[Finding]:
    """Return findings that need all nodes to be compared; `targets` are all those of scrapy.cfg."""
    exams_by_project: dict[str | None, list[NodeDiagnosis]] = {}
    for exam in exams:
        exams_by_project.setdefault(exam.node.project or exam.project, []).append(exam)
    found: list[Finding] = []
    for exams_of_project in exams_by_project.values():
        found += _check_same_code(exams_of_project)
    found += _check_repeated_names(exams)
    found += _check_repeated_urls(targets)
    return found


def _check_same_code(exams: Sequence[NodeDiagnosis]) -> list[Finding]:
    """Return a finding if these nodes, which have the same project, have different code of it."""
    deployed: list[tuple[str, Node]] = []
    for exam in exams:
        version = exam.version
        if version:
            deployed.append((version, exam.node))
    # The same code may have several versions; it is called by the first of them.
    first_versions: dict[str | None, str] = {}
    nodes_by_version: list[tuple[str, Node]] = []
    for version, node in deployed:
        first = first_versions.setdefault(content_or_name(version), version)
        nodes_by_version.append((first, node))
    by_code = group_names(nodes_by_version)
    if len(by_code) < 2:
        return []
    groups = [f"{version} on {', '.join(names)}" for version, names in sorted(by_code.items())]
    text = f"the newest versions of the project differ: {'; '.join(groups)}"
    remedy = (
        "sdist deploy --all --only-missing (the egg that was sent last), or: sdist deploy --all"
    )
    fewest = min(by_code.values(), key=len)
    return [Finding(Severity.WARNING, ", ".join(fewest), "versions", text, remedy)]


def _check_repeated_names(exams: Sequence[NodeDiagnosis]) -> Iterator[Finding]:
    """Check whether several nodes give themselves the same name."""
    named = [(exam.load.node_name, exam.node) for exam in exams if exam.load is not None]
    for name, nodes in _find_repeated(named):
        text = (
            f"all of them say that they are {name!r}; if that is one Scrapyd, its slots are counted"
            " twice"
        )
        remedy = (
            "Remove all but one [deploy:…] of it from scrapy.cfg; else scrapyd.conf: node_name = …"
        )
        yield Finding(Severity.NOTE, ", ".join(nodes), "names", text, remedy)


def _check_repeated_urls(targets: Iterable[Node]) -> Iterator[Finding]:
    """Check whether several targets have the same address and project."""
    addressed = [((node.url, node.project), node) for node in targets]
    for (url, _), nodes in _find_repeated(addressed):
        text = f"these targets have the same url, {url}; only {nodes[0]} is used"
        remedy = f"scrapy.cfg: remove [deploy:{nodes[1]}]"
        yield Finding(Severity.NOTE, ", ".join(nodes), "names", text, remedy)


def _find_repeated(pairs: Iterable[tuple[T, Node]]) -> list[tuple[T, tuple[str, ...]]]:
    """Return each key that stands with several nodes, and their names."""
    return [(key, names) for key, names in group_names(pairs).items() if len(names) > 1]
