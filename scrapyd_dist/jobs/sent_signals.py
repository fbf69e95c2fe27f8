"""Notes the signals that commands sent to jobs, in a file of the state folder.

The rule it keeps: a note is about one run of a job, by its start, since an id may come again; what
a node certainly did not take is taken back.
"""

import json
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from scrapyd_dist.config import state_dir, state_folder
from scrapyd_dist.joblogs.verdict import Place

from .job_list import ListedJob

_FILE = "signals.jsonl"
#: by base address of the node, project, id: start of the run, and how much was sent; KILL counts
#: as two INT
_Notes = dict[tuple[str, str, str], list[tuple[str, int]]]


def note_signal(root: Path, place: Place, signal: str, *, taken: bool = True) -> None:
    """Write down that a signal is about to be sent; `taken=False` takes that back."""
    row = {
        "at": round(time.time(), 1),
        "node": place.node.url,
        "project": place.project,
        "job": place.job,
        "started": _start_of(place),
        "signal": signal,
    }
    if not taken:
        row["taken"] = False
    with (state_dir(root) / _FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


class SentSignals:
    """What was sent from here so far."""

    def __init__(self, root: Path) -> None:
        self._notes: _Notes = defaultdict(list)
        with suppress(OSError), (state_folder(root) / _FILE).open(encoding="utf-8") as file:
            for line in file:
                with suppress(ValueError, KeyError, TypeError):
                    row = json.loads(line)
                    weight = 2 if row["signal"] == "KILL" else 1
                    if not row.get("taken", True):
                        weight = -weight
                    key = (row["node"], row["project"], row["job"])
                    self._notes[key].append((str(row.get("started", "")), weight))

    def was_signalled(self, place: Place) -> bool:
        """Tell whether the job was told to end."""
        return self._weight(place) > 0

    def had_no_time(self, place: Place) -> bool:
        """Tell whether it was sent KILL or a second INT, and so could not log how it ends."""
        return self._weight(place) > 1

    def _weight(self, place: Place) -> int:
        start = _start_of(place)
        notes = self._notes.get((place.node.url, place.project, place.job), ())
        total = 0
        for began, weight in notes:
            # A start that is not known may be any.
            if "" in (began, start) or began == start:
                total += weight
        return total


def _start_of(place: Place) -> str:
    if not isinstance(place, ListedJob) or place.started is None:
        return ""
    return place.started.isoformat()
