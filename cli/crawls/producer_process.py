"""Handle the producer's process from outside: its start, whether it lives, and its stop.

A crawl is in the store before its process is started, so that none runs unknown.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from scrapyd_dist.deploy.kept_eggs import all_eggs, choose

from scrapyd_dist.batches import Crawl, CrawlState, check_crawl_name, crawl_name
from scrapyd_dist.config import load, state_dir
from scrapyd_dist.errors import ConfigError, NameTaken, NoCrawl, NothingMatched
from scrapyd_dist.fleet.crawl_files import LOG, crawl_folder
from scrapyd_dist.fleet.live_crawls import is_here, lives, runs
from scrapyd_dist.fleet.project_store import find_store_address
from scrapyd_dist.frontier.intake import has_strategy
from scrapyd_dist.near_names import ask_about, did_you_mean
from scrapyd_dist.pidfile import note_pid, noted_pid
from scrapyd_dist.project_names import project_name, quick_project
from scrapyd_dist.python_process import command_of_module
from scrapyd_dist.scrapyd.jobs import check_spider_name
from scrapyd_dist.scrapyd.versions import hash_in, sanitised
from scrapyd_dist.store import Store
from scrapyd_dist.store.address import VARIABLE

from .. import producer_standby
from ..options import nodes
from .crawl_options import CrawlOrder

#: lines of the producer's log in an error message
_LOG_LINES = 12
#: where an error begins in the log
_ERROR = re.compile(r"\b(?:ERROR|CRITICAL): |^Traceback ")


class KeptCode(NamedTuple):
    """A version, and where its egg is."""

    version: str
    egg: Path | None = None  #: None: the working tree may have that code; the producer finds out


def kept_code(root: Path, wanted: str | None) -> KeptCode | None:
    """Return the version that is meant, None for None.

    NothingMatched if none that is kept is called so, or several are.
    """
    if wanted is None:
        return None
    config = load(root)
    state = state_dir(root)
    name = quick_project(config) or project_name(config, (), None)
    try:
        saved = choose(all_eggs(state, name, *config.project_names), wanted, None, folder=state)
    except NothingMatched:
        if hash_in(sanitised(wanted)) is None:
            raise
        return KeptCode(version=sanitised(wanted))
    return KeptCode(version=saved.version, egg=saved.path)


def find_crawl(store: Store, name: str) -> Crawl:
    """Return the crawl or frontier of this name; NoCrawl says what was probably meant."""
    try:
        return store.crawl(name)
    except NoCrawl as error:
        question = did_you_mean(name, [crawl.id for crawl in store.crawls()])
        if name in dict(nodes()):
            question = ask_about(f"`sdist nodes --node {name}`")
        raise NoCrawl(
            f"{error}{question} `sdist crawls` lists those there are, and `sdist jobs` jobs."
        ) from None


def crawl_or_latest(store: Store, name: str | None) -> Crawl:
    """Return the crawl or frontier of this name; without one the newest crawl."""
    if name is not None:
        return find_crawl(store, name)
    for crawl in store.crawls():
        if crawl.kind != "frontier":
            return crawl
    raise NothingMatched("There are no crawls yet. `sdist crawl SPIDER` starts one.")


def crawl_or_running(store: Store, name: str | None) -> Crawl:
    """Return the crawl or frontier of this name; without one the only one that runs.

    Raises:
        NothingMatched: none runs.
        ConfigError: several do.
    """
    if name is not None:
        return find_crawl(store, name)
    running = [crawl for crawl in store.crawls() if runs(crawl)]
    if not running:
        raise NothingMatched("No crawl runs. `sdist crawls` lists those that have ended.")
    if len(running) > 1:
        names = ", ".join(crawl.id for crawl in running)
        raise ConfigError(f"{len(running)} crawls run: name one of {names}.")
    return running[0]


def begin(
    root: Path, store: Store, order: CrawlOrder, name: str | None, kept: KeptCode | None = None
) -> tuple[Crawl, subprocess.Popen[bytes]]:
    """Write the crawl down and start its process.

    name: None = it gets one; kept: the version that it is to run, where that is not the working
    tree's code.
    """
    now = time.time()
    check_spider_name(order.spider)
    if name is not None:
        check_crawl_name(name)
    options = asdict(order)
    del options["spider"], options["version"]
    if kept is not None:
        options["version"] = kept.version
    options["cwd"] = str(root)
    crawl = _add_crawl(root, store, order.spider, name, now, options)
    if kept is not None and kept.egg is not None:
        folder = crawl_folder(root, crawl.id)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(kept.egg, folder)
    return crawl, spawn(root, store, crawl.id)


def _add_crawl(
    root: Path, store: Store, spider: str, name: str | None, now: float, options: dict[str, Any]
) -> Crawl:
    """Write a crawl down, under this name or one that is free; ConfigError if the name is not.

    One that was refused makes way, where it is kept only because its workers ask for it: those find
    the new crawl, which does not list them, and end without a request.
    """
    began = datetime.fromtimestamp(now, timezone.utc)
    while True:
        taken = {crawl.id for crawl in store.crawls()}
        free = name or crawl_name(spider, began, taken)
        crawl = Crawl(id=free, project="", spider=spider, created=now, options=options)
        try:
            store.add_crawl(crawl)
        except NameTaken:
            if name is None:
                continue  # by a crawl that began in the same second
            namesake = store.crawl(name)
            if not _is_told_refusal(root, namesake):
                raise ConfigError(_why_taken(namesake)) from None
            _forget(root, store, name)
            continue
        return crawl


def forget_refused(root: Path, store: Store, name: str) -> None:
    """Remove a refused crawl, whose reason was shown.

    Where that is an internal error or names the log, the crawl is kept. So it is where workers were
    posted before it was refused, since they ask the store for it, until another takes its name.
    """
    _, last_worker = store.workers(name)
    if _is_told_refusal(root, store.crawl(name)) and not last_worker:
        _forget(root, store, name)


def _is_told_refusal(root: Path, crawl: Crawl) -> bool:
    """Tell whether a crawl was refused, and its message says all that there is to know."""
    log = str(crawl_folder(root, crawl.id) / LOG)
    return crawl.state is CrawlState.REFUSED and crawl.exit_code != 1 and log not in crawl.message


def _forget(root: Path, store: Store, name: str) -> None:
    store.forget(name)
    shutil.rmtree(crawl_folder(root, name), ignore_errors=True)


def begin_again(
    root: Path, store: Store, name: str, *, finished: bool = False, new_code: bool = False
) -> tuple[Crawl, subprocess.Popen[bytes]]:
    """Start the process of a crawl again that was stopped or refused, or whose process died.

    What still runs is refused. finished: it may be one that is finished, what it gave up waits
    again; new_code: it takes the working tree's code,
    in place of that which it began with.
    """
    crawl = store.own_crawl(name)
    check_is_crawl(crawl)
    if crawl.state is CrawlState.FINISHED and not finished:
        raise ConfigError(
            f"The crawl {name} is finished; there is nothing to resume. `sdist status {name}` "
            "sums it up."
        )
    if runs(crawl):
        raise ConfigError(
            f"The crawl {name} runs (process {crawl.pid}). Watch it with `sdist watch {name}`."
        )
    if crawl.version is not None and not is_here(crawl) and not crawl_folder(root, name).is_dir():
        raise ConfigError(
            f"The crawl {name} ran on {crawl.host}, and what it has fetched is there: resume it on "
            f"that machine, or bring its folder {crawl_folder(root, name)} here."
        )
    if new_code or crawl.options.get("new_code"):
        store.update_crawl(name, options={**crawl.options, "new_code": new_code})
    store.update_crawl(
        name, state=CrawlState.STARTING, exit_code=None, ended=None, message="", wanted=""
    )
    return crawl, spawn(root, store, name)


def options_for_rewrite(row: Crawl) -> dict[str, Any]:
    """Return the crawl's options, with outputs that may be written a second time.

    Files that are added to remember what this crawl has added (`items.added_items`). Nothing can be
    added to a JSON list, so that this crawl has made it.
    """
    from scrapyd_dist.items.merging import is_elsewhere, is_list

    settings = dict(row.options["settings"])
    outputs = []
    for output in settings.get("DISTRIBUTED_OUTPUTS") or []:
        path = output["path"]
        if is_elsewhere(path) or is_list(path, output.get("format")):
            output = {**output, "overwrite": True}  # noqa: PLW2901 - as it is kept
        outputs.append(output)
    return {**row.options, "settings": {**settings, "DISTRIBUTED_OUTPUTS": outputs}}


def _why_taken(row: Crawl) -> str:
    if row.kind == "frontier":
        return (
            f"There is a frontier {row.id} already, and crawls and frontiers share names: choose "
            "another."
        )
    if row.state is CrawlState.FINISHED:
        return (
            f"There is a crawl {row.id} already, and it is finished: choose another name, or "
            f"remove that crawl with all that is kept of it: sdist crawls clean {row.id}"
        )
    return (
        f"There is a crawl {row.id} already: go on with it by `sdist resume {row.id}`, or name "
        "another."
    )


def check_is_crawl(row: Crawl) -> None:
    """Refuse a frontier, which has no process of its own that could go on."""
    if has_strategy(row):
        raise ConfigError(
            f"{row.id} is a crawling strategy's. The command that started it goes on with it: "
            f"sdist strategy run MODULE:CLASS --name {row.id}; `sdist strategy resume {row.id}` "
            "ends a pause."
        )
    if row.kind == "frontier":
        raise ConfigError(
            f"{row.id} is a frontier, and has no run of its own to go on with. Its workers are "
            f"started by `sdist frontier consume SPIDER {row.id}`; its dead batches wait again by "
            f"`sdist frontier requeue {row.id}`."
        )


def spawn(root: Path, store: Store, crawl: str) -> subprocess.Popen[bytes]:
    """Start the producer's process in a session of its own: Ctrl-C here does not reach it."""
    folder = crawl_folder(root, crawl)
    folder.mkdir(parents=True, exist_ok=True)
    # Not as an argument, which every user can read: it may hold a password.
    environment = {**os.environ, VARIABLE: find_store_address(root)}
    log = folder / LOG

    def claim(pid: int) -> None:
        """Write down which process runs the crawl."""
        note_pid(folder, pid)
        store.update_crawl(crawl, pid=pid, beat=time.time())

    process = producer_standby.call(crawl, root=root, log=log, environment=environment, claim=claim)
    if process is None:
        process = _start(root, crawl, log, environment)
        claim(process.pid)
    return process


def _start(
    root: Path, crawl: str, log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            command_of_module("scrapyd_dist.middlewares.producer.process", crawl),
            cwd=root,
            env=environment,
            stdin=None if producer_standby.has_input() else subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def interrupt(root: Path, crawl: Crawl) -> None:
    """Make the producer stop gracefully: it sends the captured requests and says how to resume."""
    noted = noted_pid(crawl_folder(root, crawl.id))
    if crawl.pid is not None and crawl.pid == noted and is_here(crawl) and lives(crawl):
        with suppress(ProcessLookupError):
            os.kill(crawl.pid, signal.SIGINT)


def last_words(root: Path, crawl: str) -> str:
    """Return the last error of the producer's log, else its end; a few lines at most."""
    try:
        text = (crawl_folder(root, crawl) / LOG).read_text("utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.strip()]
    for at in reversed(range(len(lines))):
        if _ERROR.search(lines[at]):
            return "\n".join(lines[at : at + _LOG_LINES])
    return "\n".join(lines[-_LOG_LINES:])
