"""How each command ends: its exit codes and what they mean. Rule: each command has its entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: what a code means wherever nothing else is said
MEANINGS = {
    0: "all good",
    1: "the work failed",
    2: "wrong usage or configuration; nothing was started",
    3: "partial: some URLs, index pages or nodes failed",
    4: "what was named does not exist",
    5: "no node could be reached",
    6: "user name, password or certificate refused",
    10: "a dry run would change something, or a check found a difference",
    124: "the time was up",
    130: "interrupted by Ctrl-C",
}

_NODES = (0, 2, 3, 4, 5, 6, 130)
_CRAWL = (0, 1, 2, 3, 4, 5, 6, 124, 130)

#: path of a command, without `sdist` -> its codes
CODES: Mapping[str, tuple[int, ...]] = {
    "": (0, 2),
    "demo": (0, 1, 2, 3, 130),
    "init": (0, 2, 10, 130),
    "config": (0, 2, 10),
    "completion": (0, 2),
    "version": (0,),
    "crawl": _CRAWL,
    "plan": (0, 1, 2, 5, 6, 130),
    "resume": _CRAWL,
    "watch": _CRAWL,
    "wait": _CRAWL,
    "status": (0, 2, 3, 4, 5, 6),
    "crawls": (0, 1, 2, 6),
    "pause": (0, 1, 2, 4, 6, 124, 130),
    "stop": (0, 2, 3, 4, 5, 6, 124, 130),
    "retry": _CRAWL,
    "batches": (0, 1, 2, 4, 6),
    "misses": (0, 1, 2, 4, 6),
    "clean": (0, 1, 2, 4, 6, 10, 130),
    "report": (0, 1, 2, 4, 6),
    "trust": (0, 1, 2, 4, 6, 130),
    "throttle": (0, 2),
    "throttle show": (0, 1, 2, 4, 6),
    "throttle apply": (0, 1, 2, 4, 6, 10),
    "throttle set": (0, 1, 2, 6),
    "throttle unset": (0, 1, 2, 6),
    "throttle block": (0, 1, 2, 6),
    "throttle unblock": (0, 1, 2, 6),
    "throttle pause": (0, 1, 2, 6),
    "throttle resume": (0, 1, 2, 6),
    "frontier": (0, 2),
    "frontier list": (0, 1, 2, 4, 6),
    "frontier count": (0, 1, 2, 4, 6),
    "frontier dump": (0, 1, 2, 4, 6),
    "frontier add": (0, 1, 2, 3, 4, 6, 130),
    "frontier move": (0, 1, 2, 3, 4, 6, 130),
    "frontier requeue": (0, 1, 2, 4, 6),
    "frontier delete": (0, 1, 2, 3, 4, 6, 130),
    "consume": _CRAWL,
    "nodes": (0, 2, 3, 4, 5, 6, 130),
    "nodes up": (0, 1, 2, 130),
    "nodes down": (0, 1, 2, 130),
    "nodes drain": (0, 1, 2, 3, 4, 5, 6, 124, 130),
    "nodes resume": (0, 1, 2, 4, 6),
    "nodes add": (0, 2, 3, 5, 6, 130),
    "nodes remove": (0, 1, 2, 4, 6),
    "doctor": (0, 1, 2, 3, 4, 5, 6, 130),
    "deploy": (0, 1, 2, 3, 4, 5, 6, 10, 130),
    "deploy-all": (0, 1, 2, 3, 5, 6, 10, 130),
    "versions": (0, 2, 3, 4, 5, 6, 10, 130),
    "spiders": (0, 2, 3, 4, 5, 6, 10, 130),
    "rollback": (0, 1, 2, 3, 4, 5, 6, 10, 130),
    "prune": (0, 1, 2, 3, 4, 5, 6, 10, 130),
    "schedule": _NODES,
    "jobs": _NODES,
    "logs": _NODES,
    "grep": _NODES,
    "stats": _NODES,
    "cancel": (0, 2, 3, 4, 5, 6, 124, 130),
    "items": (0, 2),
    "items pull": _NODES,
    "items merge": (0, 1, 2, 3, 4, 6, 130),
    "items tail": (0, 1, 2, 3, 4, 6, 130),
    "metrics": (0, 1, 2, 4, 6),
    "api": (0, 1, 2, 5, 6),
}


def codes_of(path: str) -> tuple[tuple[int, str], ...]:
    """The exit codes of a command and their meanings; empty for one that has no entry."""
    name = path.removeprefix("sdist").strip()
    return tuple((code, MEANINGS[code]) for code in CODES.get(name, ()))
