"""Finds problems of a fleet as a whole: different versions, duplicate nodes. No IO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapyd_dist.upkeep.checkup import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.upkeep.checkup import Exam


def fleet_findings(
    exams: Sequence[Exam], targets: Iterable[Node], newest: Mapping[str, str | None], same: Callable[[str, str], bool]
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


def _one_name(exams: Sequence[Exam]) -> Iterator[Finding]:
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
