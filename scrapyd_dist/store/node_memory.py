"""Remembers the newest row of each node that this machine has read from a store.

The rule it keeps: an older row is not believed. A writer of the store can put back a row that this
project has signed, such as that of a node that was removed; its moment, which is signed, is before
the one that is remembered here.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from scrapyd_dist.config import write_file
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.ports.address_text import shown

logger = logging.getLogger(__name__)
#: the file in the state folder that keeps the moments of nodes, by store and name
_FILE = "nodes-heard.json"
#: rows that were warned of already: store, name and moment
_warned: set[tuple[str, str, float]] = set()


def up_to_date(records: Sequence[NodeRecord], where: str, state: Path) -> list[NodeRecord]:
    """Return the records of a store; one older than what is remembered has no address.

    Args:
        records: as the store gives them.
        where: the address of the store.
        state: the state folder, where the moments are kept.
    """
    place = shown(where)
    stores = _kept_moments(state / _FILE)
    kept = stores.get(place, {})
    newer: dict[str, float] = {}
    for record in records:
        if record.changed > kept.get(record.name, 0.0):
            newer[record.name] = record.changed
    if newer and state.is_dir():
        content = json.dumps({**stores, place: {**kept, **newer}})
        # Without these moments the next commands work all the same, only less protected.
        with suppress(OSError):
            write_file(state / _FILE, content.encode())
    return [_believed(record, kept.get(record.name, 0.0), place) for record in records]


def _kept_moments(path: Path) -> dict[str, dict[str, float]]:
    """Return the moments of the nodes, by store and name."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, Mapping):
        return {}
    stores: dict[str, dict[str, float]] = {}
    for place, moments in content.items():
        if isinstance(moments, Mapping):
            stores[place] = _numbers_in(moments)
    return stores


def _numbers_in(moments: Mapping[str, object]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, moment in moments.items():
        if isinstance(moment, (int, float)):
            numbers[name] = float(moment)
    return numbers


def _believed(record: NodeRecord, newest: float, place: str) -> NodeRecord:
    """Return the record, without its address if it is older than the newest one."""
    if not record.url or record.changed >= newest:
        return record
    row = (place, record.name, record.changed)
    if row not in _warned:
        _warned.add(row)
        logger.warning(
            "The store %s says that there is a node %r at %s, as it did before that node was"
            " removed or changed. This is not believed, and nothing is sent there: something has"
            " put the old row back. If the node is yours, add it again: sdist nodes add %s --name"
            " %s",
            *(place, record.name, record.url, record.url, record.name),
        )
    return replace(record, url="")
