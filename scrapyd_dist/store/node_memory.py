"""What this machine has heard last of each node that was added to a store.

The rule it keeps: a store has no older word. A writer of the store can put back a row that this project has signed,
such as that of a node that was removed; its moment, which is signed, is before the one that is remembered here.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from scrapyd_dist.config import write_file
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.address import shown

logger = logging.getLogger(__name__)
_FILE = "nodes-heard.json"
#: what was told already: by store, name and moment
_told: set[tuple[str, str, float]] = set()


def up_to_date(records: Sequence[NodeRecord], where: str, state: Path) -> list[NodeRecord]:
    """The records of the store at `where`; one that is older than what was heard before has no address.

    Args:
        records: as the store gives them.
        where: its address.
        state: the state folder, where the moments are kept.
    """
    place, everything = shown(where), _heard(state / _FILE)
    heard = everything.get(place, {})
    news = {one.name: one.changed for one in records if one.changed > heard.get(one.name, 0.0)}
    if news and state.is_dir():
        content = json.dumps({**everything, place: {**heard, **news}})
        with suppress(
            OSError
        ):  # one that cannot be kept protects from nothing, and keeps nobody from work
            write_file(state / _FILE, content.encode())
    return [_without_old_word(one, heard.get(one.name, 0.0), place) for one in records]


def _heard(path: Path) -> dict[str, dict[str, float]]:
    """The moments of the nodes, by store and name."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    stores = said.items() if isinstance(said, Mapping) else ()
    return {place: _moments(names) for place, names in stores if isinstance(names, Mapping)}


def _moments(names: Mapping[str, object]) -> dict[str, float]:
    return {name: float(at) for name, at in names.items() if isinstance(at, (int, float))}


def _without_old_word(record: NodeRecord, heard: float, place: str) -> NodeRecord:
    if not record.url or record.changed >= heard:
        return record
    told = (place, record.name, record.changed)
    if told not in _told:
        _told.add(told)
        logger.warning(
            "The store %s says that there is a node %r at %s, as it did before that node was removed or changed. This"
            " is not believed, and nothing is sent there: something has put the old row back. If the node is yours, add"
            " it again: sdist nodes add %s --name %s",
            *(place, record.name, record.url, record.url, record.name),
        )
    return replace(record, url="")
