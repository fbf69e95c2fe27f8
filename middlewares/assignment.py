"""Tells which role a Scrapy process has by its settings, and what a job on a node is to do.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings

from scrapyd_dist.batches import job_id, worker_id
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, WorkerRequest
from scrapyd_dist.keys import EGG_FILE, SealError, unseal
from scrapyd_dist.payload import START_URLS
from scrapyd_dist.settings import SettingReader

#: scrapy commands whose crawls are never spread: they look at one page, or run contracts
LOCAL_COMMANDS = frozenset(
    {"shell", "fetch", "view", "parse", "check", "bench", "list", "genspider", "settings"}
)
#: the setting of a process that only fills this frontier
FRONTIER = "DISTRIBUTED_FRONTIER"
#: the setting that names the crawling strategy that a worker works for
STRATEGY = "DISTRIBUTED_STRATEGY"
#: the setting with the assignment of a job that is sent a batch
JOB = "DISTRIBUTED_JOB"
#: the setting with the assignment of a job that leases its batches
PULL = "DISTRIBUTED_PULL"
#: the setting of a process that only tries so many pages of each kind
PROBE = "SCRAPYD_DIST_PROBE"
#: the setting of a process that `sdist` has started for a new crawl: what is begun for it may be
#: begun before Scrapy has made the engine
EARLY = "SCRAPYD_DIST_EARLY"
#: the setting that says why this job's egg could not be unpacked; the egg's boot module sets it
ZIPPED = "SCRAPYD_DIST_ZIPPED"


def is_worker(settings: BaseSettings) -> bool:
    """Tell whether this process was given a batch, or a store to lease batches from.

    It crawls those and nothing else.
    """
    return settings.get(START_URLS) is not None or bool(settings.get(PULL))


def is_producer(settings: BaseSettings) -> bool:
    """Tell whether this crawl is spread, as one is that is no worker.

    Scrapy's looks at a page are not spread.
    """
    return not is_worker(settings) and is_enabled(settings) and not looks_only()


def is_enabled(settings: BaseSettings) -> bool:
    """Tell whether the settings let a crawl be spread."""
    try:
        return bool(SettingReader(settings).value("DISTRIBUTED_ENABLED"))
    except ConfigError:
        return True  # the producer refuses it, in words


def follows_strategy(settings: BaseSettings) -> bool:
    """Tell whether the workers of this crawl work for a crawling strategy."""
    return bool(settings.get(STRATEGY))


def is_filler(settings: BaseSettings) -> bool:
    """Tell whether this is a producer that only fills a frontier, without any nodes."""
    return is_producer(settings) and bool(settings.get(FRONTIER))


def is_job() -> bool:
    """Tell whether Scrapyd has started this process: it names the job in the arguments."""
    return any(word.startswith("_job=") for word in sys.orig_argv)


def looks_only() -> bool:
    """Tell whether this is one of Scrapy's looks at a page."""
    program = Path(sys.argv[0] or "").name
    if program not in {"scrapy", "scrapy.exe", "__main__.py", "cmdline.py", "runner.py"}:
        return False
    return _scrapy_command() in LOCAL_COMMANDS


def _scrapy_command() -> str:
    """Return the command's name, "" if there is none.

    Scrapy takes it out of `sys.argv`; what the process was started with still has it.
    """
    started = sys.orig_argv[-len(sys.argv) :]
    at = _index_of_word(started)
    if started[:at] + started[at + 1 :] == sys.argv[1:]:
        return started[at]
    left = [*sys.argv[1:], ""]
    return left[_index_of_word(left)]


def _index_of_word(arguments: list[str]) -> int:
    """Return the index of the first argument that is no option; 0 if there is none."""
    for index, text in enumerate(arguments):
        if not text.startswith("-"):
            return index
    return 0


@cache
def egg_key() -> bytes | None:
    """Return the key that travelled in this egg, if this code came from one.

    It is kept, as finding it reads the egg's whole list of files.
    """
    try:
        return files("scrapyd_dist").joinpath(EGG_FILE).read_bytes().strip() or None
    except (OSError, KeyError):  # a zip says KeyError
        return None


@dataclass(frozen=True, kw_only=True)
class Assignment(WorkerRequest):
    """Holds what a job on a node is to do, which comes as JSON.

    It is sent a batch (`DISTRIBUTED_JOB`), or leases its batches (`DISTRIBUTED_PULL`). Of limits, 0
    is none. The scheduler may be newer than this code, which a crawl keeps to its end: names that
    are not known here are left out.
    """

    crawl: str
    home: str = ""  #: the crawl's folder of files in this node's logs
    version: str = ""
    collected: Sequence[str] = ()  #: folders of other crawls, which may go
    start_by: float = 0.0  #: seconds since the epoch after which it must not start
    lease: float = 0.0  #: seconds for which a batch is this job's without a word from it
    store: str = ""  #: the address of the store, where that has no password
    store_sealed: str = ""  #: the same, encrypted
    foreign: bool = False  #: the crawl is another project's
    key_sealed: str = ""  #: the key of such a crawl, sealed for this code
    #: of the whole crawl, as `Goals.limits`
    goals: Mapping[str, float] = field(default_factory=dict)
    typed: bool = False  #: items keep their classes, and values that JSON lacks
    #: what was known of the throttle's rules when this job was sent, as `KnownRules.document`
    rules: Mapping[str, Any] = field(default_factory=dict)

    # a job that is sent a batch
    batch: int = 0
    attempt: int = 0
    feed: bool = False  #: items go to the project's feed URL instead of the log folder
    #: of the goals, where the store is out of reach
    allowance: Mapping[str, float] = field(default_factory=dict)
    #: in words, the arguments that this run of the whole spider was given; empty for a batch of
    #: requests
    row: str = ""

    # a job that leases its batches
    leases: bool = False
    worker: int = 0
    node: str = ""  #: the node's name
    url: str = ""  #: the node's base address, without secrets
    slots: Sequence[str] = ()  #: none: all but those of other spiders
    #: only say who it is: the crawl is another project's, and does not know this code yet
    introduce: bool = False
    #: it was posted before its crawl has begun, which may be refused
    early: bool = False
    needs_client: bool = False  #: the crawl's store needs a client, such as that of Redis
    client: str = ""  #: the package of that client; empty for that of Redis

    @property
    def name(self) -> str:
        """Return the job's id, which names its files and holds its leases."""
        home = self.home or self.crawl
        if self.leases:
            return worker_id(home, self.worker)
        return job_id(home, self.batch, self.attempt)

    @property
    def other_slot(self) -> str:
        """Return the slot of work for another spider that it was started for.

        It is empty if the job is for the crawl's own spider.
        """
        for slot in self.slots:
            if slot.startswith(OTHER_SPIDER):
                return slot
        return ""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Assignment | None:
        """Read what the settings of a worker say.

        None for a process that is no worker, and when the batch was typed by hand, as in the book.
        """
        text = settings.get(PULL) or settings.get(JOB)
        if not text or not is_worker(settings):
            return None
        known = {known_field.name for known_field in fields(cls)}
        given = {name: value for name, value in json.loads(text).items() if name in known}
        given["leases"] = bool(settings.get(PULL))
        return cls(**given)

    def crawl_key(self) -> bytes | None:
        """Return the crawl's key: this egg's own or, in another project's crawl, the sealed one.

        Raises:
            SealError: it was sealed for other code than this.
        """
        own = egg_key()
        if not self.foreign:
            return own
        if not self.key_sealed:
            return None
        if own is None:
            raise SealError("this code carries no key; deploy it with sdist")
        return unseal(self.key_sealed, own)
