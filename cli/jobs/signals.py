"""Which signals we sent to jobs: their list in the state folder. Rule: only what was sent is in it, never a guess."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapyd_dist.config import STATE_FOLDER, state_dir

if TYPE_CHECKING:
    from pathlib import Path

    from scrapyd_dist.jobs.judged import Place

_FILE = "signals.jsonl"

#: what tells one job from another: base address of its node, project, id
Key = tuple[str, str, str]


def key_of(place: Place) -> Key:
    return place.node.url, place.project, place.job


def note(root: Path, place: Place, signal: str) -> None:
    """Write down that this job is sent a signal."""
    url, project, job = key_of(place)
    row = {"at": round(time.time(), 1), "node": url, "project": project, "job": job, "signal": signal}
    with (state_dir(root) / _FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def noted(root: Path) -> set[Key]:
    """The jobs that we left no time to say how they end: by KILL, or by a second INT."""
    found: Counter[Key] = Counter()
    with suppress(OSError), (root / STATE_FOLDER / _FILE).open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                found[row["node"], row["project"], row["job"]] += 2 if row["signal"] == "KILL" else 1
    return {key for key, weight in found.items() if weight > 1}
