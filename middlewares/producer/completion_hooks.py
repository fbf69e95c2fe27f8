"""What follows when a crawl ends: its number of items is judged, and `DISTRIBUTED_ON_FINISH` is notified."""

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.progress import SCHEMA
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.settings import SettingReader
from scrapyd_dist.version import __version__

from .crawl_repository import CrawlRepository
from .lifecycle import WORDS
from .producer_options import ProducerOptions

#: seconds that the command, or the whole exchange with the address, may take
PATIENCE = 60.0
#: seconds for the connection to the address
CONNECT = 10.0
#: maximum number of earlier crawls to compare with
RUNS = 20
#: minimum number of earlier crawls for a comparison
RUNS_NEEDED = 3
#: items are unusually few below the median minus this many scaled median absolute deviations …
DEVIATIONS = 3.0
_SCALE = 1.4826
#: … and below this fraction of the median, so that a site that never changes raises no alarm over one item
PART = 0.8


def read_on_finish(settings: BaseSettings) -> str:
    """The command to run or the http(s) URL to notify at the end, empty for none; ConfigError if it can be neither."""
    on_finish: str = SettingReader(settings).value("DISTRIBUTED_ON_FINISH") or ""
    scheme, sign, _ = on_finish.strip().partition("://")
    if sign and scheme.isalnum() and not is_address(on_finish):
        raise ConfigError(
            f"--on-finish (DISTRIBUTED_ON_FINISH) takes a command, or an address that begins with http:// or"
            f" https://, and this one begins with {scheme}://."
        )
    if is_address(on_finish):
        shown(on_finish)
    return on_finish


def is_address(on_finish: str) -> bool:
    """Whether it is a URL to notify, not a command to run."""
    return on_finish.strip().lower().startswith(("http://", "https://"))


def shown(address: str) -> str:
    """A URL without path, query and credentials, which are often secret; ConfigError if host or port are wrong."""
    try:
        parts = urlsplit(address.strip())
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    except ValueError:
        host = None
    if not host:
        raise ConfigError("The address of --on-finish (DISTRIBUTED_ON_FINISH) has no host, or a port that is none.")
    return f"{parts.scheme}://{host}/…"


def environment(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables for an --on-finish command, which gets the summary on its standard input."""
    usual = {"crawl": "", "spider": "", "state": "", "exit_code": 0, "items": 0}
    return {f"SDIST_{name.upper()}": str(document.get(name) or value) for name, value in usual.items()}


def too_few(items: int, least: int) -> str:
    """Return a warning if there are fewer items than required, else ""."""
    if items >= least:
        return ""
    return f"The crawl has {items:,} items, and at least {least:,} were asked for (--min-items, DISTRIBUTED_MIN_ITEMS)."


def earlier_items(crawl: str, args: Mapping[str, Any], rows: Iterable[Crawl], spider: str) -> list[int]:
    """Item counts of the last finished crawls of this spider with the same arguments, except this crawl, newest first.

    `rows` are all crawls, newest first.
    """
    like = (
        row
        for row in rows
        if row.id != crawl
        and row.spider == spider
        and row.state is CrawlState.FINISHED
        and dict(row.options.get("args") or {}) == dict(args)
        and not row.summary.get("goal")
        and not any(  # a trial run says nothing of the site
            str((row.options.get(name) or {}).get("DISTRIBUTED_LIMIT") or "0") != "0"
            for name in ("settings", "spider_settings")
        )
    )
    return [int(row.summary["items"]) for row in like if isinstance(row.summary.get("items"), int)][:RUNS]


def unusual(items: int, earlier: Sequence[int]) -> str:
    """Return a warning if there are unusually few items; "" if not, or with too few comparable earlier crawls."""
    if len(earlier) < RUNS_NEEDED:
        return ""
    usual = median(earlier)
    spread = median(abs(one - usual) for one in earlier) * _SCALE
    if items >= usual - DEVIATIONS * spread or items >= PART * usual:
        return ""
    return (
        f"{items:,} items are unusually few: the median of the last {len(earlier)} crawls of this spider is"
        f" {usual:,.0f}."
    )


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
    options: ProducerOptions, repository: CrawlRepository, spec: JobRequest, items: int
) -> tuple[list[str], str]:
    """Warnings of an unusual number of items, and why it is too small, if it is."""
    if options.limit:  # it says nothing of the site
        return [], too_few(items, options.min_items)
    crawls = await repository.thread(repository.thread.store.crawls)
    warning = unusual(items, earlier_items(repository.id, spec.args, crawls, spec.spider))
    return [warning] if warning else [], too_few(items, options.min_items)


def tell(on_finish: str, document: Mapping[str, Any], *, patience: float = PATIENCE) -> str:
    """Run the command, or post the summary to the address, if there is one; returns what went wrong, if anything did.

    Blocking; never raises, and gives up after `patience` seconds.
    """
    if not on_finish:
        return ""
    data = json.dumps(document).encode()
    try:
        if is_address(on_finish):
            return _post(on_finish.strip(), data, patience)
        return _run(on_finish, data, environment(document), patience)
    except Exception as error:  # noqa: BLE001 - of a crawl that has ended nothing may go wrong any more
        return f"The end of the crawl was not reported (DISTRIBUTED_ON_FINISH): {type(error).__name__}."


def _run(command: str, data: bytes, variables: Mapping[str, str], patience: float) -> str:
    what = "The command to be run at the end (--on-finish)"
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
        given.write(data)
        given.seek(0)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=given, stdout=output, stderr=subprocess.STDOUT,
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
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * WORDS))
        lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
        last_words = f": {lines[-1][:WORDS].rstrip('.')}" if lines else ""
        return f"{what} ended with code {code}{last_words}."


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what urllib3 logs of this exchange out of the crawl's log: it names the whole path."""
    thread, logger = threading.get_ident(), logging.getLogger("urllib3.connectionpool")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

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
