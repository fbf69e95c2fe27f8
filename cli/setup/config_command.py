"""`sdist config`: every option in force, its value, and where that comes from; rule: a secret shows as ***."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scrapyd_dist.settings import outdated

from ..context import Context
from ..node_selection import SETTINGS_TIMEOUT
from ..output import Output, complain, say
from . import config_sources

if TYPE_CHECKING:
    from scrapyd_dist.config import ProjectConfig


#: what begins the one line that counts among all that a project may print while it is loaded
_MARK = "sdist-settings:"
#: in a process of its own: only Scrapy knows how the settings come together, and the project's code runs
_READ = f"""
import json
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.project import get_project_settings
found = get_project_settings()
names = {{value: name for name, value in SETTINGS_PRIORITIES.items()}}
wanted = [name for name in found if name.startswith("DISTRIBUTED_") or name == "BOT_NAME"]
ours = {{name: [found[name], names.get(found.getpriority(name), "")] for name in wanted}}
ours["ADDONS"] = [sorted(map(str, found.getdict("ADDONS"))), ""]
print({_MARK!r} + json.dumps(ours, default=str))
"""


def config(
    *,
    context: Context,
    show_origin: Annotated[
        bool, typer.Option("--show-origin", help="Say of each value where it comes from: file and section, variable.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Also the settings that have their default.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 10 when a setting or a key is misspelt.")] = False,
    output: Output,
) -> None:
    """Show the options in force: the project, its targets, its DISTRIBUTED_ settings.

    They come from scrapy.cfg (the project's, the user's, the machine's), from the
    environment, from ~/.netrc, and from the project's settings. Passwords show as ***.
    What is misspelt is named, with what was probably meant. A spider's custom_settings
    and the options of `sdist crawl` go before all of these.

    Example: sdist config --show-origin
    """
    found = context.project
    settings, problem = settings_of(found)
    files = config_sources.ConfigFiles.of(found.root)
    options = [
        *config_sources.of_project(found, files, settings),
        *config_sources.of_targets(found, files),
        *config_sources.of_settings(found, files, settings),
    ]
    wrong = config_sources.misspelt(files, settings)
    for text in outdated(settings):
        complain(text)
    rows = [{"section": one.section, "name": one.name, "value": one.value, "origin": one.origin} for one in options]
    shown = [one for one in options if every or one.origin != "default"]
    headings = ("", "option", "value", *(("origin",) if show_origin else ()))
    cells = [(one.section, one.name, one.text, *((one.origin,) if show_origin else ())) for one in shown]
    output.table({"options": rows, "misspelt": list(wrong), "problem": problem}, headings, cells)
    if len(shown) < len(options) and not output.as_json:
        say(f"{len(options) - len(shown)} more have their default: sdist config --all shows them.")
    for text in (*wrong, *([problem] if problem else [])):
        complain(text)
    raise typer.Exit(2 if problem else 10 if check and wrong else 0)


def settings_of(found: ProjectConfig) -> tuple[dict[str, list[Any]], str]:
    """The project's settings that begin with DISTRIBUTED_, BOT_NAME and ADDONS: {name: [value, kind of origin]}.

    Returns:
        They, and why they cannot be had; one of the two is empty.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _READ], cwd=found.root, capture_output=True, encoding="utf-8", errors="replace",
            check=False, timeout=SETTINGS_TIMEOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {}, f"The project's settings did not load within {SETTINGS_TIMEOUT} seconds."
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return dict(json.loads(line.removeprefix(_MARK))), ""
    why = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1].rstrip(".")
    return {}, (
        f"The settings module {found.settings_module} cannot be loaded: {why}. What it says is not shown; see "
        "`scrapy settings --get BOT_NAME` for the whole of the error."
    )
