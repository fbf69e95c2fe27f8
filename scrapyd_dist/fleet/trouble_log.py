"""Tells a command or an address of troubles: once each, and again when all is well.

What was told is kept in the state folder, so that a watch that is started again does not tell it
again.
"""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapyd_dist.config import write_file
from scrapyd_dist.fleet.troubles import Sighting
from scrapyd_dist.messenger import Messenger
from scrapyd_dist.time_spans import format_moment
from scrapyd_dist.transports.event_hook import EventHook

#: seconds that a command or an address may take
PATIENCE = 20.0
#: seconds after which it is tried again when it failed
HOOK_RETRY_SECONDS = 30.0
#: seconds in which a job or crawl can begin and end unseen
UNSEEN = 300.0
#: what an event has besides its schema
_EVENT = ("event", "kind", "subject", "node", "since", "message")


@dataclass
class EndWatch:
    """Which jobs or crawls have ended since the last look."""

    since: float = 0.0  #: what was created before is known to have ended; seconds since the epoch
    ended: set[str] = field(default_factory=set)  #: known ends of what was created after

    def new(self, rows: Iterable[tuple[str, float, bool]], now: float) -> set[str]:
        """Return the ids of those that have ended; none at the first call.

        rows: id, creation time in seconds since the epoch, and whether it is over; now: the same.
        """
        if self.since > now:  # the clock was wrong
            self.since = now - UNSEEN
        created_at: dict[str, float] = {}  # of those that are over
        oldest = now - UNSEEN
        for name, created, is_over in rows:
            if created < self.since:
                continue
            if is_over:
                created_at[name] = created
            else:
                oldest = min(oldest, created)
        new = created_at.keys() - self.ended if self.since else set()
        self.since = max(self.since, oldest)
        self.ended = {name for name, created in created_at.items() if created >= self.since}
        return new


class TroubleLog:
    """What was told, and what is to be told still; kept in a file."""

    def __init__(self, path: Path, hook: EventHook, messenger: Messenger) -> None:
        self._path = path
        self._hook = hook
        self._messenger = messenger
        self.open: dict[str, dict[str, Any]] = {}  #: troubles that are not over, by key
        self.ends = {"jobs": EndWatch(), "crawls": EndWatch()}
        self._pending: list[dict[str, Any]] = []  #: events that are not sent yet, in order
        self._again = 0.0  #: when the first of them is tried again, by the monotonic clock
        self._wrong = ""  #: why it could not be sent, as was complained of
        self._written = ""  #: what is in the file
        with suppress(
            OSError,
            ArithmeticError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ):
            self._read(json.loads(path.read_text("utf-8")))

    def _read(self, document: dict[str, Any]) -> None:
        """Take over what was kept; where anything of it is wrong, nothing is changed."""
        opened = {str(key): _event_in(row) for key, row in document["told"].items()}
        pending = [_event_in(row) for row in document["pending"]]
        ends = {}
        for name in self.ends:
            since = int(document["ends"][name][0])
            ended = set(map(str, document["ends"][name][1]))
            ends[name] = EndWatch(since, ended)
        self.open = opened
        self._pending = pending
        self.ends = ends

    def report(self, sightings: Iterable[Sighting]) -> None:
        """Tell what is new in them, in their order."""
        for sighting in sightings:
            if bool(sighting.message) == (sighting.key in self.open):
                continue
            if sighting.message:
                self._open_trouble(sighting)
            else:
                self._close_trouble(sighting)
        self._keep()
        self._send()

    def _open_trouble(self, sighting: Sighting) -> None:
        trouble: dict[str, Any] = {
            "schema": 1,
            "event": "trouble",
            "kind": sighting.kind.value,
            "subject": sighting.subject,
            "node": sighting.node,
            "since": format_moment(time.time()),
            "message": sighting.message,
        }
        self.open[sighting.key] = trouble
        self._pending.append(trouble)

    def _close_trouble(self, sighting: Sighting) -> None:
        trouble = self.open.pop(sighting.key)
        before = str(trouble["message"]).rstrip(".")
        message = f"{sighting.kind.well(sighting.subject)} (before: {before})."
        self._pending.append({**trouble, "event": "well", "message": message})

    def _send(self) -> None:
        while self._pending and time.monotonic() >= self._again:
            if wrong := self._hook.notify(self._pending[0], patience=PATIENCE):
                self._again = time.monotonic() + HOOK_RETRY_SECONDS
                if wrong != self._wrong:
                    self._messenger.complain(f"{wrong} It is tried again.")
                self._wrong = wrong
                return
            self._wrong = ""
            self._pending.pop(0)
            self._keep()

    def _keep(self) -> None:
        ends = {}
        for name, watch in self.ends.items():
            ends[name] = [int(watch.since), sorted(watch.ended)]
        text = json.dumps({"told": self.open, "pending": self._pending, "ends": ends})
        if text != self._written:
            with suppress(OSError):  # the next watch then tells again what is still so
                write_file(self._path, text.encode())
            self._written = text


def _event_in(row: Mapping[str, Any]) -> dict[str, Any]:
    """An event as it was kept; an error if it is none."""
    return {"schema": 1, **{name: str(row[name]) for name in _EVENT}}
