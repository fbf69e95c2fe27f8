"""A plan on standard output: shards, nodes, code, batches, and what to know before the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..output import put
from ..tables import table
from .wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: of a longer list of shards, so many from its beginning are shown
_FIRST = 4


def show(plan: Mapping[str, Any]) -> None:
    """Print the plan."""
    for line in heading(plan):
        put(line)
    shards: Sequence[Mapping[str, Any]] = plan.get("shards") or ()
    if shards:
        put(f"\n{counted(len(shards), 'shard')}:")
        table(("shard", "pages", "starts at"), shard_rows(shards))
    nodes: Sequence[Mapping[str, Any]] = plan.get("nodes") or ()
    put(f"\n{counted(len(nodes), 'node')}:")
    table(("node", "state", "slots", "code", "url", ""), node_rows(plan, nodes))
    for warning in (*(plan.get("code") or ()), *(plan.get("warnings") or ())):
        put(f"\nNote: {warning}")


def heading(plan: Mapping[str, Any]) -> list[str]:
    """The first lines."""
    batch = counted(int(plan.get("batch_size") or 0), "request")
    return [
        f"Spider {plan.get('spider')} of the project {plan.get('project')}; nothing is started by this command.",
        f"To the nodes go: {plan.get('target')}",
        *_limit(plan.get("limit")),
        f"Batches: up to {batch}{_bytes(plan.get('bytes_per_batch'))}",
        f"Items: {_output(plan.get('output'))}",
        *_rules(plan.get("throttle")),
    ]


def _limit(limit: object) -> list[str]:
    return [f"Limited to the first {counted(int(str(limit)), 'target request')}"] if limit else []


def _rules(throttle: object) -> list[str]:
    """Which processes would heed the rules of the throttle; nothing where there are none."""
    if not isinstance(throttle, dict) or not throttle.get("rules"):
        return []
    who = "every process heeds them" if throttle.get("heeded") else f"heeded by none: {throttle.get('reason')}"
    return [f"Throttle: {counted(int(throttle['rules']), 'rule')} in the store; {who}"]


def _bytes(estimate: object) -> str:
    """How a full batch of ordinary addresses would travel."""
    if not isinstance(estimate, dict):
        return ""
    size, each = int(estimate.get("bytes") or 0), estimate.get("per_url")
    return f", about {size:,} bytes each on the way ({estimate.get('form')}, {each} bytes per URL)"


def _output(output: object) -> str:
    if not output:
        return "no file was named; give -o items.jl"
    if not isinstance(output, list):
        return str(output)
    return ", ".join(str(entry.get("path") if isinstance(entry, dict) else entry) for entry in output)


def shard_rows(shards: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The first shards and the last one."""
    rows = [_shard_row(shard) for shard in shards]
    if len(rows) <= _FIRST + 2:
        return rows
    return [*rows[:_FIRST], ("…", f"{len(rows) - _FIRST - 1} more", ""), rows[-1]]


def _shard_row(shard: Mapping[str, Any]) -> tuple[str, ...]:
    first, last = shard.get("first_page"), shard.get("last_page")
    return str(shard.get("number")), "-" if first is None else f"{first}-{last}", str(shard.get("url"))


def node_rows(plan: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """One row per node: whether it takes part, and whether it would get the code."""
    to_deploy = set(plan.get("deploy") or ())
    rows: list[tuple[object, ...]] = []
    for node in nodes:
        code = f"would get {plan.get('version') or 'it'}" if node.get("name") in to_deploy else "has it"
        remark = node.get("reason") or ("" if node.get("logs", True) else "serves no /logs/: needs --feed")
        up = node.get("state") == "up"
        rows.append(
            (node.get("name"), node.get("state"), node.get("slots"), code if up else "-", node.get("url"), remark)
        )
    return rows
