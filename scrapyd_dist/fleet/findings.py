"""Finds what is wrong with a node by its diagnosis, each with its remedy. Values in, values out."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from scrapyd_dist.deploy.boot import OLDEST_PACKAGES
from scrapyd_dist.errors import ConnectionRefused
from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.fleet.kept_logs import KeptLogs
from scrapyd_dist.fleet.no_answer import explain_no_answer, set_in_target
from scrapyd_dist.plurals import counted
from scrapyd_dist.scheduling.liveness import SKEW
from scrapyd_dist.scrapyd.versions import behind, is_crawls
from scrapyd_dist.this_machine import is_loopback

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
#: package -> the oldest version that a node may have
_OLDEST = {package: "{}.{}".format(*numbers) for package, numbers in OLDEST_PACKAGES}
#: what an egg of ours says on a node where Python, Scrapy or Scrapyd is too old for it
_TOO_OLD = re.compile(r"(\w+) [\d.]+ is too old for scrapyd-dist; it needs ([\d.]+)")


#: how a node is told of in a finding -> how several are
_PLURALS = {
    "it asks": "they ask",
    "it can": "they can",
    "it cannot": "they cannot",
    "it has": "they have",
    "it is": "they are",
    "it remembers": "they remember",
    "it runs": "they run",
    "it sends": "they send",
    "it serves": "they serve",
    "it took": "they took",
    "its": "their",
}
_OF_ONE = re.compile(rf"\b({'|'.join(_PLURALS)})\b")


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


def of_several(text: str) -> str:
    """Return the text of a finding about one node as it is about several.

    What stands behind a colon may be the words of a node.
    """
    sentence, colon, rest = text.partition(":")
    return _OF_ONE.sub(lambda found: _PLURALS[found[0]], sentence) + colon + rest


def _finding(
    exam: NodeDiagnosis, severity: Severity, topic: str, text: str, remedy: str
) -> Finding:
    return Finding(severity, exam.node.name, topic, text, remedy)


def findings(exam: NodeDiagnosis, now: datetime) -> list[Finding]:
    """Return the findings about a node; `now` is UTC."""
    if exam.error is not None:
        topic, remedy = explain_no_answer(exam, exam.error)
        text = exam.reason.split(". ")[0].rstrip(".")
        if exam.node.local and isinstance(exam.error, ConnectionRefused):
            text = "it is dead: its process has ended"
        return [_finding(exam, Severity.DANGER, topic, text, remedy)]
    checks = (
        _check_entry,
        _check_clock,
        _check_start_delay,
        _check_age,
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


def _check_entry(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check authentication and encryption."""
    node = exam.node
    is_remote = not is_loopback(node.host)
    if node.username is None and is_remote:
        text = "it asks for no password: any program that reaches the port can run code there"
        remedy = (
            "scrapyd.conf: username = …, password = … (or SCRAPYD_USERNAME, SCRAPYD_PASSWORD in its"
            " environment)"
        )
        yield _finding(exam, Severity.WARNING, "auth", text, remedy)
    if node.username is not None and node.url.startswith("http:") and is_remote:
        text = "the password travels readable, since the url is http://"
        remedy = "Put a proxy with TLS before it, or a tunnel."
        yield _finding(exam, Severity.WARNING, "auth", text, remedy)
    if node.url.startswith("https:") and not node.verify:
        text = (
            "its certificate is not checked (verify = no), so anybody can pretend to be this node"
        )
        remedy = set_in_target(node, "ca = FILE, in place of verify = no")
        yield _finding(exam, Severity.WARNING, "tls", text, remedy)


def _check_certificate(exam: NodeDiagnosis, now: datetime) -> Iterator[Finding]:
    ends = exam.certificate_ends
    if ends is None or ends - now > SOON:
        return
    severity = Severity.DANGER if ends - now < TOO_SOON else Severity.WARNING
    days = counted(max(0, (ends - now).days), "day")
    text = f"its certificate ends in {days}, on {ends:%Y-%m-%d %H:%M} UTC"
    remedy = "Renew the certificate of the proxy before this Scrapyd."
    yield _finding(exam, severity, "tls", text, remedy)


def _check_clock(exam: NodeDiagnosis) -> Iterator[Finding]:
    if exam.skew is not None and abs(exam.skew) >= SKEW:
        severity = Severity.WARNING if abs(exam.skew) >= WRONG_CLOCK else Severity.NOTE
        direction = "ahead of" if exam.skew > 0 else "behind"
        text = (
            f"its clock is {abs(exam.skew):.0f} s {direction} ours"
            "; start times are corrected for that, the order of merged logs is not"
        )
        remedy = "On the node: timedatectl set-ntp true (or run chrony)."
        yield _finding(exam, severity, "clock", text, remedy)
    if exam.latency is not None and exam.latency > SLOW:
        text = f"it took {exam.latency:.1f} s to answer"
        remedy = (
            "Look at its load: max_proc above its number of cores, or a project that takes long to"
            " import."
        )
        yield _finding(exam, Severity.WARNING, "latency", text, remedy)


