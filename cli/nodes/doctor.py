"""`sdist doctor`: looks at every node for what endangers work, and says what to do about it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from scrapyd_dist.fleet.checkup import TIMEOUT, Checkup, check_fleet
from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.fleet.findings import Finding, Severity, of_several
from scrapyd_dist.fleet.fleet_screen import shorten_names
from scrapyd_dist.fleet.waiting_work import LOOKING
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.plurals import counted
from scrapyd_dist.project_names import quick_project

from ..context import Context
from ..options import (
    CONNECT_TIMEOUT,
    ConnectTimeout,
    Timeout,
    argument,
    nodes,
    option,
    project_option,
)
from ..output import NEVER, Output, put_text, say, waiting
from ..silence import without_drained


def doctor(
    *,
    context: Context,
    node: Annotated[
        list[str] | None, argument("NODE", "Names of nodes, or globs; all if left out.", nodes)
    ] = None,
    project: Annotated[
        str | None, project_option("Whose code is tried: [deploy] project, else BOT_NAME.")
    ] = None,
    verbose: Annotated[bool, option("Show notes too.", "--verbose", "-v")] = False,
    timeout: Timeout = TIMEOUT,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    output: Output,
) -> int:
    """Look for what endangers work on the nodes.

    Each finding says what to do; nothing is changed. Looked at: user name and
    password, TLS and certificate, the url's path, clock, time to answer, /logs/ and
    pieces of files, items_dir, jobs_to_keep, Scrapyd's age, Scrapy's (by a job's log),
    versions, whether eggs can be read, process slots that are lost (that takes some
    seconds where work waits); and here, whether others can write the store or look
    into the state folder. Exit code 1 when a node that answers has a danger, else
    as with `sdist nodes`.

    Example: sdist doctor 'eu-*'
    """
    chosen = context.known_nodes(node)
    checkup = check_fleet(
        context,
        chosen,
        quick_project(context.project, project, chosen),
        targets=() if node else context.project.targets,
        sender=context.sender_within(connect_timeout),
        timeout=timeout,
        progress=lambda: _shown_exams(len(chosen)),
        wait_progress=_shown_waits,
    )
    _report(checkup, output, verbose=verbose)
    return _exit_code_of(context, checkup)


@contextmanager
def _shown_exams(nodes: int) -> Iterator[Callable[[int], None]]:
    """Give a function that shows on a terminal how many of so many nodes are examined."""
    with waiting(first=NEVER) as show:
        yield lambda done: show(f"{done} of {nodes} nodes examined …")


@contextmanager
def _shown_waits() -> Iterator[Callable[[Sequence[NodeDiagnosis]], None]]:
    """Give a function that says which nodes are looked at again."""

    def describe(left: Sequence[NodeDiagnosis]) -> str:
        names = ", ".join([exam.node.name for exam in left])
        return f"Work waits on {names}, and none runs; looking again for some seconds …"

    with waiting(LOOKING) as show:
        yield lambda left: show(describe(left))


def _exit_code_of(context: Context, checkup: Checkup) -> int:
    """Return 1 when a node that answers endangers work; else by the nodes that do not answer."""
    if checkup.endangers_work:
        return 1
    counting = without_drained(context, {exam.node: exam.error for exam in checkup.exams})
    return answers_exit_code(len(counting), counting.values())


def _report(checkup: Checkup, output: Output, *, verbose: bool) -> None:
    if output.document(checkup.document()):
        return
    counts: Counter[str] = Counter()
    for result, names in _group_by_node(checkup.findings):
        counts[result.severity.value] += 1
        if result.severity is Severity.NOTE and not verbose:
            continue
        _put_finding(result, names)
    worst = [counted(counts[name], name) for name in ("danger", "warning", "note") if counts[name]]
    if counts["note"] and not verbose:
        worst[-1] += " (--verbose shows them)"
    say(f"{counted(len(checkup.exams), 'node')} examined: {', '.join(worst) or 'all is well'}.")


def _put_finding(result: Finding, names: Sequence[str]) -> None:
    """Print a finding about the nodes of these names, and what to do."""
    text = result.text if len(names) == 1 else of_several(result.text)
    put_text(f"{result.severity.value}: {shorten_names(names)}: {result.topic}: {text}.")
    put_text(f"    {result.remedy}")


def _group_by_node(results: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return each finding once, with the names of the nodes that it is about."""
    grouped: dict[Finding, list[str]] = {}
    for result in results:
        grouped.setdefault(result._replace(node=""), []).append(result.node)
    return list(grouped.items())
