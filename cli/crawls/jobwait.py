"""Waiting for plain jobs, and judging them when they are over. Rule: a node that does not answer decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import NodeError
from scrapyd_dist.jobs.judged import Outcome
from scrapyd_dist.scrapyd.api import JobState

from ..jobs.joblist import TIMEOUT, ask_jobs, chosen_nodes, make_sender, named
from .waiting import check_time, combined

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

    from ..jobs.joblist import JobList, Listed
    from ..jobs.judging import Judged

#: seconds between two questions to the nodes
ASK = 2.0
#: seconds of silence in the log of a job that its node has forgotten, after which it counts as over
FORGOTTEN = 60.0

_WORDS = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.KILLED: "was killed",
    Outcome.DIED: "died",
}


def wait_for_jobs(
    project: ProjectConfig, names: Sequence[str], patterns: Sequence[str] | None, deadline: float, *, as_json: bool
) -> int:
    """Wait until these jobs are over; gives the exit code.

    Raises:
        NothingMatched: no node lists a job of that id.
        StillRuns: after the deadline.
    """
    from ..speaking import complain, put_json
    from .interrupts import looked_out_for

    waited = Waited(sender=make_sender(), nodes=chosen_nodes(project, patterns), names=tuple(dict.fromkeys(names)))
    with looked_out_for() as ctrl_c:
        while running := waited.look():
            check_time(deadline, f"job {running[0]}", f"sdist logs -f {running[0]}")
            ctrl_c.pause(ASK)
    ended = waited.judged(project.root)
    if as_json:
        put_json({"jobs": [_row(one) for one in ended]})
    bad = [one for one in ended if one.verdict.outcome is not Outcome.FINISHED]
    for one in bad:
        how = _WORDS.get(one.verdict.outcome, "left nothing that tells how it ended")
        reason = f": {one.verdict.reason}" if one.verdict.reason else ""
        complain(f"The job {one.row.place.job} on {one.row.place.node.name} {how}{reason.rstrip('.')}.")
    return combined(int(one in bad) for one in ended)


def _row(one: Judged) -> dict[str, Any]:
    place, verdict = one.row.place, one.verdict
    return {
        "node": place.node.name,
        "project": place.project,
        "spider": place.spider,
        "job": place.job,
        "state": verdict.outcome.value,
        "pages": verdict.pages,
        "items": verdict.items,
        "errors": verdict.errors,
        "reason": verdict.reason,
    }


@dataclass(kw_only=True)
class Waited:
    """The jobs that are waited for, as their nodes listed them last."""

    sender: Sender
    nodes: Sequence[Node]
    names: tuple[str, ...]
    _jobs: dict[tuple[str, str], Listed] = field(default_factory=dict)  #: by base address of the node, and id
    _told: set[str] = field(default_factory=set)  #: which nodes do not answer, and why

    def look(self) -> list[str]:
        """Ask the nodes once; gives the ids of the jobs that are not over."""
        found = ask_jobs(self.sender, self.nodes, timeout=TIMEOUT)
        self._name_dark(found)
        listed = {(row.place.node.url, row.place.job): row for row in found.jobs}
        if not self._jobs:
            if len(found.errors) == found.asked:
                raise found.errors[0]
            rows = named(found, self.names, {})
            self._jobs = {(row.place.node.url, row.place.job): row for row in rows}
        left = []
        for key, row in self._jobs.items():
            self._jobs[key] = now = listed.get(key, row)
            over = (
                now.state is JobState.FINISHED if key in listed else key[0] not in found.silent and self._is_silent(now)
            )
            if not over:
                left.append(now.place.job)
        return left

    def _name_dark(self, found: JobList) -> None:
        """Say once which nodes do not answer: it is waited for them."""
        from ..speaking import complain

        texts = {str(error) for error in found.errors}
        for text in texts - self._told:
            complain(text)
        self._told = texts

    def _is_silent(self, row: Listed) -> bool:
        """Of a job that its node has forgotten: whether its log says that it is over. It may live on as an orphan."""
        from scrapyd_dist.jobs.logreads import look

        if row.state is JobState.FINISHED:
            return True
        try:
            seen = look(self.sender, row.place.node, row.place.log, timeout=TIMEOUT)
        except NodeError:
            return False
        return seen is None or bool(seen.facts.closed) or (seen.silent or 0.0) >= FORGOTTEN

    def judged(self, root: Path) -> list[Judged]:
        """What they really did."""
        from dataclasses import replace

        from ..jobs.judging import Judge, kept_of
        from ..jobs.signals import noted

        rows = [replace(row, state=JobState.FINISHED) for row in self._jobs.values()]
        judge = Judge(sender=self.sender, kept=kept_of(root, rows), signalled=frozenset(noted(root)))
        return [judge.judge(row) for row in rows]
