"""The table of commands, how each ends, and their loading: a command's module is imported when it is called."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

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
#: exit codes -> the commands that end with them, without `sdist`
_ENDS: Mapping[tuple[int, ...], str] = {
    (0, 2): ", completion, throttle, frontier, items",
    (0, 1, 2, 3, 130): "demo",
    (0, 2, 10, 130): "init",
    (0, 2, 10): "config",
    (0,): "version",
    (0, 1, 2, 5, 6, 130): "plan",
    (0, 1, 2, 3, 4, 5, 6): "status",
    (0, 1, 2, 6): (
        "crawls, strategy, throttle set, throttle unset, throttle block, throttle unblock, throttle pause, throttle resume"
    ),
    (0, 1, 2, 4, 6, 124, 130): "pause, strategy pause",
    (
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        124,
        130,
    ): "crawl, resume, watch, wait, retry, consume, strategy run, nodes drain, stop, cancel",
    (0, 1, 2, 4, 6): (
        "batches, misses, report, throttle show, frontier list, frontier count, frontier dump, "
        "frontier prioritise, frontier requeue, nodes resume, nodes remove, metrics, "
        "strategy status, strategy resume, strategy replay"
    ),
    (0, 1, 2, 4, 6, 10, 130): "clean",
    (0, 1, 2, 4, 6, 130): "trust, strategy join, strategy add, strategy reset, strategy events",
    (0, 1, 2, 4, 6, 10): "throttle apply",
    (0, 1, 2, 3, 4, 6, 130): "frontier add, frontier move, frontier delete, items merge, items tail",
    (0, 1, 2, 3, 4, 5, 6, 130): "doctor, nodes, schedule, jobs, logs, grep, stats, items pull",
    (0, 1, 2, 130): "nodes up, nodes down",
    (0, 2, 3, 5, 6, 130): "nodes add",
    (0, 1, 2, 3, 4, 5, 6, 10, 130): "deploy, rollback, prune, versions, spiders",
    (0, 1, 2, 3, 5, 6, 10, 130): "deploy-all",
    (0, 1, 2, 5, 6): "api",
}
#: path of a command, without `sdist` -> its codes
CODES = {path: codes for codes, paths in _ENDS.items() for path in paths.split(", ")}
#: docstrings keep their lines, and backslash-escaped brackets stay brackets
MARKUP: Any = "rich"


class CommandEntry(NamedTuple):
    """A command before its module is imported."""

    module: str  #: of this package; has the command's function, or the Typer app of its group, under the command's name
    panel: str
    summary: str  #: the first sentence of its help; a test compares


_START, _CRAWLS, _NODES, _CODE, _JOBS, _HELP = "Start here", "Crawls", "Nodes", "Code", "Jobs", "Help"
# fmt: off
# ruff: noqa: E501 - a row is a line, as in the help
COMMANDS = {
    "demo": CommandEntry("crawls.demo", _START, "Show it all on this machine: a site, real Scrapyd nodes, and one crawl over them."),
    "init": CommandEntry("init", _START, "Name the nodes of this project: write them into its scrapy.cfg, and ask each one once whether it answers."),
    "config": CommandEntry("config_command", _START, "Show the options in force: the project, its targets, its DISTRIBUTED_ settings."),
    "crawl": CommandEntry("crawls.crawl", _CRAWLS, "Spread one crawl over the nodes, watch it, and bring the items home as one file."),
    "plan": CommandEntry("crawls.crawl", _CRAWLS, "Show what `sdist crawl` with the same options would do, without doing it."),
    "resume": CommandEntry("crawls.crawl", _CRAWLS, "Go on with a crawl that was stopped, refused or paused, or whose process died."),
    "pause": CommandEntry("crawls.stored_crawls", _CRAWLS, "Let a crawl rest: no request of it leaves until `sdist resume`, within 5 seconds."),
    "stop": CommandEntry("jobs.job_ends", _CRAWLS, "Stop a crawl: its producer first, then its jobs on all nodes. `sdist resume` goes on with it."),
    "retry": CommandEntry("crawls.stored_crawls", _CRAWLS, "Try again what a crawl gave up: its dead batches and URLs and, if asked for, its failed URLs."),
    "batches": CommandEntry("crawls.stored_crawls", _CRAWLS, "List the batches of a crawl: how each stands, its attempts, and why they failed."),
    "misses": CommandEntry("crawls.stored_crawls", _CRAWLS, "List the URLs of a crawl or a frontier that gave no result so far, and why."),
    "watch": CommandEntry("status", _CRAWLS, "Watch a crawl to its end, and end with its exit code; or watch the fleet. Ctrl-C leaves all running."),
    "status": CommandEntry("status", _CRAWLS, "Say how a crawl stands, once; or how the fleet does."),
    "wait": CommandEntry("jobs.job_ends", _CRAWLS, "Wait until crawls are at their end, or jobs are over; say nothing before that."),
    "crawls": CommandEntry("crawls.crawl", _CRAWLS, "List the crawls of this project, the newest first."),
    "clean": CommandEntry("crawls.stored_crawls", _CRAWLS, "Remove crawls and all that is kept of them: batches, fingerprints, parts, the producer's log."),
    "report": CommandEntry("status", _CRAWLS, "Make a page of one crawl: how it grew, what each node did, what failed."),
    "trust": CommandEntry("crawls.stored_crawls", _CRAWLS, "Believe what the store says of a crawl or frontier, and sign it with this project's key."),
    "throttle": CommandEntry("crawls.throttle_commands", _CRAWLS, "Set, show and change while crawls run how many requests each domain gets."),
    "frontier": CommandEntry("frontier.frontier_commands", "Frontiers", "List, fill, count, move and empty the slots of crawl frontiers."),
    "consume": CommandEntry("frontier.consume", "Frontiers", "Keep workers of a spider running at a frontier until nothing is left, and bring the items home."),
    "strategy": CommandEntry("frontier.strategy_commands", "Frontiers", "List the crawling strategies of this project, and how each stands; the commands below run them."),
    "items": CommandEntry("jobs.item_commands", "Items", "Fetch, merge and follow the items of crawls and jobs."),
    "nodes": CommandEntry("nodes.node_commands", _NODES, "List the nodes, each with its state, load, latency, version and clock."),
    "doctor": CommandEntry("nodes.doctor", _NODES, "Look for what endangers work on the nodes; each finding says what to do."),
    "api": CommandEntry("nodes.api_call", _NODES, "Call an endpoint of one node, and print the JSON that it answers."),
    "metrics": CommandEntry("nodes.metrics", _NODES, "Print how the nodes and the crawls stand, in the text format of Prometheus."),
    "deploy": CommandEntry("nodes.deploy", _CODE, "Build the project once and upload it to the named nodes at the same time."),
    "deploy-all": CommandEntry("nodes.deploy", _CODE, "Build the project once and upload it to all nodes at the same time."),
    "versions": CommandEntry("nodes.version_list", _CODE, "Show which node has which versions of the project."),
    "spiders": CommandEntry("nodes.version_list", _CODE, "List the spiders of the project on the nodes, and where one is missing."),
    "rollback": CommandEntry("nodes.version_list", _CODE, "Make an earlier version current on all nodes."),
    "prune": CommandEntry("nodes.version_list", _CODE, "Delete old versions of the project from the nodes."),
    "schedule": CommandEntry("jobs.schedule", _JOBS, "Start plain jobs of spiders, each on the node with the least to do."),
    "jobs": CommandEntry("jobs.jobs_table", _JOBS, "List the jobs of all nodes, and what each one really did: a failed job is not a finished one."),
    "logs": CommandEntry("jobs.logs", _JOBS, "Show the logs of jobs on all nodes as one, ordered by time, each line with its node and job."),
    "grep": CommandEntry("jobs.logs", _JOBS, "Search the logs of the jobs on all nodes, side by side; without a name, of all jobs that they list."),
    "stats": CommandEntry("jobs.job_stats", _JOBS, "Add up the stats of Scrapy over jobs: sum, least and most of each."),
    "cancel": CommandEntry("jobs.job_ends", _JOBS, "Cancel jobs, and wait until they are gone. A pending job just leaves its queue."),
    "completion": CommandEntry("main", _HELP, "Print the script with which a shell completes commands, options, nodes, crawls and spiders."),
    "version": CommandEntry("main", _HELP, "Print the version."),
}
# fmt: on


class LazyGroup(TyperGroup):
    """`sdist` itself: knows its commands by the table, and imports the module of the one that is called."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.commands = {
            name: TyperCommand(name, help=entry.summary, rich_help_panel=entry.panel, rich_markup_mode=MARKUP)
            for name, entry in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """Import a command of the table; gives Typer's object for it, which explains its exit codes as well."""
    app = typer.Typer(rich_markup_mode=MARKUP, add_completion=False)
    app.callback()(_several)
    module = importlib.import_module(f".{COMMANDS[name].module}", __package__)
    from .options import asks  # behind it are the project and its store, which `sdist --version` is spared

    found: Any = getattr(module, name.replace("-", "_"))
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(asks(found))
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    _explain_codes(command, name)
    return command


def walk() -> Iterator[tuple[str, Any]]:
    """All commands with their paths, as in `nodes drain`, groups before what is in them; imports every module."""
    for name in COMMANDS:
        command = load(name)
        yield name, command
        for below, one in getattr(command, "commands", {}).items():
            yield f"{name} {below}", one


def _several() -> None:
    """Makes a Typer app with one command a group."""


def _explain_codes(command: Any, path: str) -> None:
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        command.epilog = "\n".join(["Exit codes:", *(f"{code:>3}  {MEANINGS[code]}" for code in CODES.get(path, ()))])
    for name, one in below.items():
        _explain_codes(one, f"{path} {name}")
