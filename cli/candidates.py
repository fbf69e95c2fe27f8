"""Values that a shell completes: only what this machine knows, and never a call over the network.

An error in the project is reported when a command runs, not at a press of TAB: here it means no candidates.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapyd_dist.store import Store

#: value and explanation
Candidates = list[tuple[str, str]]
_SPIDER = re.compile(r"""^\s+name\s*(?::\s*\w+\s*)?=\s*["']([^"'\n]+)["']""", re.MULTILINE)
#: source files of a project that are read, and bytes of each, at most
_MOST_FILES, _MOST_BYTES = 2000, 200_000


def nodes() -> Candidates:
    """The targets of scrapy.cfg, else the local nodes that run."""
    with suppress(Exception):
        from scrapyd_dist.config import STATE_FOLDER, load

        found = load()
        if found.targets:
            return [(node.name, node.url) for node in found.targets]
        from scrapyd_dist.deploy import local_nodes

        return [(node.name, node.url) for node in local_nodes.running(found.root / STATE_FOLDER)]
    return []


def crawls() -> Candidates:
    """Crawls and frontiers in the local store."""
    return _stored(lambda store: [(row.id, f"{row.spider or row.kind}, {row.state.value}") for row in store.crawls()])


def frontiers() -> Candidates:
    """Frontiers in the local store."""
    return _stored(lambda store: [(row.id, row.state.value) for row in store.crawls() if row.kind == "frontier"])


def domains() -> Candidates:
    """Domains that have a rule of the throttle in the local store."""
    return _stored(lambda store: [(domain, "") for domain in sorted(store.rules().rules)])


def spiders() -> Candidates:
    """Names of spiders in the project's files, which are read and not imported."""
    with suppress(Exception):
        from scrapyd_dist.config import load

        found = load()
        package = found.root.joinpath(*found.settings_module.split(".")[:-1])
        return [(name, "") for name in sorted({name for file in _sources(package) for name in _SPIDER.findall(file)})]
    return []


def levels() -> list[str]:
    """Levels of log lines."""
    return ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


def placements() -> list[str]:
    """Ways to choose a node for a batch."""
    return ["by-capacity", "round-robin", "least-loaded"]


def endpoints() -> list[str]:
    """What Scrapyd answers to."""
    return [
        "daemonstatus", "listprojects", "listversions", "listspiders", "listjobs", "status", "schedule", "cancel",
        "addversion", "delversion", "delproject",
    ]  # fmt: skip


def _stored(read: Callable[[Store], Candidates]) -> Candidates:
    """What the project's store has, if it is a file that exists; a server may be far away."""
    with suppress(Exception):
        from scrapyd_dist.config import load
        from scrapyd_dist.store import open_store
        from scrapyd_dist.store.address import is_url

        from .project_store import where

        address = where(load().root)
        if not is_url(address) and Path(address).exists():
            with closing(open_store(address)) as store:
                return read(store)
    return []


def _sources(package: Path) -> Iterator[str]:
    for number, path in enumerate(sorted(package.rglob("*.py"))):
        if number >= _MOST_FILES:
            return
        if "spider" in str(path.relative_to(package)):
            with suppress(OSError), path.open("rb") as file:
                yield file.read(_MOST_BYTES).decode("utf-8", "replace")
