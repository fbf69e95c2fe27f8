"""The fleet as it is now and was in the last minutes, as far as pages were viewed."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from scrapyd_dist.fleet.fleet_watch import FleetWatch
from scrapyd_dist.fleet.workspace import Workspace

#: seconds that the lines of a board look back
SPAN = 900.0
#: seconds between two points of a line, at least
STEP = 10.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """The numbers of the whole fleet at one time."""

    at: float  #: by the monotonic clock
    up: int  #: nodes
    running: int  #: jobs
    pending: int  #: jobs
    pages: float  #: per minute
    errors: float  #: per minute, of jobs of crawls: those of others are in no line of their logs


class FleetBoard:
    """Watches the fleet whenever it is asked to, and keeps points of its numbers.

    It belongs to one thread at a time. open_workspace: opens the project.
    """

    def __init__(self, open_workspace: Callable[[], Workspace]) -> None:
        self._open_workspace = open_workspace
        self._workspace: Workspace | None = None
        self._watch: FleetWatch | None = None
        self._points: deque[Point] = deque()

    def poll(self) -> tuple[dict[str, Any], Sequence[Point]]:
        """Ask all nodes; return the document of `sdist status --fleet`, and the points so far."""
        if self._watch is None:
            # It is kept, since rates need what was seen before. Without a node it raises.
            workspace = self._open_workspace()
            try:
                self._watch = FleetWatch(workspace)
            finally:
                if self._watch is None:
                    workspace.close()
            self._workspace = workspace
        self._watch.poll()
        document = self._watch.document()
        self._keep(_point_of(document, time.monotonic()))
        return document, tuple(self._points)

    def close(self) -> None:
        """Close the project."""
        if self._workspace is not None:
            with closing(self._workspace):
                self._watch = None

    def _keep(self, point: Point) -> None:
        points = self._points
        if len(points) > 1 and point.at - points[-2].at < STEP:
            points.pop()  # the last one is always of now
        points.append(point)
        while point.at - points[0].at > SPAN:
            points.popleft()


def _point_of(document: Mapping[str, Any], now: float) -> Point:
    return Point(
        at=now,
        up=sum(node["running"] is not None for node in document["nodes"]),
        running=document["running"],
        pending=document["pending"],
        pages=document["per_min"]["pages"],
        errors=document["per_min"]["errors"],
    )
