"""`sdist watch`, `status` and `report`: show how a crawl stands, or the whole fleet."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.live_crawls import runs
from scrapyd_dist.store import Store
from scrapyd_dist.whole_files import replacing

from .context import Context
from .crawl_show import show_standing
from .crawls import watcher
from .crawls.crawl import SomeCrawl
from .crawls.crawl_options import STDOUT
from .crawls.producer_process import crawl_or_latest
from .crawls.watcher import WATCHING, WatchOptions
from .nodes import fleet_view
from .options import argument, nodes, option
from .options import crawls as crawl_names
from .output import Output, put

if TYPE_CHECKING:
    from scrapyd_dist.report.facts import NodeNow

Fleet = Annotated[
    bool, option("All nodes and the jobs of any kind that run there, instead of a crawl.")
]
OnTrouble = Annotated[
    str | None,
    option(
        "With --fleet: run this command, or post to this http(s) address, when something goes"
        " wrong, and when it is well again. SDIST_ON_TROUBLE in the environment says the same.",
        metavar="CMD|URL",
        envvar="SDIST_ON_TROUBLE",
        show_envvar=False,
        panel=WATCHING,
    ),
]


def watch(
    context: Context,
    watched: WatchOptions,
    crawl: Annotated[
        list[str] | None, argument("CRAWL", "Names of crawls; the newest if left out.", crawl_names)
    ] = None,
    fleet: Fleet = False,
    job: Annotated[
        list[str] | None,
        option("With --quiet: wait for this job instead. Repeatable.", metavar="JOB"),
    ] = None,
    node: Annotated[
        list[str] | None,
        option(
            "With --job: where it is looked for. Names, globs as in 'eu-*', or addresses;"
            " repeatable.",
            "--node",
            "-t",
            metavar="NAME",
            autocompletion=nodes,
        ),
    ] = None,
    on_trouble: OnTrouble = None,
) -> int:
    """Watch a crawl or the fleet, or wait for crawls or jobs.

    Of a crawl: how far the index is, what is found, sent and done, what each
    node does per minute, and which batch is far slower than the others. With
    --fleet: every node, and each job of any kind that runs on it, with its pages
    and items per minute, and the errors per minute of jobs of crawls.
    With --quiet it only waits: for a crawl, for several, or for jobs. The exit code
    is the crawl's own; of several it is 0 when all are good, 3 when only some are,
    else that of the first. A job is judged by what it really did: 0 when it
    finished, 1 otherwise.

    Example: sdist watch easy-20260102T030405Z
    Example: sdist watch easy-20260102T030405Z --quiet --timeout 2h
    Example: sdist watch --quiet --job 0123456789abcdef0123456789abcdef
    """
    _check_watched(crawl, job, node, fleet=fleet)
    if on_trouble is not None and not on_trouble.strip():
        raise ConfigError(
            "--on-trouble is empty: give it a command or an address, or leave it out."
        )
    if fleet:
        return fleet_view.watch(context, watched, on_trouble)
    if on_trouble and on_trouble != os.environ.get("SDIST_ON_TROUBLE"):
        raise ConfigError(
            "--on-trouble tells of the fleet: add --fleet. The end of a crawl is told by its"
            " --on-finish."
        )
    if job:
        return _wait_for_jobs(context, watched, job, node)
    store = context.store
    ids = _find_crawls(store, crawl or [None])
    if len(ids) > 1:
        return _wait_for_crawls(context, watched, ids)
    return watcher.watch(context.root, store, ids[0], watched)


def _check_watched(
    crawls: Sequence[str] | None,
    jobs: Sequence[str] | None,
    nodes: Sequence[str] | None,
    *,
    fleet: bool,
) -> None:
    """Refuse to watch things of two kinds at once."""
    if fleet and crawls:
        _refuse_fleet(crawls[0])
    if jobs and (fleet or crawls):
        raise ConfigError(
            "Crawls, jobs (--job) or the fleet (--fleet) are watched, not two of them at once."
        )
    if nodes and not jobs:
        raise ConfigError("--node says where a job is looked for: add --job, or leave it out.")


def _find_crawls(store: Store, names: Sequence[str | None]) -> list[str]:
    """Return the names of crawls, each once; None stands for the newest."""
    return list(dict.fromkeys(crawl_or_latest(store, name).id for name in names))


def _wait_for_crawls(context: Context, watched: WatchOptions, ids: Sequence[str]) -> int:
    from .crawls.crawl_wait import wait_for_crawls

    _check_quiet(watched, "several crawls")
    return wait_for_crawls(context, ids, watched.deadline_from_now(), watched)


def _wait_for_jobs(
    context: Context, watched: WatchOptions, jobs: Sequence[str], nodes: list[str] | None
) -> int:
    from .jobs.wait import wait_for_jobs

    _check_quiet(watched, "jobs")
    code, document = wait_for_jobs(context, jobs, context.nodes(nodes), watched.deadline_from_now())
    watched.document(document)
    return code


def _check_quiet(watched: WatchOptions, what: str) -> None:
    """Refuse to watch, without `--quiet`, what has no display."""
    if not watched.quiet or watched.verbose:
        change = "with --quiet leave out --verbose" if watched.quiet else "add --quiet"
        if watched.verbose and not watched.quiet:
            change += ", and leave out --verbose"
        raise ConfigError(f"There is no display of {what}, only a wait for the end: {change}.")


def status(
    context: Context, crawl: SomeCrawl = None, fleet: Fleet = False, output: Output = Output()
) -> int:
    """Say how a crawl stands, once; or how the fleet does.

    Example: sdist status easy-20260102T030405Z --json
    """
    if fleet and crawl is not None:
        _refuse_fleet(crawl)
    if fleet:
        return fleet_view.status(context, output)
    row = crawl_or_latest(context.store, crawl)
    show_standing(context, row, output)
    return 0


def _refuse_fleet(crawl: str) -> NoReturn:
    raise ConfigError(
        f"--fleet is about all nodes, not about the crawl {crawl}: give one of the two."
    )


def report(
    context: Context,
    crawl: SomeCrawl = None,
    output: Annotated[
        Path | None,
        option("Where the page goes; CRAWL.html if left out.", "-o", "--output", metavar="FILE"),
    ] = None,
    ask_nodes: Annotated[bool, option("Ask the nodes, too, which versions they have now.")] = False,
    result: Output = Output(),
) -> None:
    """Make a page of one crawl: growth, nodes, failures.

    The page is one file without scripts, for a browser, a mail or an archive. It
    works while the crawl runs, too, and says then when it may end. --json gives
    the series behind its pictures. `-o -` writes the page to standard output.

    Example: sdist report easy-20260102T030405Z -o easy.html
    """
    from scrapyd_dist.report.facts import gather
    from scrapyd_dist.report.page import page
    from scrapyd_dist.report.series import document

    if str(output) == STDOUT and result.as_json:
        raise ConfigError(
            "--json and -o - both write to standard output: leave one of the two out."
        )
    row = crawl_or_latest(context.store, crawl)
    facts = gather(context.store, row.id, now=time.time(), lives=runs(row))
    if ask_nodes:
        facts = replace(facts, nodes_now=_versions_now(context, row))
    if result.as_json:
        result.document(document(facts))
    if str(output) == STDOUT:
        sys.stdout.write(page(facts))
    elif output is not None or not result.as_json:
        place = output or Path(f"{row.id}.html")
        _write(place, page(facts))
        if not result.as_json:
            put(str(place))


def _versions_now(context: Context, row: Crawl) -> tuple["NodeNow", ...]:
    """Return which versions of the crawl's project the nodes have now."""
    from scrapyd_dist.deploy.node_versions import list_versions

    from scrapyd_dist.report.facts import NodeNow

    found = []
    for seen in list_versions(context.nodes(), row.project, timeout=5.0):
        reason = str(seen.error or "")
        found.append(NodeNow(name=seen.node.name, versions=seen.versions, reason=reason))
    return tuple(found)


def _write(place: Path, text: str) -> None:
    """Write the page beside its place, and put it there when it is whole."""
    if place.is_dir():
        raise ConfigError(f"{place} is a folder. Name a file in it: -o {place / 'report.html'}")
    try:
        with replacing(place) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The report cannot be written to {place}: {error.strerror or error}. Name another file"
            " by -o."
        ) from error
