"""Values as an engine keeps them, and back: JSON, and text that any database can hold. No IO."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import WANTED, Attempt, AttemptState, Batch, BatchState, Crawl, CrawlState, Shard, ShardState
from scrapyd_dist.errors import StepRefused, StoreError
from scrapyd_dist.nodes import NodeRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

CRAWL_FIELDS = frozenset(field.name for field in fields(Crawl)) - {"id"}
NODE_FIELDS = frozenset(field.name for field in fields(NodeRecord)) - {"name"}
_DOCUMENTS = ("options", "summary")


def text(value: str) -> str:
    """Text that a database can hold: error messages of spiders may have halves of surrogate pairs."""
    return value.encode("utf-8", "replace").decode()


def storable(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with all its text made so."""
    return {name: text(value) if isinstance(value, str) else value for name, value in row.items()}


def crawl_row(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a crawl, or some of them, as they are kept."""
    row = storable(changes)
    for name in _DOCUMENTS:
        if name in row:
            row[name] = json.dumps(dict(row[name]))
    if "state" in row:
        row["state"] = CrawlState(row["state"]).value
    return row


def crawl_of(row: Mapping[str, Any]) -> Crawl:
    values = dict(row)
    values["state"] = CrawlState(values["state"])
    values["standing"] = bool(values.get("standing"))
    for name in _DOCUMENTS:
        values[name] = json.loads(values[name])
    return Crawl(**values)


def check_fields(what: str, changes: Collection[str], known: Collection[str]) -> None:
    """Raise `StoreError` for fields that such a record does not have."""
    unknown = set(changes) - set(known)
    if unknown:
        raise StoreError(f"a {what} has no {', '.join(sorted(unknown))}")


def check_wanted(what: str) -> None:
    """Raise `StoreError` for a wish that no producer understands."""
    if what not in WANTED:
        raise StoreError(f"nobody can ask a crawl for {what!r}; there are: {', '.join(sorted(WANTED - {''}))}")


def node_row(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a node's record, or some of them, as they are kept."""
    row = storable(changes)
    if "idle_looks" in row:
        row["idle_looks"] = json.dumps(list(row["idle_looks"]))
    return row


def node_of(row: Mapping[str, Any]) -> NodeRecord:
    return NodeRecord(**{**row, "idle_looks": tuple(json.loads(row["idle_looks"]))})


def batch_of(row: Mapping[str, Any]) -> Batch:
    return Batch(**{**row, "state": BatchState(row["state"])})


def attempt_of(row: Mapping[str, Any]) -> Attempt:
    return Attempt(**{**row, "state": AttemptState(row["state"]), "report": json.loads(row["report"])})


def shard_of(row: Mapping[str, Any]) -> Shard:
    return Shard(**{**row, "state": ShardState(row["state"])})


def check_done(batch: int, state: BatchState) -> None:
    """Raise `StepRefused` unless a batch is done."""
    if state is not BatchState.DONE:
        raise StepRefused(f"batch {batch} is {state.value}; only a batch that is done has failed requests to retry")


def retried_already(crawl: str, batch: int) -> StepRefused:
    """What is raised when somebody else has taken requests of a batch that is done to try them again."""
    return StepRefused(f"requests of batch {batch} of crawl {crawl} are being retried already")


def check_parts(batch: int, size: int, sizes: Collection[int]) -> None:
    """Raise `StoreError` unless the parts of a split batch have its requests, no more and no fewer."""
    if sum(sizes) != size or min(sizes, default=0) < 1:
        raise StoreError(f"batch {batch} has {size} requests; it cannot be split into parts of {list(sizes)}")
