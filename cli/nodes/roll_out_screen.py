"""Sends an egg to nodes before the eyes of people, and reports what came of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from scrapyd_dist.deploy.egg import Egg
from scrapyd_dist.deploy.rollout import (
    NodeResult,
    RollOut,
    RollOutInterrupted,
    RollOutRequest,
    Step,
    ensure,
)

from scrapyd_dist.config import state_dir
from scrapyd_dist.errors import DistError
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.versions import hash_in

from ..output import Output, complain, on_terminal, say

#: the last step of a node, but where that is undone
_DONE = {Step.PRESENT, Step.UPLOADED, Step.FAILED}
#: names in the line beside the bar
_SHOWN = 4
#: a node's last step -> its meaning after Ctrl-C
_AT_CTRL_C = {
    Step.UPLOADED: "has it",
    Step.PRESENT: "has it",
    Step.FAILED: "failed",
    Step.UNDONE: "had it, and it was deleted again",
    Step.ASKING: "was not sent it",
}


@contextmanager
def bar(nodes: int, *, shown: bool) -> Iterator[Callable[[Node, Step], None]]:
    """Give a function to call with each step of each node.

    On a terminal it draws a bar, elsewhere it says lines; without `shown` it does nothing.
    """
    if not shown:
        yield lambda _node, _step: None
    elif on_terminal():
        with _drawn_bar(nodes) as note:
            yield note
    else:
        yield _said_steps(nodes)


def _said_steps(nodes: int) -> Callable[[Node, Step], None]:
    """Return a function that says a line when a node has made its last step."""
    done = count(1)

    def note(node: Node, step: Step) -> None:
        """Say the step, if it is the last one."""
        if step is Step.UNDONE:
            say(f"{node.name} undone")
        elif step in _DONE:
            say(f"{next(done)} of {nodes}: {node.name} {step.value}")

    return note


@contextmanager
def _drawn_bar(nodes: int) -> Iterator[Callable[[Node, Step], None]]:
    """Give a function that draws how many nodes are done, and what the first others do."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
    )
    task = progress.add_task("", total=nodes)
    busy: dict[str, str] = {}  # name of a node -> its step

    def note(node: Node, step: Step) -> None:
        """Draw the step."""
        if step in _DONE or step is Step.UNDONE:
            busy.pop(node.name, None)
        else:
            busy[node.name] = step.value
        shown = list(busy.items())[:_SHOWN]
        words = ", ".join([f"{name} {doing}" for name, doing in shown])
        if len(busy) > _SHOWN:
            words += " …"
        progress.update(task, advance=step in _DONE, description=words)

    with progress:
        yield note


def print_result(
    result: RollOut, project: str, request: RollOutRequest, output: Output, *, quiet: bool
) -> None:
    """Print the document, or a table and what has to be known of it."""
    document = {
        "project": project,
        "version": result.version,
        "dry_run": request.dry_run,
        "nodes": [node_row(entry, project) for entry in result.results],
    }
    if output.as_json or not quiet:
        output.columns(document, "nodes", ("name", "state", "version", "spiders", "url"))
    say_findings(result, request)


def say_findings(result: RollOut, request: RollOutRequest) -> None:
    """Say what failed, what was undone, and which other version runs where none is named."""
    for reason, failed in result.failures.items():
        complain(reason if len(failed) == 1 else f"{', '.join(failed)}: {reason}")
    if result.failures and result.ready:
        say(
            "The others have it. Put that right; then `sdist deploy --all --only-missing` brings "
            "it to the rest."
        )
    if len(result.spider_lists) > 1:
        _complain_of_spiders(result)
    _say_undone(result)
    if not request.dry_run:
        _warn_of_other_defaults(result)


def _complain_of_spiders(result: RollOut) -> None:
    """Say which nodes have which spiders, where these differ."""
    lists = []
    for spiders, names in result.spider_lists.items():
        found = ", ".join(spiders) or "none"
        lists.append(f"{', '.join(names)}: {found}")
    complain(
        f"The same version has different spiders on different nodes ({'; '.join(lists)}). Does its "
        "code look at its node?"
    )


def _say_undone(result: RollOut) -> None:
    undone = [entry.node.name for entry in result.results if entry.undone]
    if undone:
        say(f"Undone, since not every node could have it: {', '.join(undone)}.")
    for entry in result.results:
        if entry.stays:
            complain(f"{entry.node.name} was not undone: {entry.stays}.")


def _warn_of_other_defaults(result: RollOut) -> None:
    """Warn where a job without a version runs another one: Scrapyd runs what sorts last."""
    others: dict[tuple[str | None, str | None], list[str]] = {}
    for entry in result.ready:
        if entry.default not in {None, entry.version}:
            others.setdefault((entry.default, entry.version), []).append(entry.node.name)
    for (default, version), names in others.items():
        remedy = ""
        if hash_in(version or "") is None:  # its name was chosen
            remedy = (
                " Deploy it under a name that sorts last, or without --version: then sdist gives it"
                " one."
            )
        complain(
            f"on {', '.join(names)} Scrapyd sorts {default} behind this version, so jobs "
            f"that name no version run that one. What sdist starts names its version.{remedy}"
        )


def roll_out_exit_code(*results: RollOut) -> int:
    """Return 0 when all have it; 10 when a dry run would change something.

    Else the code is as for every command that asks all nodes. Several results are those of several
    projects.
    """
    total = 0
    errors: list[DistError] = []
    any_ready = False
    differ = False
    for result in results:
        any_ready = any_ready or bool(result.ready)
        differ = differ or len(result.spider_lists) > 1
        for entry in result.results:
            if entry.planned:
                return 10
            total += 1
            if entry.error is not None:
                errors.append(entry.error)
    code = answers_exit_code(total if any_ready else len(errors), errors)
    if not code and differ:
        return 3
    return code


def node_row(result: NodeResult, project: str) -> dict[str, Any]:
    """Return what `--json` says of a node; project: its name where the node's target has none."""
    known = result.error is None and not result.undone and bool(result.spiders or result.default)
    return {
        "name": result.node.name,
        "url": result.node.url,
        "project": result.node.project or project,
        "state": _state_of(result),
        "version": result.version,
        "default": result.default,
        "spiders": len(result.spiders) if known else None,
        "reason": result.reason or result.stays,
    }


def _state_of(result: NodeResult) -> str:
    if result.error:
        return "failed"
    if result.undone:
        return "undone"
    if result.planned:
        return "missing"
    if result.uploaded:
        return "uploaded"
    return "present"


def roll_out(
    root: Path,
    project: str,
    nodes: Sequence[Node],
    egg: Egg,
    request: RollOutRequest,
    *,
    progress: bool,
) -> RollOut:
    """Send the egg, and draw how far it is.

    Ctrl-C says what is known by then, and is raised again.
    """
    try:
        with bar(len(nodes), shown=progress) as note:
            return ensure(nodes, project, egg, request, state=state_dir(root), progress=note)
    except RollOutInterrupted as known:
        complain(
            f"Interrupted. The version {known.version} so far: {_steps_in_words(known.steps)}. A "
            "node that was being sent it goes on by itself. See what they have with `sdist code "
            "versions`; `sdist deploy --all --only-missing` brings it to the rest."
        )
        raise


def _steps_in_words(steps: Mapping[str, Step]) -> str:
    """Return which nodes have the egg, and which do not; steps: the last one of each node."""
    groups: dict[str, list[str]] = {}
    for name, step in steps.items():
        groups.setdefault(_AT_CTRL_C.get(step, "not known yet"), []).append(name)
    return "; ".join([f"{words}: {', '.join(names)}" for words, names in groups.items()])
