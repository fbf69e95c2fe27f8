"""`sdist code versions`, `rollback`, `prune`: which code is on the nodes, and back."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from scrapyd_dist.deploy import node_versions
from scrapyd_dist.deploy.node_versions import NodeVersions
from scrapyd_dist.deploy.rollout import NodeResult, RollOut, RollOutRequest

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.code_versions import (
    ProjectSurvey,
    SpiderSurvey,
    VersionSurvey,
    node_document,
    plan_rollback,
    survey_projects,
    survey_spiders,
    survey_versions,
)
from scrapyd_dist.fleet.fleet_screen import shorten_names
from scrapyd_dist.node_answers import answers_exit_code, must_answer
from scrapyd_dist.plurals import counted, some_of

from ..context import Context
from ..options import (
    DIFFERENT,
    PATIENCE,
    DryRun,
    Nodes,
    Project,
    Quiet,
    Timeout,
    Yes,
    argument,
    option,
)
from ..output import Listing, Output, complain, complain_each, confirm, put, say, table
from ..silence import without_drained
from .deploy import RETRIES
from .roll_out_screen import node_row, print_result, roll_out, roll_out_exit_code

#: seconds that a node gets for each question
TIMEOUT = 15.0
#: the same for a question that makes it import the project
SLOW_TIMEOUT = 60.0
#: with more nodes, a table of versions tells numbers and names in place of a column for each node
_COLUMNS = 8


def versions(
    context: Context,
    project: Project = None,
    node: Nodes = None,
    spiders: Annotated[
        bool, option("The spiders of the newest deployment instead, and where one is missing.")
    ] = False,
    projects: Annotated[
        bool,
        option("All projects of the nodes instead, or those of -p, and where one is missing."),
    ] = False,
    version: Annotated[
        str | None, option("With --spiders: of this version.", metavar="NAME")
    ] = None,
    verbose: Annotated[
        bool,
        option("With --spiders: project and spider on each line, for scripts.", "--verbose", "-v"),
    ] = False,
    timeout: Annotated[
        float | None,
        option(
            f"Seconds that a node gets for each answer; {TIMEOUT:g}, with --spiders"
            f" {SLOW_TIMEOUT:g}.",
            min=0.1,
            max=PATIENCE,
        ),
    ] = None,
    output: Listing = Listing(),
) -> int:
    """Show which node has which versions of the project; or which spiders, or projects.

    `default` is what a job runs that names no version: Scrapyd takes the one
    that sorts last. Where that is not the newest deployment, or only what a crawl
    brought, it is said. Crawls and `sdist jobs schedule` name theirs. Exit code 10
    when the nodes would not run the same newest code.

    Example: sdist code versions
    Example: sdist code versions --spiders --json
    """
    _check_list(spiders=spiders, projects=projects, about_spiders=bool(version or verbose))
    if spiders:
        spider_survey = survey_spiders(
            context, node, project, version=version, timeout=timeout or SLOW_TIMEOUT
        )
        return _list_spiders(context, spider_survey, output, verbose=verbose)
    patience = timeout or TIMEOUT
    if projects:
        project_survey = survey_projects(context, node, project, timeout=patience)
        return _list_projects(context, project_survey, output)
    survey = survey_versions(context, node, project, timeout=patience)
    return _list_versions(context, survey, output)


def _check_list(*, spiders: bool, projects: bool, about_spiders: bool) -> None:
    """Refuse two lists at once, and options of the one of spiders for another."""
    if spiders and projects:
        raise ConfigError("--spiders and --projects are two lists. Take one.")
    if about_spiders and not spiders:
        raise ConfigError("--version and --verbose are for the list of --spiders. Add it.")


def _list_versions(context: Context, survey: VersionSurvey, output: Listing) -> int:
    """Print the versions and what is wrong about them; gives the exit code."""
    differing = survey.differences
    if not output.rows(survey.document(), "versions", "version"):
        _show_versions(survey)
    errors = list(without_drained(context, survey.errors).values())
    complain_each([*differing, *survey.only_crawls, *errors])
    if differing:
        return DIFFERENT
    return answers_exit_code(len(errors), errors)


def _show_versions(survey: VersionSurvey) -> None:
    """Print the versions of the nodes that answered, those first that Scrapyd sorts last."""
    answered = survey.answered
    names = survey.names
    if not names and answered:
        say(
            f"No node that answered has a version of the project {survey.project}. Send one: sdist "
            "deploy --all."
        )
    if not names:
        return
    if len(answered) <= _COLUMNS:
        _show_columns(answered, names)
    else:
        _show_counts(answered, names)
    for name, earlier in survey.first_names.items():
        say(f"{name} has the code of {earlier}.")
    untold: dict[int, list[str]] = {}
    for entry in answered:
        if entry.unknown:
            untold.setdefault(len(entry.unknown), []).append(entry.node.name)
    for count, nodes in untold.items():
        put(f"{shorten_names(nodes)}: {count} running, of a version that Scrapyd does not tell")


def _show_columns(answered: Sequence[NodeVersions], names: Sequence[str]) -> None:
    """Print a table with a column for each node."""
    headings = ["version", *(entry.node.name for entry in answered)]
    rows = []
    for name in names:
        cells = [_cell(entry, name) for entry in answered]
        rows.append((name, *cells))
    table(headings, rows)


def _show_counts(answered: Sequence[NodeVersions], names: Sequence[str]) -> None:
    """Print a table with numbers of nodes."""
    rows = []
    for name in names:
        missing = []
        defaults = 0
        for entry in answered:
            defaults += entry.default == name
            if name not in entry.versions:
                missing.append(entry.node.name)
        present = len(answered) - len(missing)
        rows.append((name, present, defaults, some_of(missing, _COLUMNS) or "-"))
    table(("version", "nodes", "default on", "missing on"), rows)


def _cell(seen: NodeVersions, name: str) -> str:
    if name not in seen.versions:
        return "-"
    text = "default" if name == seen.default else "has it"
    jobs = len(seen.jobs.get(name, ()))
    if jobs:
        text += f", {counted(jobs, 'job')}"
    return text


def _list_spiders(context: Context, survey: SpiderSurvey, output: Listing, *, verbose: bool) -> int:
    """Print the spiders, and where one is missing; gives the exit code."""
    rows = survey.rows
    answered = survey.answered
    if verbose and not output.wants_document:
        for row in rows:
            put(f"{survey.project} {row['spider']}")
    elif not output.rows(survey.document(), "spiders", "spider") and answered:
        _show_spiders(rows, answered)
    errors = list(without_drained(context, survey.errors).values())
    complain_each(errors)
    return answers_exit_code(len(errors), errors)


def _show_spiders(rows: Sequence[Mapping[str, Any]], answered: Iterable[NodeResult]) -> None:
    cells = []
    for row in rows:
        missing = some_of(row["missing"], _COLUMNS) or "-"
        cells.append((row["spider"], len(row["nodes"]), missing))
    table(("spider", "nodes", "missing on"), cells)
    nodes_by_version: dict[str | None, list[str]] = {}
    for entry in answered:
        nodes_by_version.setdefault(entry.version, []).append(entry.node.name)
    for version, names in nodes_by_version.items():
        say(f"{version}: {shorten_names(names)}")


def _list_projects(context: Context, survey: ProjectSurvey, output: Listing) -> int:
    """Print the projects, and where one is missing; gives the exit code."""
    rows = survey.rows
    if not output.rows({"projects": rows}, "projects", "project"):
        for row in rows:
            note = f"  (not on {some_of(row['missing'])})" if row["missing"] else ""
            put(row["project"] + note)
    errors = list(without_drained(context, survey.errors).values())
    complain_each(errors)
    return answers_exit_code(len(errors), errors)


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
    entries = node_versions.list_versions(nodes, name, timeout=min(TIMEOUT, timeout))
    must_answer(len(entries), [entry.error for entry in entries])
    survey = VersionSurvey(project=name, entries=entries, known=known)
    rollback_plan = plan_rollback(context, survey, version)
    saved = rollback_plan.saved
    if rollback_plan.is_current:
        say(f"The code of {saved.version} is what every node runs already; nothing was sent.")
        _put_unchanged(entries, name, output)
        return 0
    again = rollback_plan.again
    if rollback_plan.skipped and not quiet:
        say(f"{', '.join(rollback_plan.skipped)}: the same code as what runs now, and skipped.")
    if not quiet:
        suffix = " again" if rollback_plan.was_present else ""
        _say_sending(f"{saved.version}{suffix} as {again}", dry_run=dry_run)
    request = RollOutRequest(
        given=dict.fromkeys((node.name for node in nodes), again),
        retries=RETRIES,
        dry_run=dry_run,
        timeout=timeout,
    )
    result = roll_out(context.root, name, nodes, rollback_plan.egg, request, progress=not quiet)
    print_result(result, name, request, output, quiet=quiet)
    if not quiet:
        _say_whose_code(result, again, saved.version)
    return roll_out_exit_code(result) or _check_defaults(result)


def _put_unchanged(seen: Sequence[NodeVersions], project: str, output: Output) -> None:
    """Print the document of a rollback that had nothing to send."""
    results = []
    rows = []
    for entry in seen:
        result = NodeResult(node=entry.node, version=entry.default, default=entry.default)
        results.append(result)
        rows.append({**node_row(result, project), "spiders": None})
    version = RollOut(results).version
    output.document({"project": project, "version": version, "dry_run": False, "nodes": rows})


def _say_sending(version: str, *, dry_run: bool) -> None:
    if dry_run:
        say(f"Would send {version}; asking the nodes …")
    else:
        say(f"Sending {version} …")


def _say_whose_code(result: RollOut, again: str, kept: str) -> None:
    """Say of a version that was sent under which name its code is kept; nothing of a dry run."""
    if any(not entry.planned for entry in result.ready):
        say(f"{again} has the code of {kept}.")


def _check_defaults(result: RollOut) -> int:
    """Complain of nodes where another version stays the default; gives the exit code."""
    names: list[str] = []
    defaults: list[str | None] = []
    for entry in result.ready:
        if entry.default not in {None, entry.version} and not entry.planned:
            names.append(entry.node.name)
            defaults.append(entry.default)
    if not names:
        return 0
    complain(
        f"On {', '.join(names)} another version stays the default, since Scrapyd sorts it last: "
        f"{defaults[0]}. Jobs that name no version go on with that one until it is deleted."
    )
    return 3


def prune(
    context: Context,
    keep: Annotated[
        int,
        option(
            "How many versions stay on each node, besides those that have to.",
            min=1,
            show_default=False,
        ),
    ],
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
    From a node with a running job that was started elsewhere nothing is deleted:
    Scrapyd does not tell which version it runs.

    Example: sdist code prune --keep 5
    """
    name, nodes, known = context.project_nodes(node, project)
    version_of = context.version_lookup()
    seen = node_versions.list_versions(nodes, name, version_of, timeout=timeout)
    plans = []
    has_old = False
    for entry in seen:
        plan = node_versions.plan(entry, keep, known)
        plans.append(plan)
        has_old = has_old or bool(plan.old)
    if has_old and not dry_run:
        if not yes:
            _confirm_deletion(plans)
        plans = list(node_versions.delete(plans, version_of, timeout=timeout))
    _show_deleted(plans, name, output=output, dry_run=dry_run)
    errors = [entry.error for entry in plans]
    complain_each(errors)
    if dry_run and has_old:
        return DIFFERENT
    return answers_exit_code(len(plans), errors)


