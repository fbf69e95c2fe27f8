"""`sdist versions` and `sdist spiders`: what the nodes have, and where they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from scrapyd_dist.deploy import node_versions
from scrapyd_dist.deploy.node_versions import in_use

from scrapyd_dist.config import load
from scrapyd_dist.scrapyd.versions import current

from ..output import complain, put, put_json, say
from ..selectors import Json, Nodes, Project, called, chosen, known_times, version_lookup
from ..tables import table
from ..target_nodes import exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapyd_dist.deploy.node_versions import NodeVersions, SpiderList

    from scrapyd_dist.errors import DistError

#: `--check` found a difference
DIFFERS = 10
#: seconds that a node gets for each question
TIMEOUT, SLOW_TIMEOUT = 15.0, 60.0
#: with more nodes, a table of versions tells numbers and names in place of a column for each node
_COLUMNS = 8


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("versions")(versions)
    app.command("spiders")(spiders)


def versions(
    project: Project = None,
    node: Nodes = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 10 when the nodes would not run the same newest code.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for each question to a node.", min=0.1)] = TIMEOUT,
    as_json: Json = False,
) -> None:
    """Show which node has which versions of the project.

    `default` is what a job runs that names no version: Scrapyd takes the one
    that sorts last. Where that is not the newest deployment, or only what a crawl
    brought, it is said. Crawls and `sdist schedule` name theirs.

    Example: sdist versions --check
    """
    found = load()
    name, nodes = called(chosen(found, node), found, project)
    seen = node_versions.look(nodes, name, timeout=timeout)
    uses = version_lookup(found)
    known = known_times(found.root, nodes, name)
    differing, crawls = node_versions.differences(seen, known), node_versions.only_crawls(seen)
    if as_json:
        rows = [_row(entry, uses, known) for entry in seen]
        document = {"project": name, "same": not differing, "differences": differing, "warnings": crawls}
        put_json({**document, "nodes": rows})
    else:
        _show_versions(seen, name, uses, known)
    for text in [*differing, *crawls]:
        complain(text)
    errors = [entry.error for entry in seen if entry.error is not None]
    _complain_once(errors)
    raise typer.Exit(DIFFERS if check and differing else exit_code(len(seen), errors))


def _row(seen: NodeVersions, version_of: Callable[[str], str | None], known: Mapping[str, float]) -> dict[str, Any]:
    use = in_use(seen, version_of)
    return {
        "name": seen.node.name,
        "url": seen.node.url,
        "project": seen.project,
        "versions": list(seen.versions),
        "default": seen.default,
        "newest": current(seen.versions, known),
        "jobs": {version: list(jobs) for version, jobs in use.jobs.items()},
        "jobs_of_unknown_version": list(use.unknown),
        "reason": str(seen.error or ""),
    }


def _show_versions(
    seen: Sequence[NodeVersions], project: str, version_of: Callable[[str], str | None], known: Mapping[str, float]
) -> None:
    answered = [entry for entry in seen if entry.error is None]
    names = sorted({name for entry in answered for name in entry.versions}, key=lambda name: _order(name, answered))
    if not names and answered:
        say(f"No node that answered has a version of the project {project}. Send one: sdist deploy-all.")
    if not names:
        return
    if len(answered) <= _COLUMNS:
        rows = [(name, *(_cell(entry, name, version_of) for entry in answered)) for name in names]
        table(("version", *(entry.node.name for entry in answered)), rows)
    else:
        table(("version", "nodes", "default on", "missing on"), [_counts(name, answered) for name in names])
    for entry in answered:
        unknown = _row(entry, version_of, known)["jobs_of_unknown_version"]
        if unknown:
            put(f"{entry.node.name}: {len(unknown)} running, of a version that Scrapyd does not tell")


def _order(name: str, seen: Sequence[NodeVersions]) -> tuple[int, str]:
    """Scrapyd's order as far as one node tells it: what sorts last there stands first here."""
    places = [len(entry.versions) - entry.versions.index(name) for entry in seen if name in entry.versions]
    return min(places), name


def _cell(seen: NodeVersions, name: str, version_of: Callable[[str], str | None]) -> str:
    if name not in seen.versions:
        return "-"
    jobs = len(in_use(seen, version_of).jobs.get(name, ()))
    return ("default" if name == seen.default else "has it") + (f", {jobs} jobs" if jobs else "")


def _counts(name: str, seen: Sequence[NodeVersions]) -> tuple[str, int, int, str]:
    missing = [entry.node.name for entry in seen if name not in entry.versions]
    shown = ", ".join(missing[:_COLUMNS]) + (f" and {len(missing) - _COLUMNS} more" if len(missing) > _COLUMNS else "")
    return name, len(seen) - len(missing), sum(entry.default == name for entry in seen), shown or "-"


def spiders(
    project: Project = None,
    node: Nodes = None,
    version: Annotated[
        Optional[str], typer.Option(help="Of this version; otherwise of each node's newest deployment.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for each question to a node.", min=0.1)] = SLOW_TIMEOUT,
    as_json: Json = False,
) -> None:
    """List the spiders of the project on the nodes, and where one is missing.

    Example: sdist spiders --json
    """
    found = load()
    name, nodes = called(chosen(found, node), found, project)
    known = known_times(found.root, nodes, name)
    lists = node_versions.spiders(nodes, name, version=version, known=known, timeout=timeout)
    good = [entry for entry in lists if entry.error is None]
    rows = [_spider(spider, good) for spider in sorted({spider for entry in good for spider in entry.spiders})]
    if as_json:
        put_json({"project": name, "spiders": rows, "nodes": [_spider_row(entry) for entry in lists]})
    else:
        _show_spiders(rows, good)
    errors = [entry.error for entry in lists if entry.error is not None]
    _complain_once(errors)
    raise typer.Exit(exit_code(len(lists), errors))


def _spider(name: str, lists: Sequence[SpiderList]) -> dict[str, Any]:
    return {
        "spider": name,
        "nodes": [entry.node.name for entry in lists if name in entry.spiders],
        "missing": [entry.node.name for entry in lists if name not in entry.spiders],
    }


def _spider_row(entry: SpiderList) -> dict[str, Any]:
    row = {"name": entry.node.name, "url": entry.node.url, "version": entry.version}
    return {**row, "spiders": list(entry.spiders), "reason": str(entry.error or "")}


def _show_spiders(rows: Sequence[dict[str, Any]], good: Sequence[SpiderList]) -> None:
    if not good:
        return
    table(
        ("spider", "nodes", "missing on"),
        [(row["spider"], len(row["nodes"]), ", ".join(row["missing"]) or "-") for row in rows],
    )
    where: dict[str | None, list[str]] = {}
    for entry in good:
        where.setdefault(entry.version, []).append(entry.node.name)
    for version, names in where.items():
        say(f"{version}: {', '.join(names)}")


def _complain_once(errors: Sequence[DistError]) -> None:
    for text in dict.fromkeys(map(str, errors)):
        complain(text)
