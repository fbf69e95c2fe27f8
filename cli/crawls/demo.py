"""`sdist demo`: the whole of it on one machine, each step as the command that a user would type.

Everything that it starts is stopped before it exits.
"""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, NoReturn

from scrapyd_dist.deploy import local_nodes
from scrapyd_dist.deploy.local_nodes import Leader, stop
from scrapyd_dist.examples.pages import Site

from scrapyd_dist.config import load, state_dir
from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.fleet.live_crawls import runs
from scrapyd_dist.fleet.project_store import maybe_store
from scrapyd_dist.ownership import fault_of_folder
from scrapyd_dist.plurals import counted
from scrapyd_dist.time_spans import describe_span

from ..options import option
from ..output import put, say

#: marks a folder that this command may write into again
MARK = ".sdist-demo"
#: the file that the items go to, in the project
OUTPUT = "items.jl"
#: what works in a project of one's own, on nodes of this machine where none is named
NEXT = "sdist crawl SPIDER --callback parse_item -O items.jl"
#: seconds that what was started gets to end in good order
GRACE = 10.0
#: differences that are named
_SHOWN = 5


def demo(
    items: Annotated[int, option("Properties on the demo site.", min=1, max=1_000_000)] = 3000,
    nodes: Annotated[int, option("Local Scrapyd nodes.", min=1, max=1000)] = 3,
    keep: Annotated[
        bool, option("Leave the site and the nodes running at the end, until Ctrl-C.")
    ] = False,
    folder: Annotated[
        Path, option("Where the demo project is made.", "--dir", metavar="DIR")
    ] = Path("sdist-demo"),
) -> None:
    """Show it all on this machine: a site, nodes, and one crawl.

    It makes a small Scrapy project, serves a property site, starts real nodes,
    deploys, crawls, checks that every item came home once, and stops everything.

    Example: sdist demo --nodes 2
    """
    began = time.monotonic()
    project = make_project(folder)
    for number in (signal.SIGTERM, signal.SIGHUP):  # from here on, there is something to stop
        signal.signal(number, _leave)
    with ExitStack() as stack:
        stack.callback(_say_what_is_left, project)
        site = stack.enter_context(_site(items, project))
        stack.enter_context(_nodes(project, nodes))
        _command(project, "deploy", "--all")
        _command(project, "crawl", "easy", *_crawl_arguments(site))
        took = time.monotonic() - began
        _check_items(project / OUTPUT, items)
        put(
            f"\nThe demo worked: {counted(items, 'item')} in {project / OUTPUT},\n"
            f"exactly those of the site, each once, by {counted(nodes, 'Scrapyd node')} in "
            f"{describe_span(took)} all in all.\n"
            f"In a project of your own, where parse_item is what makes the items:\n  {NEXT}"
        )
        if keep:
            say(
                f"\nThe site {site['url']} and the nodes stay until you press Ctrl-C. Try:\n"
                f"  cd {project} && sdist nodes\n"
                "  sdist crawl easy --pull -a "
                f"start={site['url']}/properties/index_00000.html -o again.jl"
            )
            with suppress(KeyboardInterrupt):
                signal.pause()


def _say_what_is_left(project: Path) -> None:
    """Say that nothing runs any more, and which folder stays."""
    size = 0
    for file in project.rglob("*"):
        if file.is_file() and not file.is_symlink():
            size += file.stat().st_size
    say(
        f"Everything that the demo started is stopped. The folder {project} stays"
        f" ({size / 1e6:,.0f} MB: the project, its nodes and the items). To remove it: rm -r"
        f" {shlex.quote(str(project))}"
    )


def _crawl_arguments(site: Mapping[str, Any]) -> list[str]:
    """Return the options of the demo's crawl; site: its description."""
    start = site["index"].replace("%05d", "00000")
    shards = ["--shards", "20", "--index", site["index"], "--pages", str(site["pages"])]
    return ["-a", f"start={start}", *shards, "--batch-size", "250", "-O", OUTPUT]


