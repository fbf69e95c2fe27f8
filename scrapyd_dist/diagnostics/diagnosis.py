"""Findings about one node and about a whole fleet, each with its remedy. Values and rules, no IO."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConnectionRefused, HostNotFound, NotFound, NotJson, TlsRefused
from scrapyd_dist.scheduling.node_state import SKEW, NodeHealth, state_of
from scrapyd_dist.scrapyd.versions import behind, is_crawls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Load


#: response time in seconds from which a node is reported as slow
SLOW = 1.0


#: clock skew in seconds that network latency cannot explain
WRONG_CLOCK = 60.0


#: time before a certificate's expiry from which it is a warning, and a danger
SOON, TOO_SOON = timedelta(days=21), timedelta(days=3)


class Severity(str, Enum):
    """The severity of a finding."""

    DANGER = "danger"  #: work is lost, stalls, or cannot be fetched
    WARNING = "warning"  #: a problem that does not lose work
    NOTE = "note"  #: for information

    @property
    def order(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding about a node."""

    severity: Severity
    node: str  #: name of the node, or names
    topic: str  #: one word
    text: str
    remedy: str  #: a command, a line of scrapyd.conf or scrapy.cfg, or other advice


@dataclass(frozen=True, kw_only=True)
class KeptLogs:
    """Which logs of a node's remembered finished jobs still exist."""

    kept: int = 0
    lost: int = 0
    most: int = 0  #: the largest number of kept logs of one spider
    in_order: bool = True  #: whether, for each spider, all lost logs are older than all kept ones


@dataclass(frozen=True, kw_only=True)
class NodeDiagnosis:
    """The examined state of a node. None means unknown."""

    node: Node
    error: NodeError | None = None
    load: Load | None = None
    latency: float | None = None  #: seconds
    skew: float | None = None  #: its clock minus ours, seconds
    #: only if the node did not answer like Scrapyd: whether its port speaks TLS or plain HTTP
    speaks_tls: bool | None = None
    speaks_http: bool | None = None
    found_at: str = ""  #: another base address at which Scrapyd answers
    certificate_ends: datetime | None = None  #: UTC
    knows_status: bool | None = None  #: whether it has status.json
    logs: bool | None = None  #: whether it serves a log folder
    ranges: bool | None = None  #: whether it supports Range requests
    items: bool | None = None  #: whether it has an items_dir
    kept_logs: KeptLogs = KeptLogs()
    project: str | None = None  #: the examined project
    versions: tuple[str, ...] | None = None
    known: Mapping[str, float] = field(default_factory=dict)  #: upload times of versions whose names have no time
    eggs: str = ""  #: its error on reading its default version; empty if it can
    draining: bool = False
    wedged: bool = False

    @property
    def state(self) -> NodeHealth:
        return state_of(self.error, wedged=self.wedged, draining=self.draining)


def findings(exam: NodeDiagnosis, now: datetime) -> list[Finding]:
    """Return the findings about a node; `now` is UTC."""
    if exam.error is not None:
        return [_unreached(exam, exam.error)]
    found = [finding for rule in (_entry, _clock, _files, _logs_lost, _code, _work) for finding in rule(exam)]
    return [*found, *_certificate(exam, now)]


def _finding(severity: Severity, exam: NodeDiagnosis, topic: str, text: str, remedy: str) -> Finding:
    return Finding(severity=severity, node=exam.node.name, topic=topic, text=text, remedy=remedy)


def _unreached(exam: NodeDiagnosis, error: NodeError) -> Finding:
    """Return the finding for a node that does not answer like Scrapyd."""
    said = str(error).removeprefix(f"{exam.node}: ").split(". ")[0].rstrip(".")
    topic, remedy = why_not(exam, error)
    return _finding(Severity.DANGER, exam, topic, said, remedy)


