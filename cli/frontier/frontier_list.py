"""`sdist frontier list`: which frontiers there are, how far each is, and their slots."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.progress.summary import told

from ..candidates import frontiers
from ..crawls import wording
from ..crawls.producer_process import lives
from ..output import put, put_json, say
from ..project_store import maybe_store
from ..selectors import Json
from ..tables import table
from .frontier_count import slot_document, slots_in, total_of
from .frontier_names import opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.frontier.backlog import Backlog, SlotCount
    from scrapyd_dist.store import Store

Some = Annotated[
    Optional[str], typer.Argument(metavar="FRONTIER", autocompletion=frontiers, help="Only the slots of this one.")
]


def list_(
    frontier: Some = None,
    all_: Annotated[bool, typer.Option("--all", help="The slots of all frontiers.")] = False,
    as_json: Json = False,
) -> None:
    """List the frontiers of this project; or the slots of one, or of all.

    A frontier is open while somebody may still fill or crawl it, standing when
    it waits for more for ever, and finished when nothing will come any more. It
    is incomplete when all that came is done, and a producer was lost before it
    was through.

    Example: sdist frontier list
    """
    root = load().root
    if frontier is not None:
        if all_:
            raise ConfigError(f"--all, and the frontier {frontier}: one of the two has to go.")
        with opened(root, frontier) as (store, row):
            entries = [_Entry(store, row)]
    else:
        entries = _entries(root)
    if as_json:
        put_json({"frontiers": [entry.document() for entry in entries]})
    elif frontier is not None:
        for count in entries[0].counts:
            put(count.slot)
    else:
        _show(entries, slots=all_)


def _entries(root: Any) -> list[_Entry]:
    store = maybe_store(root)
    if store is None:
        return []
    with closing(store):
        return [_Entry(store, row) for row in store.crawls() if row.kind == "frontier"]


class _Entry:
    """One frontier as it stands now."""

    def __init__(self, store: Store, row: Crawl) -> None:
        self.row = row
        self.counts: list[SlotCount] = slots_in(store, row.id)
        self.backlog: Backlog = store.backlog(row.id)

    @property
    def state(self) -> str:
        if self.row.standing:
            return "standing"
        if self.backlog.incomplete:
            return "incomplete"
        return "finished" if self.backlog.finished else "open"

    @property
    def manager(self) -> str:
        """Who keeps workers running here, in words; empty for nobody."""
        return f"process {self.row.pid} on {self.row.host}" if self.row.pid and lives(self.row) else ""

    def cells(self) -> tuple[object, ...]:
        return (self.row.id, self.state, len(self.counts), *total_of(self.counts).values(),
                len(self.backlog.producers), self.manager)  # fmt: skip

    def document(self) -> dict[str, Any]:
        return {
            "frontier": self.row.id,
            "state": self.state,
            "created": self.row.created,
            "requests": total_of(self.counts),
            "slots": [slot_document(count) for count in self.counts],
            "producers": list(self.backlog.producers),
            "lost_producers": list(self.backlog.lost),
            "manager": self.manager or None,
        }


def status(store: Store, row: Crawl, *, as_json: bool) -> None:
    """Say how a frontier stands, and what its workers have done."""
    entry = _Entry(store, row)
    if as_json:
        put_json({**told(row), **entry.document()})
        return
    requests = " · ".join(f"{number:,} {kind}" for kind, number in total_of(entry.counts).items())
    put(f"{row.id}: {entry.state} · {wording.counted(len(entry.counts), 'slot')} · {requests}")
    if entry.manager:
        for line in wording.standing(row):
            put(line)
    elif row.summary and row.state.ended:
        for line in wording.closing(row):
            put(line)
    else:
        put(row.message or f"Nobody keeps workers running here; `sdist consume SPIDER {row.id}` does.")


def _show(entries: Sequence[_Entry], *, slots: bool) -> None:
    if not entries:
        say("There are no frontiers yet. `sdist frontier add FRONTIER FILE` makes one.")
    elif slots:
        rows = [(entry.row.id, count.slot, count.waiting) for entry in entries for count in entry.counts]
        table(("frontier", "slot", "waiting"), rows)
    else:
        headings = ("frontier", "state", "slots", "waiting", "leased", "done", "dead", "producers", "manager")
        table(headings, [entry.cells() for entry in entries])
        for entry in entries:
            if entry.backlog.lost:
                say(f"{entry.row.id}: not heard of any more, and not signed off: {', '.join(entry.backlog.lost)}.")
