"""`sdist code versions`, `spiders`, `prune` and `rollback`: what nodes have, where they differ, and the way back."""

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

from scrapyd_dist.deploy import node_versions
from scrapyd_dist.deploy.kept_eggs import all_eggs, choose, kept_eggs
from scrapyd_dist.deploy.node_versions import NodeVersions
from scrapyd_dist.deploy.rollout import NodeResult, RollOut, RollOutRequest

from scrapyd_dist.config import state_dir
from scrapyd_dist.nodes import names_by
from scrapyd_dist.plurals import counted
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import current, hash_in, is_crawls, later_than, version_name
from scrapyd_dist.transports import sweep

from ..context import Context, exit_code, must_answer
from ..options import PATIENCE, DryRun, Nodes, Project, Quiet, Timeout, Yes, argument, option
from ..output import Listing, Output, complain, complain_each, confirm, put, say, some_of, table
from ..silence import heard
from .deploy import RETRIES, exit_code_of, node_row, roll_out, tell
from .fleet_screen import shorten_names

#: seconds that a node gets for each question, and for one that makes it import the project
TIMEOUT, SLOW_TIMEOUT = 15.0, 60.0
#: with more nodes, a table of versions tells numbers and names in place of a column for each node
_COLUMNS = 8


def versions(
    context: Context,
    project: Project = None,
    node: Nodes = None,
    check: Annotated[
        bool, option("Exit code 10 when the nodes would not run the same newest code.")
    ] = False,
    timeout: Timeout = TIMEOUT,
    output: Output = Output(),
) -> int:
    """Show which node has which versions of the project.

    `default` is what a job runs that names no version: Scrapyd takes the one
    that sorts last. Where that is not the newest deployment, or only what a crawl
    brought, it is said. Crawls and `sdist jobs schedule` name theirs.

    Example: sdist code versions --check
    """
    name, nodes, known = context.project_nodes(node, project)
    seen = node_versions.look(nodes, name, context.version_lookup(), timeout=timeout)
    differing, crawls = node_versions.differences(seen, known), node_versions.only_crawls(seen)
    rows = [
        _row(
            entry,
            "jobs",
            versions=entry.versions,
            default=entry.default,
            newest=current(entry.versions, known),
        )
        for entry in seen
    ]
    document = {
        "project": name,
        "same": not differing,
        "differences": differing,
        "warnings": crawls,
        "nodes": rows,
    }
    if not output.document(document):
        _show_versions([entry for entry in seen if entry.error is None], name)
    errors = list(heard(context, {entry.node: entry.error for entry in seen}).values())
    complain_each([*differing, *crawls, *errors])
    return 10 if check and differing else exit_code(len(errors), errors)


def _row(entry: NodeVersions, jobs: str, **values: Any) -> dict[str, Any]:
    """What `--json` says of a node; jobs: what those that need its versions are called there."""
    node = {"name": entry.node.name, "url": entry.node.url, "project": entry.project}
    needed = {jobs: entry.jobs, "jobs_of_unknown_version": entry.unknown}
    return {**node, **values, **needed, "reason": str(entry.error or "")}


def _show_versions(answered: Sequence[NodeVersions], project: str) -> None:
    def order(
        name: str,
    ) -> tuple[int, str]:  # what Scrapyd sorts last, as far as one node tells it, stands first
        places = [
            len(one.versions) - one.versions.index(name) for one in answered if name in one.versions
        ]
        return min(places), name

    names = sorted({name for entry in answered for name in entry.versions}, key=order)
    if not names and answered:
        say(
            f"No node that answered has a version of the project {project}. Send one: sdist deploy --all."
        )
    if not names:
        return
    if len(answered) <= _COLUMNS:
        rows = [(name, *(_cell(entry, name) for entry in answered)) for name in names]
        table(("version", *(entry.node.name for entry in answered)), rows)
    else:
        counts = []
        for name in names:
            missing = [entry.node.name for entry in answered if name not in entry.versions]
            on = sum(entry.default == name for entry in answered)
            counts.append(
                (name, len(answered) - len(missing), on, some_of(missing, _COLUMNS) or "-")
            )
        table(("version", "nodes", "default on", "missing on"), counts)
    untold = names_by((len(entry.unknown), entry.node) for entry in answered if entry.unknown)
    for count, nodes in untold.items():
        put(f"{shorten_names(nodes)}: {count} running, of a version that Scrapyd does not tell")