def is_local(host: str) -> bool:
    """Whether a host is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _entry(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check authentication and encryption."""
    node = exam.node
    open_ = node.username is None
    if open_ and not is_local(node.host):
        text = "it asks for no password: whoever reaches the port can run code there"
        remedy = "scrapyd.conf: username = …, password = … (or SCRAPYD_USERNAME, SCRAPYD_PASSWORD in its environment)"
        yield _finding(Severity.WARNING, exam, "auth", text, remedy)
    if not open_ and node.url.startswith("http:") and not is_local(node.host):
        text = "the password travels readable, since the url is http://"
        yield _finding(Severity.WARNING, exam, "auth", text, "Put a proxy with TLS before it, or a tunnel.")
    if node.url.startswith("https:") and not node.verify:
        text = "its certificate is not checked (verify = no), so anybody can pretend to be this node"
        yield _finding(Severity.WARNING, exam, "tls", text, in_target(exam.node, "ca = FILE, in place of verify = no"))


def _certificate(exam: NodeDiagnosis, now: datetime) -> Iterator[Finding]:
    ends = exam.certificate_ends
    if ends is None or ends - now > SOON:
        return
    severity = Severity.DANGER if ends - now < TOO_SOON else Severity.WARNING
    text = f"its certificate ends in {max(0, (ends - now).days)} days, on {ends:%Y-%m-%d %H:%M} UTC"
    yield _finding(severity, exam, "tls", text, "Renew the certificate of the proxy before this Scrapyd.")


def _clock(exam: NodeDiagnosis) -> Iterator[Finding]:
    if exam.skew is not None and abs(exam.skew) >= SKEW:
        severity = Severity.WARNING if abs(exam.skew) >= WRONG_CLOCK else Severity.NOTE
        text = f"its clock is {abs(exam.skew):.0f} s {'ahead of' if exam.skew > 0 else 'behind'} ours"
        text += "; start times are corrected for that, the order of merged logs is not"
        yield _finding(severity, exam, "clock", text, "On the node: timedatectl set-ntp true (or run chrony).")
    if exam.latency is not None and exam.latency > SLOW:
        text = f"it took {exam.latency:.1f} s to answer"
        remedy = "Look at its load: max_proc above its number of cores, or a project that takes long to import."
        yield _finding(Severity.WARNING, exam, "latency", text, remedy)


