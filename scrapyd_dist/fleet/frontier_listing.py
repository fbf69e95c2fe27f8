"""How the frontiers of a project stand, and what is in their slots: for table, JSON, page."""

from collections.abc import Mapping, Sequence
from typing import Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.fleet.live_crawls import lives
from scrapyd_dist.frontier.backlog import Backlog, SlotCount
from scrapyd_dist.progress.summary_document import has_labels, labels_of, summary_of
from scrapyd_dist.store import Store

#: what requests of a slot can be -> the states of their batches
KINDS = {
    "waiting": ("sealed", "failed"),
    "leased": ("sent", "running"),
    "done": ("done",),
    "dead": ("dead",),
}
#: what stands above `FrontierEntry.cells`
HEADINGS = ("frontier", "state", "slots", *KINDS, "producers", "manager")


def list_frontiers(store: Store | None, label: Sequence[str] | None) -> list["FrontierEntry"]:
    """Return the frontiers with these labels."""
    if store is None:
        return []
    entries = []
    for row in store.crawls():
        if row.kind == "frontier" and has_labels(labels_of(row), label):
            entry = FrontierEntry(store, row)
            entries.append(entry)
    return entries


def by_kind(states: Mapping[str, int]) -> dict[str, int]:
    """Return a number for each of `KINDS`; states: the numbers by the state of the batch."""
    totals = dict.fromkeys(KINDS, 0)
    for kind, states_of_kind in KINDS.items():
        for state in states_of_kind:
            totals[kind] += states.get(state, 0)
    return totals


def batches_in(counts: Sequence[SlotCount]) -> int:
    """Return the number of batches of all these slots.

    What was only cut there, and lies elsewhere now, is none.
    """
    total = 0
    for count in counts:
        numbers = by_kind(count.batches)
        total += sum(numbers.values())
    return total


def filled_slots(backlog: Backlog) -> list[SlotCount]:
    """Return the slots that have something."""
    return [count for count in backlog.slots if batches_in([count])]


def total_of(counts: Sequence[SlotCount]) -> dict[str, int]:
    """Return the number of requests of all these slots for each of `KINDS`."""
    totals = dict.fromkeys(KINDS, 0)
    for count in counts:
        for kind, requests in by_kind(count.requests).items():
            totals[kind] += requests
    return totals


def slot_document(count: SlotCount) -> dict[str, Any]:
    """Return what `--json` says of a slot."""
    return {
        "slot": count.slot,
        "requests": by_kind(count.requests),
        "batches": by_kind(count.batches),
    }


class FrontierEntry:
    """One frontier as it stands now."""

    def __init__(self, store: Store, row: Crawl) -> None:
        self.row = row
        self.backlog: Backlog = store.backlog(row.id)
        self.counts: list[SlotCount] = filled_slots(self.backlog)

    @property
    def state(self) -> str:
        """Return how it stands, in a word."""
        if self.row.standing:
            return "standing"
        if self.backlog.incomplete:
            return "incomplete"
        if self.backlog.finished:
            return "finished"
        return "open"

    @property
    def manager(self) -> str:
        """Return the process that keeps workers running here; empty if there is none."""
        if lives(self.row):
            return f"process {self.row.pid} on {self.row.host}"
        return ""

    def cells(self) -> tuple[object, ...]:
        """Return its row in a table for people, below `HEADINGS`."""
        return (
            self.row.id,
            self.state,
            len(self.counts),
            *total_of(self.counts).values(),
            len(self.backlog.producers),
            self.manager,
        )

    def document(self) -> dict[str, Any]:
        """Return how it stands, for `--json`."""
        return {
            "frontier": self.row.id,
            "state": self.state,
            "labels": [*labels_of(self.row)],
            "created": self.row.created,
            "requests": total_of(self.counts),
            "slots": list(map(slot_document, self.counts)),
            "producers": list(self.backlog.producers),
            "lost_producers": list(self.backlog.lost),
            "manager": self.manager or None,
        }

    def describe_standing(self) -> dict[str, Any]:
        """Return how it stands as `sdist status --json` gives it: also what its workers did."""
        return {**summary_of(self.row), **self.document()}
