"""The result of a roll-out: its progress while it runs, then its table, JSON document and exit code."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..node_selection import exit_code
from ..output import complain, on_terminal, put_json, say, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapyd_dist.deploy.node_upload import NodeResult, RollOutRequest, Step
    from scrapyd_dist.deploy.node_versions import NodeVersions
    from scrapyd_dist.deploy.rollout import RollOut, RollOutInterrupted

    from scrapyd_dist.nodes import Node

_DONE = {"present", "uploaded", "failed"}
#: names in the line beside the bar
_SHOWN = 4
Note = "Callable[[Node, Step], None]"


@contextmanager
def bar(nodes: int, *, shown: bool) -> Iterator[Callable[[Node, Step], None]]:
    """Gives what is to be called with each step of each node.

    Args:
        nodes: how many there are.
        shown: False draws and says nothing.
    """
    if not shown:
        yield lambda _node, _step: None
    elif on_terminal():
        with _drawn(nodes) as note:
            yield note
    else:
        yield _plain(nodes)


def _plain(nodes: int) -> Callable[[Node, Step], None]:
    done = 0

    def note(node: Node, step: Step) -> None:
        nonlocal done
        if step.value in _DONE:
            done += 1
            say(f"{done} of {nodes}: {node.name} {step.value}")
        elif step.value == "undone":
            say(f"{node.name} undone")

    return note


@contextmanager
def _drawn(nodes: int) -> Iterator[Callable[[Node, Step], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as progress:
        task, busy = progress.add_task("", total=nodes), dict[str, str]()

        def note(node: Node, step: Step) -> None:
            if step.value in _DONE or step.value == "undone":
                busy.pop(node.name, None)
            else:
                busy[node.name] = step.value
            words = ", ".join(f"{name} {what}" for name, what in list(busy.items())[:_SHOWN])
            progress.update(task, advance=step.value in _DONE, description=words + " …" * (len(busy) > _SHOWN))

        yield note


#: a dry run found something to do
WOULD_CHANGE = 10
#: a node's last step -> what that means when nobody waits for the rest
_AT_CTRL_C = {
    "uploaded": "has it",
    "present": "has it",
    "failed": "failed",
    "undone": "had it, and it was deleted again",
    "asking": "was not sent it",
}


def tell(result: RollOut, project: str, wish: RollOutRequest, *, as_json: bool, quiet: bool) -> None:
    """Show all of it."""
    if as_json:
        document = {"project": project, "version": result.version, "dry_run": wish.dry_run}
        put_json({**document, "nodes": [_row(entry, project) for entry in result.results]})
    elif not quiet:
        _show(result, project)
    _say_failures(result)
    _say_differences(result)
    _say_undone(result, wish)
    if not quiet and not wish.dry_run:
        _say_defaults(result)


def exit_code_of(result: RollOut) -> int:
    """0 = all have it; 10 = a dry run would change something; else as for every command that asks all nodes."""
    if any(entry.planned for entry in result.results):
        return WOULD_CHANGE
    errors = [entry.error for entry in result.failed if entry.error is not None]
    if errors and not result.ready:
        return exit_code(len(errors), errors)
    return exit_code(len(result.results), errors) or (3 if len(result.spider_lists) > 1 else 0)


def present_document(seen: Sequence[NodeVersions], project: str) -> dict[str, Any]:
    """The same document as `tell`, of nodes to which nothing was sent."""
    rows = [
        {"name": entry.node.name, "url": entry.node.url, "project": entry.project, "state": "present",
         "version": entry.default, "default": entry.default, "spiders": None, "reason": ""}
        for entry in seen
    ]  # fmt: skip
    names = {entry.default for entry in seen}
    version = names.pop() if len(names) == 1 else None
    return {"project": project, "version": version, "dry_run": False, "nodes": rows}


def tell_interrupted(known: RollOutInterrupted) -> None:
    """Which nodes have it after Ctrl-C, and which may have it or not."""
    groups: dict[str, list[str]] = {}
    for name, step in known.steps.items():
        groups.setdefault(_AT_CTRL_C.get(step.value, "nobody knows yet"), []).append(name)
    told = "; ".join(f"{words}: {', '.join(names)}" for words, names in groups.items())
    complain(
        f"Interrupted. The version {known.version} so far: {told}. A node that was being sent it goes on by itself. "
        "See what they have with `sdist versions`; `sdist deploy-all --only-missing` brings it to the others."
    )


def _state(result: NodeResult) -> str:
    if result.error is not None:
        return "failed"
    if result.undone:
        return "undone"
    if result.planned:
        return "missing"
    return "uploaded" if result.uploaded else "present"


def _row(result: NodeResult, project: str) -> dict[str, Any]:
    known = result.error is None and not result.undone and bool(result.spiders or result.default)
    return {
        "name": result.node.name,
        "url": result.node.url,
        "project": result.node.project or project,
        "state": _state(result),
        "version": result.version,
        "default": result.default,
        "spiders": len(result.spiders) if known else None,
        "reason": result.reason or result.stays,
    }


def _show(result: RollOut, project: str) -> None:
    names = ("name", "state", "version", "spiders", "url")
    table(names, [tuple(_row(entry, project)[name] for name in names) for entry in result.results])


def _say_failures(result: RollOut) -> None:
    for reason, names in result.failures.items():
        complain(reason if len(names) == 1 else f"{', '.join(names)}: {reason}")
    if result.failures and result.ready:
        say("The others have it. Once that is put right, `sdist deploy-all --only-missing` brings it to those without.")


def _say_differences(result: RollOut) -> None:
    if len(result.spider_lists) > 1:
        told = "; ".join(f"{', '.join(names)}: {', '.join(found) or 'none'}" for found, names in
                         result.spider_lists.items())  # fmt: skip
        complain(f"The same version has different spiders on different nodes ({told}). Does its code look at its node?")


def _say_undone(result: RollOut, wish: RollOutRequest) -> None:
    if not wish.atomic or not result.failed:
        return
    names = [entry.node.name for entry in result.results if entry.undone]
    if names:
        say(f"Undone, since not every node could have it: {', '.join(names)}.")
    for entry in result.results:
        if entry.stays:
            complain(f"{entry.node.name} was not undone: {entry.stays}.")


def _say_defaults(result: RollOut) -> None:
    """Scrapyd runs by default what sorts last, which a name of another kind may do for ever."""
    others: dict[str, list[str]] = {}
    for entry in result.ready:
        if entry.default not in {None, entry.version}:
            others.setdefault(f"{entry.default}", []).append(entry.node.name)
    for version, names in others.items():
        say(
            f"Note: on {', '.join(names)} Scrapyd sorts {version} behind this version, so jobs that name no version "
            "run that one. What sdist starts names its version."
        )
