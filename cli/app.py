"""The commands of `sdist`, each by its module, and the program of Typer that is built of them.

The rule it keeps: only the module of the command that was typed is imported, and all of them for `sdist --help`.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Optional

import typer

from scrapyd_dist.version import __version__

from .helping import explain
from .speaking import put_ours

DEBUG = "--debug"

#: command -> the module of this package whose register() adds it; in the order of `sdist --help` within a panel
COMMANDS = {
    "demo": "crawls.demo",
    "init": "setup.init",
    "config": "setup.configured",
    "crawl": "crawls.crawl",
    "plan": "crawls.crawl",
    "resume": "crawls.crawl",
    "pause": "crawls.recovering",
    "stop": "jobs.cancelling",
    "retry": "crawls.recovering",
    "batches": "crawls.recovering",
    "misses": "crawls.missed",
    "watch": "crawls.status",
    "status": "crawls.status",
    "wait": "crawls.waiting",
    "crawls": "crawls.crawl",
    "clean": "crawls.clean",
    "report": "crawls.report",
    "trust": "crawls.trusting",
    "throttle": "throttle.commands",
    "frontier": "frontier.commands",
    "consume": "frontier.consume",
    "nodes": "nodes.listing",
    "doctor": "nodes.doctor",
    "deploy": "deploys.deploying",
    "deploy-all": "deploys.deploying",
    "versions": "deploys.versions",
    "spiders": "deploys.versions",
    "rollback": "deploys.undoing",
    "prune": "deploys.undoing",
    "schedule": "jobs.schedule",
    "jobs": "jobs.listing",
    "logs": "jobs.logs",
    "grep": "jobs.grepping",
    "stats": "jobs.statistics",
    "items": "items.commands",
    "cancel": "jobs.cancelling",
    "api": "nodes.raw",
    "metrics": "nodes.metrics",
    "completion": "completion",
    "version": "version",
}


def _print_version(wanted: bool) -> None:
    if wanted:
        put_ours(f"scrapyd-dist {__version__}")
        raise typer.Exit


def top(
    version: Annotated[
        Optional[bool],
        typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True),
    ] = None,
    # It works behind any command, since main() looks for it; here it is only told.
    debug: Annotated[bool, typer.Option(DEBUG, help="Show tracebacks; works behind any command.")] = False,
) -> None:
    """Spread one Scrapy crawl over a fleet of Scrapyd nodes, and bring the items home as one file.

    New here? `sdist demo` shows it all on this machine. In a Scrapy project:
    `sdist init` names the nodes (or `sdist nodes up 3` starts some), `sdist crawl
    SPIDER` crawls with them, `sdist watch` comes back to a crawl that runs.
    """


def program(word: str = "") -> Any:
    """The command line as Typer's object for it: with the commands of one module if `word` is a command, else all."""
    return build([word] if word in COMMANDS else list(COMMANDS))


def build(names: list[str]) -> Any:
    """The same with the commands of the modules that have these."""
    app = typer.Typer(
        name="sdist",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # helping.py writes the help, several times as fast
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(top)
    for module in dict.fromkeys(COMMANDS[name] for name in names):
        importlib.import_module(f".{module}", __package__).register(app)
    command: Any = typer.main.get_command(app)
    # Typer has groups behind single commands.
    command.commands = {name: command.commands[name] for name in COMMANDS if name in command.commands}
    explain(command)
    return command
