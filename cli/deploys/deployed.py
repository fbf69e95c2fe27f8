"""What came of a roll-out: its table, its JSON document, its exit code, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..fleet import exit_code
from ..speaking import complain, put_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.deploy.rollout import RollOut, RollOutInterrupted, Wish
    from scrapyd_dist.deploy.survey import Seen
    from scrapyd_dist.deploy.talk import NodeResult

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


def tell(result: RollOut, project: str, wish: Wish, *, as_json: bool, quiet: bool) -> None:
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


def tell_present(seen: Sequence[Seen], project: str) -> None:
    """The same document as `tell`, of nodes to which nothing was sent."""
    rows = [
        {"name": entry.node.name, "url": entry.node.url, "project": entry.project, "state": "present",
         "version": entry.default, "default": entry.default, "spiders": None, "reason": ""}
        for entry in seen
    ]  # fmt: skip
    names = {entry.default for entry in seen}
    version = names.pop() if len(names) == 1 else None
    put_json({"project": project, "version": version, "dry_run": False, "nodes": rows})


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
    from ..render import table

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


def _say_undone(result: RollOut, wish: Wish) -> None:
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
