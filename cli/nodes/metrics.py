"""`sdist metrics`: nodes and crawls as numbers for Prometheus. Rule: no address or label has a password in it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError

from ..jobs.joblist import Nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.config import ProjectConfig

    from .looks import Seen

#: seconds that a node gets to answer: Prometheus itself waits ten for all of it
TIMEOUT = 5.0


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("metrics", rich_help_panel="Nodes")(metrics)


def metrics(
    textfile: Annotated[
        Optional[Path],
        typer.Option(
            "--textfile", metavar="FILE", help="Write to this file, for node_exporter's textfile collector: FILE.prom."
        ),
    ] = None,
    node: Nodes = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a node gets to answer.", min=0.1)] = TIMEOUT,
) -> None:
    """Print how the nodes and the crawls stand, in the text format of Prometheus.

    Nodes: up, jobs, latency, clock skew. Crawls: how many of each state, and of
    each that runs what was found, sent, done and failed. Domains of the throttle:
    how many stand how. A node that is down is a number too, so the exit code is
    0. A textfile is replaced as a whole: run this from cron or a timer.

    Example: sdist metrics --textfile /var/lib/node_exporter/sdist.prom
    """
    from scrapyd_dist.config import load
    from scrapyd_dist.upkeep.exposition import render

    from ..speaking import say
    from .measured import families

    found = load()
    if textfile is not None and not textfile.absolute().parent.is_dir():
        raise ConfigError(f"There is no folder {textfile.absolute().parent} for the textfile; make it first.")
    began = time.time()
    text = render(families(_nodes(found, node, timeout), *_stored(found), now=began, took=time.time() - began))
    if textfile is None:
        typer.echo(text, nl=False)
        return
    _replace(textfile, text)
    say(f"{sum(not line.startswith('#') for line in text.splitlines())} numbers in {textfile}.")


def _nodes(found: ProjectConfig, patterns: Sequence[str] | None, timeout: float) -> list[Seen]:
    """One look at every node; none where the project has none."""
    from ..fleet import nodes_of
    from ..jobs.joblist import chosen_nodes, make_sender
    from . import records
    from .looks import ask_nodes

    if not nodes_of(found) and not patterns:
        return []
    sender = make_sender()
    nodes = chosen_nodes(found, patterns)
    seen = {one.node: one for one in ask_nodes(sender, nodes, None, timeout)}
    answered = [seen[node] for node in nodes if node in seen]
    records.recognise(found.root, sender, answered, timeout)
    return answered


def _stored(found: ProjectConfig) -> tuple[list[Crawl], dict[str, int]]:
    """The crawls of the project's store, and how many domains of its throttle stand how."""
    from ..storing import maybe_store
    from ..throttle.showing import rows_of, standing

    store = maybe_store(found.root)
    if store is None:
        return [], {}
    with closing(store):
        rows, _ = rows_of(store)
        return store.crawls(), standing(rows) if rows else {}


def _replace(path: Path, text: str) -> None:
    """Write a file so that whoever reads it sees the old one or the new one, never half of one."""
    import tempfile

    # Its name does not end in .prom: the collector must not take it for one of its own.
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.absolute().parent)
    growing = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        growing.chmod(0o644)  # the collector is another user
        growing.replace(path)
    finally:
        growing.unlink(missing_ok=True)
