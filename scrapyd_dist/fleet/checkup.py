"""Examines a whole fleet, and the files here, for what endangers work; `sdist doctor` shows it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.fleet.examination import examine
from scrapyd_dist.fleet.findings import Finding, Severity, findings
from scrapyd_dist.fleet.fleet_findings import fleet_findings
from scrapyd_dist.fleet.local_findings import local_findings
from scrapyd_dist.fleet.waiting_work import WaitProgress, watch_waiting_work
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.nodes import Node
from scrapyd_dist.transports import Sender, sweep

#: seconds that a node gets for each answer
TIMEOUT = 15.0
#: the fields of a node's document that are in that of the doctor, too
_FIELDS = ("name", "url", "state", "latency_ms", "skew_s")
#: opens what is told of how many nodes were examined
ExamProgress = Callable[[], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """What was found out about the nodes, and what of it is to be mended."""

    exams: Sequence[NodeDiagnosis]
    findings: Sequence[Finding]  #: the worst first

    @property
    def endangers_work(self) -> bool:
        """Whether a node that answers, or this machine, endangers work."""
        silent = {exam.node.name for exam in self.exams if exam.error is not None}
        for finding in self.findings:
            if finding.severity is Severity.DANGER and finding.node not in silent:
                return True
        return False

    def document(self) -> dict[str, Any]:
        """Return all of it as `sdist doctor --json` gives it."""
        rows = []
        for finding in self.findings:
            row = {**finding._asdict(), "severity": finding.severity.value}
            rows.append(row)
        return {"nodes": list(map(_node_row, self.exams)), "findings": rows}


def check_fleet(
    workspace: Workspace,
    nodes: Sequence[Node],
    project: str | None,
    *,
    targets: Iterable[Node] = (),
    sender: Sender | None = None,
    timeout: float = TIMEOUT,
    progress: ExamProgress = lambda: nullcontext(lambda _: None),
    wait_progress: WaitProgress = lambda: nullcontext(lambda _: None),
) -> Checkup:
    """Examine the nodes, and find what is wrong with each, with all of them, and here.

    project: whose code is tried, where a target names none; targets: those of scrapy.cfg, where
    they are compared, too; sender: the workspace's own if left out; timeout: seconds for each
    answer.
    """
    sender = sender or workspace.sender
    exams = _examine_all(workspace, sender, nodes, project, timeout, progress)
    exams = watch_waiting_work(workspace, sender, exams, timeout, wait_progress)
    now = datetime.now(timezone.utc)
    found: list[Finding] = []
    for exam in exams:
        found += findings(exam, now)
    found += fleet_findings(exams, targets)
    found += local_findings(workspace.root)
    found.sort(key=lambda finding: list(Severity).index(finding.severity))
    return Checkup(exams=exams, findings=found)


def _examine_all(
    workspace: Workspace,
    sender: Sender,
    nodes: Sequence[Node],
    project: str | None,
    timeout: float,
    progress: ExamProgress,
) -> list[NodeDiagnosis]:
    """Examine all nodes at once; return the diagnoses in the order of the nodes."""
    known = workspace.known_times(nodes, project)
    exams: dict[Node, NodeDiagnosis] = {}
    with progress() as note:
        for answer in sweep(nodes, lambda node: examine(sender, node, project, known, timeout)):
            if answer.value is not None:
                exams[answer.asked] = answer.value
            note(len(exams))
    return [exams[node] for node in nodes]


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
