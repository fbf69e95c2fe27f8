"""What follows when a crawl ends: its number of items is judged, and `DISTRIBUTED_ON_FINISH` is told."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.progress.completion_policy import (
    CompletionPolicy,
    earlier_items,
    environment,
    is_address,
    shown,
    too_few,
    unusual,
)
from scrapyd_dist.progress.summary import SCHEMA
from scrapyd_dist.settings import SettingReader
from scrapyd_dist.version import __version__

from .lifecycle import WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO

    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from scrapyd_dist.errors import DistError
    from scrapyd_dist.scheduling.job_request import JobRequest

    from .crawl_repository import CrawlRepository

#: seconds that the command, or the whole exchange with the address, may take
PATIENCE = 60.0


#: seconds for the connection to the address
CONNECT = 10.0


def read_wishes(settings: BaseSettings) -> CompletionPolicy:
    """What these settings ask of the end.

    Raises:
        ConfigError: a value is not of its kind.
    """
    read = SettingReader(settings).value
    return CompletionPolicy(on_finish=read("DISTRIBUTED_ON_FINISH") or "", min_items=read("DISTRIBUTED_MIN_ITEMS"))


def refusal(crawl: str | None, spider: Spider | None, error: DistError) -> dict[str, Any]:
    """The summary of a crawl that was refused before there was anything to sum up."""
    return {
        "schema": SCHEMA,
        "crawl": crawl or "",
        "spider": spider.name if spider else "",
        "state": CrawlState.REFUSED.value,
        "exit_code": error.exit_code,
        "message": str(error),
        "items": 0,
    }


async def judge_items(
    policy: CompletionPolicy, repository: CrawlRepository, spec: JobRequest, items: int, *, limited: bool
) -> tuple[list[str], str]:
    """What is to be said of the number of items: warnings, and why they are fewer than were asked for."""
    if limited:  # it says nothing of the site
        return [], too_few(items, policy.min_items)
    earlier = earlier_items(repository.id, spec.args, await repository.all_crawls(), spec.spider)
    said = unusual(items, earlier)
    return [said] if said else [], too_few(items, policy.min_items)


async def tell_of_end(policy: CompletionPolicy, document: Mapping[str, Any]) -> list[str]:
    """Tell whom the person named; gives what went wrong with it."""
    if not policy.on_finish:
        return []
    work = partial(tell, policy.on_finish, document)
    wrong = await asyncio.get_running_loop().run_in_executor(None, work)
    return [wrong] if wrong else []


def tell(on_finish: str, document: Mapping[str, Any], *, patience: float = PATIENCE) -> str:
    """Run the command, or post the summary to the address. Blocking; never raises.

    Args:
        on_finish: one of the two.
        document: the summary of the crawl that has ended.
        patience: seconds until it is given up.

    Returns:
        What went wrong, in a sentence; empty where nothing did.
    """
    data = json.dumps(document).encode()
    try:
        if is_address(on_finish):
            return _post(on_finish.strip(), data, patience)
        return _run(on_finish, data, environment(document), patience)
    except Exception as error:  # noqa: BLE001 - of a crawl that has ended nothing may go wrong any more
        return f"Nobody was told of the end of the crawl (DISTRIBUTED_ON_FINISH): {type(error).__name__}."


def _run(command: str, data: bytes, variables: Mapping[str, str], patience: float) -> str:
    what = "The command to be run at the end (--on-finish)"
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
        given.write(data)
        given.seek(0)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=given, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"{what} was killed after {patience:g} seconds."
        if not code:
            return ""
        return f"{what} ended with code {code}{_last_words(said)}."


def _last_words(said: IO[bytes]) -> str:
    """The last line, ready to be put behind a sentence."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - 4 * WORDS))
    lines = [line.strip() for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f": {lines[-1][:WORDS].rstrip('.')}" if lines else ""


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what urllib3 logs of this exchange out of the crawl's log: it names the whole path."""
    thread, logger = threading.get_ident(), logging.getLogger("urllib3.connectionpool")

    def is_of_others(repository: logging.LogRecord) -> bool:
        return repository.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


def _post(address: str, data: bytes, patience: float) -> str:
    import requests

    headers = {"Content-Type": "application/json", "User-Agent": f"scrapyd-dist/{__version__}"}
    where = f"{shown(address)} could not be told of the end of the crawl (--on-finish)"
    try:
        with (
            _unlogged(),
            requests.post(
                address, data=data, headers=headers, timeout=(CONNECT, patience), allow_redirects=False, stream=True
            ) as answer,
        ):
            # What it says is not read: its code tells all, and a body might never end.
            return "" if answer.ok and not answer.is_redirect else f"{where}: it answered {answer.status_code}."
    except requests.Timeout:
        return f"{where}: it did not answer in time."
    except requests.RequestException as error:  # whose text has the address in it
        return f"{where}: {type(error).__name__}."
