"""`sdist metrics`: nodes and crawls as metrics for Prometheus. Rule: no address or label has a password in it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError

from ..jobs.job_list import Nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.batches import Crawl
    from scrapyd_dist.config import ProjectConfig

    from .node_status import NodeStatus

#: seconds that a node gets to answer: Prometheus itself waits ten for all of it
TIMEOUT = 5.0


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("metrics")(metrics)


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
    from prometheus_client import generate_latest, write_to_textfile

    from scrapyd_dist.config import load

    from ..output import say
    from .metric_families import measure

    found = load()
    if textfile is not None and not textfile.absolute().parent.is_dir():
        raise ConfigError(f"There is no folder {textfile.absolute().parent} for the textfile; make it first.")
    began = time.time()
    registry = measure(_nodes(found, node, timeout), *_stored(found), now=began, took=time.time() - began)
    if textfile is None:
        typer.echo(generate_latest(registry), nl=False)
        return
    write_to_textfile(str(textfile), registry)  # replaces the file by a rename
    textfile.chmod(0o644)  # the collector is another user
    say(f"{sum(len(metric.samples) for metric in registry.collect())} numbers in {textfile}.")


def _nodes(found: ProjectConfig, patterns: Sequence[str] | None, timeout: float) -> list[NodeStatus]:
    """One look at every node; none where the project has none."""
    from ..jobs.job_list import make_sender
    from ..target_nodes import chosen_nodes, nodes_of
    from . import drain
    from .node_status import ask_nodes

    if not nodes_of(found) and not patterns:
        return []
    sender = make_sender()
    nodes = chosen_nodes(found, patterns)
    seen = {one.node: one for one in ask_nodes(sender, nodes, None, timeout)}
    answered = [seen[node] for node in nodes if node in seen]
    drain.recognise(found.root, sender, answered, timeout)
    return answered


def _stored(found: ProjectConfig) -> tuple[list[Crawl], dict[str, int]]:
    """The crawls of the project's store, and how many domains of its throttle stand how."""
    from ..project_store import maybe_store
    from ..throttle.throttle_show import rows_of, standing

    store = maybe_store(found.root)
    if store is None:
        return [], {}
    with closing(store):
        rows, _ = rows_of(store)
        return store.crawls(), standing(rows) if rows else {}
