"""`sdist nodes metrics`: nodes and crawls as Prometheus metrics, printed or in a file."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import generate_latest

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.measurements import Measurements, measure, rolling, samples_since
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.survey import survey_fleet
from scrapyd_dist.fleet.throttled_domains import count_standing, list_domains
from scrapyd_dist.jobs.job_judge import settle_jobs
from scrapyd_dist.report.time_window import WINDOWS
from scrapyd_dist.whole_files import replacing

from ..context import Context
from ..options import Nodes, Timeout, option
from ..output import say
from ..poll_progress import shown_answers


def metrics(
    *,
    context: Context,
    textfile: Annotated[
        Path | None,
        option(
            "Write to this file, for node_exporter's textfile collector: FILE.prom.", metavar="FILE"
        ),
    ] = None,
    node: Nodes = None,
    timeout: Timeout = 5.0,  # Prometheus itself waits ten for all of it
) -> None:
    """Print how the nodes and the crawls stand, in the text format of Prometheus.

    Nodes: up, jobs, latency, clock skew. Crawls: how many of each state, and of
    each that runs what was found, sent, done and failed. Domains of the throttle:
    how many stand how. The last 15 minutes, hour and day: pages and items by
    spider, and how plain jobs ended. A node that is down is a number too, so the
    exit code is 0. A textfile is replaced as a whole: run this from cron or a timer.

    Example: sdist nodes metrics --textfile /var/lib/node_exporter/sdist.prom
    """
    if textfile is not None and not textfile.absolute().parent.is_dir():
        raise ConfigError(
            f"There is no folder {textfile.absolute().parent} for the textfile; make it first."
        )
    measured = _collect(context, node, timeout)
    if textfile is None:
        typer.echo(generate_latest(measured), nl=False)
        return
    with replacing(textfile) as file:
        os.fchmod(file.fileno(), 0o644)  # the collector is another user
        file.write(generate_latest(measured))
    say(f"{measured.number} numbers in {textfile}.")


def _collect(context: Context, patterns: Sequence[str] | None, timeout: float) -> Measurements:
    """Ask the nodes, and read the store."""
    began = time.time()
    statuses: Sequence[NodeStatus] = ()
    if patterns or context.knows_nodes:
        survey = survey_fleet(
            context,
            context.known_nodes(patterns),
            timeout=timeout,
            progress=shown_answers,
            messenger=context.messenger,
        )
        statuses = survey.statuses
    store = context.store_if_any
    crawls: list[Crawl] = []
    throttled: Mapping[str, int] = {}
    if store is not None:
        crawls = store.crawls()
        domains = list_domains(store)[0]
        throttled = count_standing(domains) if domains else {}
    since = began - max(WINDOWS.values())
    up = [status.node for status in statuses if status.load is not None]
    records = settle_jobs(context.job_site, up, timeout=timeout, since=since).records
    grown = []
    if store is not None:
        grown = list(samples_since(store, crawls, since))
    recent = rolling([*records], grown, began)
    return measure(statuses, crawls, throttled, recent, now=began, took=time.time() - began)