def _cell(seen: NodeVersions, name: str) -> str:
    if name not in seen.versions:
        return "-"
    jobs = len(seen.jobs.get(name, ()))
    return ("default" if name == seen.default else "has it") + (
        f", {counted(jobs, 'job')}" if jobs else ""
    )


def spiders(
    context: Context,
    project: Project = None,
    node: Nodes = None,
    version: Annotated[
        str | None, option("Of this version; otherwise of each node's newest deployment.")
    ] = None,
    verbose: Annotated[
        bool, option("Project and spider on each line, for scripts.", "--verbose", "-v")
    ] = False,
    timeout: Timeout = SLOW_TIMEOUT,
    output: Listing = Listing(),
) -> int:
    """List the spiders of the project on the nodes, and where one is missing.

    Example: sdist code spiders --json
    """
    name, nodes, known = context.project_nodes(node, project)
    lists = node_versions.spiders(nodes, name, version=version, known=known, timeout=timeout)
    good = [entry for entry in lists if entry.error is None]
    rows = [
        {
            "spider": spider,
            "nodes": [entry.node.name for entry in good if spider in entry.spiders],
            "missing": [entry.node.name for entry in good if spider not in entry.spiders],
        }
        for spider in sorted({spider for entry in good for spider in entry.spiders})
    ]
    told = [
        {
            "name": entry.node.name,
            "url": entry.node.url,
            "version": entry.version,
            "spiders": entry.spiders,
            "reason": str(entry.error or ""),
        }
        for entry in lists
    ]
    if verbose and not output.as_json:
        for row in rows:
            put(f"{name} {row['spider']}")
    elif (
        not output.rows({"project": name, "spiders": rows, "nodes": told}, "spiders", "spider")
        and good
    ):
        cells = [
            (row["spider"], len(row["nodes"]), some_of(row["missing"], _COLUMNS) or "-")
            for row in rows
        ]
        table(("spider", "nodes", "missing on"), cells)
        for one, names in names_by((entry.version, entry.node) for entry in good).items():
            say(f"{one}: {shorten_names(names)}")
    errors = list(heard(context, {entry.node: entry.error for entry in lists}).values())
    complain_each(errors)
    return exit_code(len(errors), errors)


def projects(
    context: Context, node: Nodes = None, timeout: Timeout = TIMEOUT, output: Listing = Listing()
) -> int:
    """List the projects that the nodes have, and where one is missing.

    Example: sdist code projects
    """
    nodes = context.nodes(node)
    answers = list(
        sweep(nodes, lambda one: context.sender.send(one, api.listprojects(), timeout=timeout))
    )
    there = {one.asked.name: one.value for one in answers if one.value is not None}
    rows: list[dict[str, Any]] = [
        {
            "project": name,
            "nodes": [node for node in there if name in there[node]],
            "missing": [node for node in there if name not in there[node]],
        }
        for name in sorted({name for found in there.values() for name in found})
    ]
    if not output.rows({"projects": rows}, "projects", "project"):
        for row in rows:
            put(
                row["project"] + (f"  (not on {some_of(row['missing'])})" if row["missing"] else "")
            )
    errors = list(heard(context, {one.asked: one.error for one in answers}).values())
    complain_each(errors)
    return exit_code(len(errors), errors)