def _files(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check whether items and logs can be fetched."""
    if exam.knows_status is False:
        text = "it has no status.json, so it is older than Scrapyd 1.5: after a lost answer nobody can ask for a job"
        yield _finding(Severity.DANGER, exam, "version", text, "On the node: pip install --upgrade 'scrapyd>=1.5'")
    if exam.logs is False:
        text = "it serves no /logs/: a crawl's items cannot be fetched from there, and nobody can tell how jobs ended"
        yield _finding(
            Severity.DANGER, exam, "logs", text, "scrapyd.conf: logs_dir = logs (or --feed URL for each crawl)"
        )
    if exam.ranges is False:
        text = "it sends whole files where a piece is asked for: following logs costs their whole length each time"
        remedy = "Look at the proxy before it: it has to pass the Range header on, and not compress."
        yield _finding(Severity.WARNING, exam, "logs", text, remedy)
    if exam.items:
        text = "items_dir is set: Scrapyd then replaces the FEEDS that a plain job is given"
        yield _finding(Severity.WARNING, exam, "items", text, "scrapyd.conf: items_dir = (empty)")


def _logs_lost(exam: NodeDiagnosis) -> Iterator[Finding]:
    logs = exam.kept_logs
    if not logs.lost:
        if logs.most <= 5:
            text = (
                "jobs_to_keep cannot be seen from outside until more than 5 jobs of a spider have run; its default is 5"
            )
            remedy = "scrapyd.conf: jobs_to_keep = 1000000, if plain jobs run there (crawls do not depend on it)"
            yield _finding(Severity.NOTE, exam, "jobs_to_keep", text, remedy)
        return
    total = logs.kept + logs.lost
    sure = f"most likely jobs_to_keep = {max(1, logs.most - 1)} or {logs.most}" if logs.in_order else "perhaps by hand"
    text = f"{logs.lost} of the {total} finished jobs that it remembers have no log any more: {sure}"
    text += "; Scrapyd deletes logs even while their job runs"
    severity = Severity.WARNING
    if exam.items:
        severity = Severity.DANGER
        text += ", and with items_dir the items of these jobs too"
    yield _finding(severity, exam, "jobs_to_keep", text, "scrapyd.conf: jobs_to_keep = 1000000, then restart Scrapyd")


def _code(exam: NodeDiagnosis) -> Iterator[Finding]:
    if exam.eggs:
        text = f"it cannot read the version that it runs by default: {exam.eggs.rstrip('.')}"
        remedy = "Mend the code and deploy again: sdist deploy-all"
        if "pkg_resources" in exam.eggs:
            remedy = "On the node: pip install 'setuptools<81' (82 has no pkg_resources), then restart Scrapyd"
        elif "No module named" in exam.eggs:
            remedy = "Install the module on the node, or: sdist deploy-all --include-dependencies"
        yield _finding(Severity.DANGER, exam, "eggs", text, remedy)
    elif exam.project is not None and exam.versions == ():
        text = f"it has no version of the project {exam.project}, so whether it can read eggs is not known"
        yield _finding(Severity.NOTE, exam, "versions", text, "sdist deploy-all --only-missing")
    elif exam.versions:
        yield from _plain_jobs(exam, exam.versions)


def _plain_jobs(exam: NodeDiagnosis, versions: Sequence[str]) -> Iterator[Finding]:
    """Check whether jobs that name no version run the newest deployment."""
    default = versions[-1]
    if is_crawls(default):
        text = f"jobs that name no version run {default}, which a crawl brought: nothing was deployed there"
        yield _finding(Severity.WARNING, exam, "versions", text, "sdist deploy-all")
    elif newer := behind(versions, exam.known):
        text = f"jobs that name no version run {default}, which Scrapyd sorts behind {newer}"
        deletes = f"sdist api {_shell(exam.node.name)} delversion project={exam.project} version={default}"
        remedy = f"When no job needs it any more: {deletes}"
        yield _finding(Severity.WARNING, exam, "versions", text, remedy)


def _work(exam: NodeDiagnosis) -> Iterator[Finding]:
    pending = exam.load.pending if exam.load else 0
    if exam.wedged:
        text = f"{pending} jobs wait, and none was started in three looks: its process slots are lost"
        remedy = "Restart its Scrapyd: jobs that wait are kept. Oversized arguments and job ids with a slash do that."
        yield _finding(Severity.DANGER, exam, "slots", text, remedy)
    if exam.draining:
        text = "it is draining: it gets no new work"
        yield _finding(Severity.NOTE, exam, "draining", text, f"sdist nodes resume {_shell(exam.node.name)}")


def _shell(name: str) -> str:
    return f"'{name}'" if " " in name else name


# why a node does not answer like Scrapyd


def in_target(node: Node, line: str) -> str:
    """Return a remedy: a line for the node's section of scrapy.cfg."""
    return f"scrapy.cfg, [deploy:{node.name}]: {line}"


def host_of(url: str) -> str:
    """Return scheme, host and port of a url, where Scrapyd would be without a path prefix."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def why_not(exam: NodeDiagnosis, error: NodeError) -> tuple[str, str]:
    """Return the kind of problem, in a word or two, and the remedy."""
    found = _of_port(exam)
    if found is not None:
        return found
    if isinstance(error, TlsRefused):
        return "tls", _tls_remedy(exam.node, str(error))
    if error.exit_code == 6:
        line = "username = …, password = $SOME_VARIABLE; or an entry for the host in ~/.netrc"
        return "auth", in_target(exam.node, line)
    if isinstance(error, (NotFound, NotJson)):
        return "base path", _base_path(exam)
    return "reach", _reach_remedy(exam.node, error)


def _of_port(exam: NodeDiagnosis) -> tuple[str, str] | None:
    """Return problem and remedy if the url's scheme does not match the protocol of the port."""
    scheme, rest = exam.node.url.split("://", 1)
    if scheme == "https" and exam.speaks_tls is False and exam.speaks_http:
        return "tls", in_target(exam.node, f"url = http://{rest}/ (this port speaks no TLS)")
    if scheme == "http" and exam.speaks_tls:
        return "tls", in_target(exam.node, f"url = https://{rest}/ (this port speaks TLS)")
    return None


def _base_path(exam: NodeDiagnosis) -> str:
    if exam.found_at:
        return in_target(exam.node, f"url = {exam.found_at}/ (Scrapyd answers there)")
    url = exam.node.url
    return f"Is that a Scrapyd? {url} has to be its base address, with the path that a proxy puts before it."


def _reach_remedy(node: Node, error: NodeError) -> str:
    if isinstance(error, ConnectionRefused):
        return "Start Scrapyd there; scrapyd.conf: bind_address = 0.0.0.0, if it listens on 127.0.0.1 only."
    if isinstance(error, HostNotFound):
        return in_target(node, "url = …, with a name that this machine can look up")
    return error.hint or "Look into its log."


def _tls_remedy(node: Node, text: str) -> str:
    if "expired" in text:
        return "Renew the certificate of the proxy before this Scrapyd."
    if "mismatch" in text or "doesn't match" in text:
        return in_target(node, "url = https://…, with a name that stands in the certificate")
    if node.ca is not None:
        return in_target(node, "ca = …, the file with the certificates that signed the server's own (this did not)")
    return in_target(node, "ca = FILE, with the CA certificate, if it is of your own making")


def fleet_findings(
    exams: Sequence[NodeDiagnosis],
    targets: Iterable[Node],
    newest: Mapping[str, str | None],
    same: Callable[[str, str], bool],
) -> list[Finding]:
    """Return findings that need all nodes to be compared.

    Args:
        exams: the exams of all nodes.
        targets: all targets of scrapy.cfg.
        newest: node name -> newest version of the project; None if the node has none.
        same: returns whether two versions are the same code.
    """
    return [*_mixed(newest, same), *_one_name(exams), *_one_url(targets)]


def _mixed(newest: Mapping[str, str | None], same: Callable[[str, str], bool]) -> Iterator[Finding]:
    groups: dict[str, list[str]] = {}
    for node, version in newest.items():
        if version is not None:
            groups.setdefault(next((one for one in groups if same(one, version)), version), []).append(node)
    if len(groups) > 1:
        fewest: list[str] = min(groups.values(), key=len)
        shown = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(groups.items()))
        yield Finding(
            severity=Severity.WARNING,
            node=", ".join(fewest),
            topic="versions",
            text=f"the newest versions of the project differ: {shown}",
            remedy="sdist deploy-all --only-missing (the egg that was sent last), or: sdist deploy-all",
        )


def _one_name(exams: Sequence[NodeDiagnosis]) -> Iterator[Finding]:
    by_name: dict[str, list[str]] = {}
    for exam in exams:
        if exam.load is not None:
            by_name.setdefault(exam.load.node_name, []).append(exam.node.name)
    for name, nodes in by_name.items():
        if len(nodes) > 1:
            yield Finding(
                severity=Severity.NOTE,
                node=", ".join(nodes),
                topic="names",
                text=f"all of them say that they are {name!r}; if that is one Scrapyd, its slots are counted twice",
                remedy="Remove all but one [deploy:…] of it from scrapy.cfg; else scrapyd.conf: node_name = …",
            )


def _one_url(targets: Iterable[Node]) -> Iterator[Finding]:
    by_url: dict[str, list[str]] = {}
    for node in targets:
        by_url.setdefault(node.url, []).append(node.name)
    for url, names in by_url.items():
        if len(names) > 1:
            yield Finding(
                severity=Severity.NOTE,
                node=", ".join(names),
                topic="names",
                text=f"these targets have the same url, {url}; only {names[0]} is used",
                remedy=f"scrapy.cfg: remove [deploy:{names[1]}]",
            )
