"""Finds what is wrong with a fleet as a whole: it needs all nodes to be compared."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.fleet.findings import Finding, Severity
from scrapyd_dist.nodes import Node, group_names
from scrapyd_dist.scrapyd.versions import content_or_name

T = TypeVar("T")


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