def _check_start_delay(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check how long jobs wait until the node looks at its queue again."""
    if exam.start_delay >= LATE:
        text = (
            "jobs that were sent there, while a slot was free, began up to"
            f" {exam.start_delay:.0f} s later"
        )
        yield _finding(exam, Severity.WARNING, "poll_interval", text, POLL_REMEDY)


def _check_age(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check whether Scrapyd and Scrapy are new enough."""
    remedy = "On the node: pip install --upgrade 'scrapyd>=1.5'"
    if exam.old_scrapyd:
        text = f"it is older than Scrapyd {_OLDEST['Scrapyd']}: deployments and crawls leave it out"
        yield _finding(exam, Severity.DANGER, "version", text, remedy)
    elif exam.knows_status is False:
        text = (
            "it has no status.json, so it is older than Scrapyd 1.5: a job is looked up in its"
            " whole list, which forgets old ones"
        )
        yield _finding(exam, Severity.WARNING, "version", text, remedy)
    if exam.old_scrapy:
        text = (
            f"the log of its last job was written by Scrapy {exam.old_scrapy}, which is too old:"
            " deployments and crawls leave it out"
        )
        wanted = f"scrapy>={_OLDEST['Scrapy']}"
        remedy = f"On the node: pip install --upgrade '{wanted}', then restart Scrapyd"
        yield _finding(exam, Severity.DANGER, "version", text, remedy)


def _check_files(exam: NodeDiagnosis) -> Iterator[Finding]:
    """Check whether items and logs can be fetched."""
    if exam.logs is False:
        text = (
            "it serves no /logs/: a crawl's items cannot be fetched from there, and how jobs ended"
            " cannot be told"
        )
        remedy = "scrapyd.conf: logs_dir = logs (or --feed URL for each crawl)"
        yield _finding(exam, Severity.DANGER, "logs", text, remedy)
    if exam.ranges is False:
        text = (
            "it sends whole files where a piece is asked for: following logs costs their whole"
            " length each time"
        )
        remedy = (
            "Look at the proxy before it: it has to pass the Range header on, and not compress."
        )
        yield _finding(exam, Severity.WARNING, "logs", text, remedy)
    if exam.items:
        text = (
            "items_dir is set: Scrapyd then replaces the FEEDS of plain jobs, and keeps their items"
            " on the node"
        )
        remedy = (
            "Keep it for `sdist items pull JOB`, if no plain job has its own FEEDS; else"
            " scrapyd.conf: items_dir ="
        )
        yield _finding(exam, Severity.WARNING, "items", text, remedy)


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
        yield _finding(exam, Severity.NOTE, "logs", text, remedy)
    if logs.most <= KEPT_BY_DEFAULT:
        text = (
            "its value cannot be seen from outside until more than 5 jobs of a spider have run; the"
            " default is 5"
        )
        remedy = (
            "scrapyd.conf: jobs_to_keep = 1000000, if plain jobs run there (crawls do not depend"
            " on it)"
        )
        yield _finding(exam, Severity.NOTE, "jobs_to_keep", text, remedy)


def _count_lost_logs(logs: KeptLogs) -> str:
    return f"{logs.lost} of the {logs.kept + logs.lost} finished jobs that it remembers have no log"


def _describe_deleted_logs(exam: NodeDiagnosis) -> Finding:
    logs = exam.kept_logs
    severity = Severity.WARNING
    text = (
        f"{_count_lost_logs(logs)} any more: most likely jobs_to_keep = {max(1, logs.most - 1)} or"
        f" {logs.most}; Scrapyd deletes logs even while their job runs. Or somebody deleted them"
    )
    if exam.items:
        severity = Severity.DANGER
        text += "; with items_dir the items of these jobs go too"
    remedy = "scrapyd.conf: jobs_to_keep = 1000000, if it is less, then restart Scrapyd"
    return _finding(exam, severity, "jobs_to_keep", text, remedy)


def _check_code(exam: NodeDiagnosis) -> Iterator[Finding]:
    if exam.eggs:
        yield _describe_unreadable_egg(exam)
    elif exam.project is not None and exam.versions == ():
        text = (
            f"it has no version of the project {exam.project}, so whether it can read eggs is not"
            " known"
        )
        yield _finding(exam, Severity.NOTE, "versions", text, "sdist deploy --all --only-missing")
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
    return _finding(exam, Severity.DANGER, "eggs", text, remedy)


def _check_default_version(exam: NodeDiagnosis, versions: tuple[str, ...]) -> Iterator[Finding]:
    """Check that jobs that name no version run the newest deployment."""
    default = versions[-1]
    if is_crawls(default):
        text = (
            f"nothing was deployed there: jobs that name no version would run {default}, which a"
            " crawl brought"
        )
        remedy = "For plain jobs: sdist deploy --all"
        yield _finding(exam, Severity.NOTE, "versions", text, remedy)
    elif newer := behind(versions, exam.known):
        text = f"jobs that name no version run {default}, which Scrapyd sorts behind {newer}"
        remedy = (
            "When no job needs it any more: sdist nodes api"
            f" {_quote_for_shell(exam.node.name)} delversion project={exam.project}"
            f" version={default}"
        )
        yield _finding(exam, Severity.WARNING, "versions", text, remedy)


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
        yield _finding(exam, Severity.DANGER, "slots", text, remedy)
    if exam.draining is not None:
        remedy = f"sdist nodes resume {_quote_for_shell(exam.node.name)}"
        yield _finding(
            exam, Severity.NOTE, "draining", "it is draining: it gets no new work", remedy
        )


def _quote_for_shell(name: str) -> str:
    if " " in name:
        return f"'{name}'"
    return name