def _check_items(path: Path, items: int) -> None:
    """Raise an error where a file does not have exactly the items of a site with so many."""
    with path.open(encoding="utf-8") as file:
        wrong = differences(Site(items=items), map(json.loads, file))
    if wrong:
        raise DistError(
            f"The items in {path} are not those of the site: {'; '.join(wrong)}. Please report "
            "this."
        )


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def make_project(folder: Path) -> Path:
    """Make the demo project in this folder; one that is there from before is brought up to date.

    Gives the absolute path. ConfigError where the folder has something else.
    """
    folder = folder.absolute()
    is_ours = (folder / MARK).exists()
    if folder.exists() and not is_ours and not _is_empty_folder(folder):
        raise ConfigError(
            f"{folder} is there already and is not the demo's. Name another folder: sdist demo "
            "--dir NAME."
        )
    if fault := fault_of_folder(folder):  # the project in it is run
        raise ConfigError(f"{fault} Name another folder: sdist demo --dir NAME.")
    with as_file(files("scrapyd_dist.examples").joinpath("properties_project")) as source:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).write_text(
            "Made by `sdist demo`, which writes into this folder again.\n", encoding="utf-8"
        )
        shutil.copytree(
            source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    if load(folder).targets:
        raise ConfigError(
            "~/.scrapy.cfg or /etc/scrapy.cfg names nodes, and the demo would deploy to them. Run "
            "it where these files are not read, for example: HOME=$(mktemp -d) sdist demo"
        )
    return folder


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


@contextmanager
def _site(items: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Run the demo site and yield its description.

    It ends with its standard input, also if this process is killed.
    """
    options = ["--items", str(items), "--until-eof"]
    # Not here: `-m` looks into the working folder first, and in a checkout of this project that has
    # a scrapyd_dist/ which lacks what a regular install has in it.
    process = subprocess.Popen(
        [sys.executable, "-m", "scrapyd_dist.examples.site", *options],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            line = process.stdout.readline() if process.stdout else b""
            if not line:
                raise DistError("The demo site did not start; its own words are above.")
            site: dict[str, Any] = json.loads(line)
            properties = counted(items, "property", "properties")
            pages = counted(site["pages"], "index page")
            say(f"The site: {site['url']} with {properties} on {pages}")
            yield site
        finally:
            process.terminate()


@contextmanager
def _nodes(project: Path, count: int) -> Iterator[None]:
    """Run local nodes; at the end they are stopped with all that runs for this project."""
    state = state_dir(project)
    _echo(project, "nodes", "up", str(count))
    try:
        for node in local_nodes.start_nodes(state, count):
            say(f"  {node.name}  {node.url}")
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the cleanup must not be interrupted
        _stop_crawls(project)
        local_nodes.stop_nodes(state, grace=GRACE)


def _stop_crawls(project: Path) -> None:
    """Stop the processes of crawls, which outlive the commands that watched them."""
    store = maybe_store(project)
    if not store:
        return
    leaders = []
    with closing(store):
        for crawl in store.crawls():
            if crawl.pid is not None and runs(crawl):
                leader = Leader(pid=crawl.pid, folder=project.resolve())
                leaders.append(leader)
    stop(leaders, grace=GRACE)


def _echo(project: Path, *arguments: str) -> None:
    say(f"\n{project.name}$ {shlex.join(['sdist', *arguments])}")


def _command(project: Path, *arguments: str) -> None:
    """Run one of our commands, as a user would."""
    _echo(project, *arguments)
    # A session of its own, so that Ctrl-C here does not make the command ask about the crawl.
    command = [sys.executable, "-m", "scrapyd_dist", *arguments]
    process = subprocess.Popen(
        command, cwd=project, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code != 0:
        raise SystemExit(code)


def differences(site: Site, rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return how the items differ from the site's, in words; empty when they do not."""
    expected = {str(at): site.item(at) for at in range(site.items)}
    counts: Counter[str] = Counter()
    wrong = []
    for row in rows:
        number = str(row.get("number"))
        counts[number] += 1
        if not _is_item(row, expected.get(number)):
            wrong.append(number)
    missing = [number for number in expected if number not in counts]
    repeated = [number for number, count in counts.items() if count > 1]
    kinds = {
        "missing": missing,
        "more than once": repeated,
        "not as the site has them": wrong,
    }
    return [_difference(kind, numbers) for kind, numbers in kinds.items() if numbers]


def _is_item(row: Mapping[str, Any], item: Mapping[str, Any] | None) -> bool:
    """Return whether a row has what the site's item has; None: the site has no such item."""
    if item is None:
        return False
    return {name: row.get(name) for name in item} == item


def _difference(kind: str, numbers: Sequence[str]) -> str:
    more = ""
    if len(numbers) > _SHOWN:
        more = " …"
    return f"{len(numbers):,} {kind}: {', '.join(numbers[:_SHOWN])}{more}"