def rollback(
    context: Context,
    version: Annotated[
        str | None, argument("VERSION", "Its name or how it begins; otherwise the one before.")
    ] = None,
    project: Project = None,
    dry_run: DryRun = False,
    timeout: Annotated[
        float, option("Seconds that each node gets.", min=0.1, max=PATIENCE)
    ] = SLOW_TIMEOUT,
    output: Output = Output(),
    quiet: Quiet = False,
) -> int:
    """Make an earlier version current on all nodes.

    Its kept egg is sent again under a new name, since Scrapyd runs what sorts
    last. The last ten eggs that were deployed from here are kept. Twice in a row
    comes back to where it was. A crawl takes the code that is here all the same,
    and says so; `sdist crawl --version` takes another one.

    Example: sdist code rollback
    """
    name, nodes, known = context.project_nodes(None, project)
    state = state_dir(context.root)
    seen = node_versions.look(nodes, name, timeout=min(TIMEOUT, timeout))
    must_answer(len(seen), [entry.error for entry in seen])
    kept = kept_eggs(state, name) if version is None else all_eggs(state, name)
    newest = [current(entry.versions, known) for entry in seen]
    deployed = [one for one in newest if one is not None]
    usual = max(deployed, key=lambda one: (deployed.count(one), one), default=None)
    saved = choose(kept, version, usual, folder=state / "eggs")
    egg = saved.read()
    # The code was deployed last on every node, and runs there by default.
    running = [*newest, *(entry.default for entry in seen)]
    if all(
        one is not None and not is_crawls(one) and hash_in(one) == egg.content_hash
        for one in running
    ):
        say(f"The code of {saved.version} is what every node runs already; nothing was sent.")
        present = [
            NodeResult(node=one.node, version=one.default, default=one.default) for one in seen
        ]
        rows = [{**node_row(one, name), "spiders": None} for one in present]
        document = {
            "project": name,
            "version": RollOut(present).version,
            "dry_run": False,
            "nodes": rows,
        }
        output.document(document)
        return 0
    there = [name for entry in seen for name in entry.versions]
    again = version_name(egg.content_hash, later_than(datetime.now(timezone.utc), there))
    given = {node.name: again for node in nodes}
    wish = RollOutRequest(given=given, retries=RETRIES, dry_run=dry_run, timeout=timeout)
    if not quiet:
        is_there = any(saved.version in entry.versions for entry in seen)
        what = f"{saved.version}{' again' if is_there else ''} as {again}"
        say(f"Would send {what}; asking the nodes …" if dry_run else f"Sending {what} …")
    result = roll_out(context.root, name, nodes, egg, wish, progress=not quiet)
    tell(result, name, wish, output, quiet=quiet)
    if code := exit_code_of(result):
        return code
    wrong = [
        entry
        for entry in result.ready
        if entry.default not in {None, entry.version} and not entry.planned
    ]
    if wrong:
        complain(
            f"On {', '.join(entry.node.name for entry in wrong)} another version stays the default, since Scrapyd "
            f"sorts it last: {wrong[0].default}. Jobs that name no version go on with that one until it is deleted."
        )
    return 3 if wrong else 0


def prune(
    context: Context,
    keep: Annotated[int, option("How many versions stay on each node.", min=1, show_default=False)],
    project: Project = None,
    node: Nodes = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    timeout: Timeout = TIMEOUT,
    output: Output = Output(),
) -> int:
    """Delete old versions of the project from the nodes.

    The oldest by time go first, deployments and what crawls brought alike. What a
    job runs or waits for stays, and so do the newest deployment and the default.
    Where a job runs whose version Scrapyd does not tell, nothing is deleted.

    Example: sdist code prune --keep 5
    """
    name, nodes, known = context.project_nodes(node, project)
    version_of = context.version_lookup()
    seen = node_versions.look(nodes, name, version_of, timeout=timeout)
    plans = [node_versions.plan(entry, keep, known) for entry in seen]
    doomed = sum(len(entry.old) for entry in plans)
    if doomed and not dry_run:
        if not yes:
            what = f"{counted(doomed, 'version')} from {counted(sum(bool(one.old) for one in plans), 'node')}"
            lines = [f"{entry.node.name}: {', '.join(entry.old)}" for entry in plans if entry.old]
            confirm(f"Delete {what}?", lines, refusal=f"{what} would be deleted")
        plans = list(node_versions.delete(plans, version_of, timeout=timeout))
    _tell(plans, name, output=output, dry_run=dry_run)
    complain_each(entry.error for entry in plans)
    if dry_run and doomed:
        return 10
    return exit_code(len(plans), [entry.error for entry in plans])


def _tell(plans: Sequence[NodeVersions], project: str, *, output: Output, dry_run: bool) -> None:
    nodes = [_row(entry, "in_use", deleted=entry.old) for entry in plans]
    if output.document({"project": project, "dry_run": dry_run, "nodes": nodes}):
        return
    rows = [(entry.node.name, name) for entry in plans for name in entry.old]
    if rows:
        table(("node", "would be deleted" if dry_run else "deleted"), rows)
    elif not any(entry.error for entry in plans):
        say("There is nothing to delete.")
    for entry in plans:
        for version, jobs in entry.jobs.items():
            say(f"{entry.node.name}: {version} stays, {', '.join(jobs)} needs it.")
        if entry.unknown:
            say(
                f"{entry.node.name}: everything stays; of {', '.join(entry.unknown)}, which runs there, Scrapyd"
                " does not tell the version. Run this again when it has ended."
            )