def _confirm_deletion(plans: Sequence[NodeVersions]) -> None:
    lines = []
    doomed = 0
    for entry in plans:
        if entry.old:
            doomed += len(entry.old)
            lines.append(f"{entry.node.name}: {', '.join(entry.old)}")
    deletion = f"{counted(doomed, 'version')} from {counted(len(lines), 'node')}"
    confirm(f"Delete {deletion}?", lines, refusal=f"{deletion} would be deleted")


def _show_deleted(
    plans: Sequence[NodeVersions], project: str, *, output: Output, dry_run: bool
) -> None:
    """Say what was deleted, or would be, and what stays for which jobs."""
    nodes = []
    rows: list[tuple[str, str]] = []
    any_error = False
    for entry in plans:
        nodes.append(node_document(entry, "in_use", deleted=entry.old))
        rows += [(entry.node.name, name) for name in entry.old]
        any_error = any_error or entry.error is not None
    if output.document({"project": project, "dry_run": dry_run, "nodes": nodes}):
        return
    if rows:
        table(("node", "would be deleted" if dry_run else "deleted"), rows)
    elif not any_error:
        say("There is nothing to delete.")
    _say_what_stays(plans)


def _say_what_stays(plans: Sequence[NodeVersions]) -> None:
    for entry in plans:
        for version, jobs in entry.jobs.items():
            say(f"{entry.node.name}: {version} stays, {', '.join(jobs)} needs it.")
        if entry.unknown:
            say(
                f"{entry.node.name}: everything stays, since {', '.join(entry.unknown)} runs there "
                "and was not started here: Scrapyd does not tell its version. Run this again when "
                "it has ended."
            )
