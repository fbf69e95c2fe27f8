"""What a crawl can be asked for on the command line, and the settings that say the same.

The rule it keeps: an option that is left out sets nothing, so that settings.py then decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional
from urllib.parse import urlsplit

import typer

from scrapyd_dist.errors import ConfigError

from ..candidates import nodes, placements, spiders

if TYPE_CHECKING:
    pass

_TARGET, _INDEX, _ITEMS = "What goes to the nodes", "The index", "Items"
_BATCHES, _NODES, _SPIDER, _END = "Batches", "Nodes", "The spider", "The end"
_NAMES_OF_FORMATS = ("jsonlines", "json", "csv")

#: field of `CrawlOptions` -> setting, where the value goes over as it is
SETTINGS = {
    "rule": "DISTRIBUTED_TARGET_RULE",
    "callback": "DISTRIBUTED_TARGET_CALLBACKS",
    "index": "DISTRIBUTED_INDEX",
    "pages": "DISTRIBUTED_PAGES",
    "first_page": "DISTRIBUTED_FIRST_PAGE",
    "shards": "DISTRIBUTED_SHARDS",
    "batch_size": "DISTRIBUTED_BATCH_SIZE",
    "batch_max_age": "DISTRIBUTED_BATCH_MAX_AGE",
    "max_attempts": "DISTRIBUTED_MAX_ATTEMPTS",
    "max_failed": "DISTRIBUTED_MAX_FAILED",
    "limit": "DISTRIBUTED_LIMIT",
    "min_items": "DISTRIBUTED_MIN_ITEMS",
    "on_finish": "DISTRIBUTED_ON_FINISH",
    "max_jobs": "DISTRIBUTED_MAX_JOBS",
    "placement": "DISTRIBUTED_PLACEMENT",
    "node": "DISTRIBUTED_NODES",
    "node_timeout": "DISTRIBUTED_NODE_TIMEOUT",
    "fleet_timeout": "DISTRIBUTED_FLEET_TIMEOUT",
    "poll_interval": "DISTRIBUTED_POLL_INTERVAL",
    "feed": "DISTRIBUTED_TARGET_FEED_URL",
    "profile": "DISTRIBUTED_PROFILE",
    "workers": "DISTRIBUTED_WORKERS",
    "fair": "DISTRIBUTED_FAIR",
}


@dataclass(frozen=True, kw_only=True)
class CrawlOrder:
    """A crawl as its producer is told of it."""

    spider: str
    settings: dict[str, Any] = field(default_factory=dict)  #: ours, DISTRIBUTED_…
    spider_settings: dict[str, str] = field(default_factory=dict)  #: of -s
    args: dict[str, str] = field(default_factory=dict)  #: of -a
    version: str | None = None  #: of the code, where it is not to be the working tree's


def _option(panel: str, help_: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=panel, show_default=False, **more)


@dataclass(frozen=True, kw_only=True)
class CrawlOptions:
    """The options that `sdist crawl` and `sdist plan` share; a field is a parameter of the command."""

    spider: Annotated[
        str,
        typer.Argument(
            help="The spider's name, as `scrapy list` shows it.",
            metavar="SPIDER",
            autocompletion=spiders,
            show_default=False,
        ),
    ]
    rule: Annotated[
        Optional[int], _option(_TARGET, "Rule number of a CrawlSpider, from 0: the requests it makes go to the nodes.")
    ] = None
    callback: Annotated[
        Optional[list[str]],
        _option(_TARGET, "Callback: the requests that lead to it go to the nodes. Repeatable.", metavar="NAME"),
    ] = None
    limit: Annotated[
        Optional[int],
        _option(_TARGET, "A trial: hand out the first N target requests, and look for no more.", metavar="N"),
    ] = None
    shards: Annotated[
        Optional[int], _option(_INDEX, "Walk the index from this many start pages at once.", metavar="S")
    ] = None
    index: Annotated[
        Optional[str],
        _option(_INDEX, "Address of an index page, with a place for its number: index_%05d.html.", metavar="TEMPLATE"),
    ] = None
    pages: Annotated[Optional[int], _option(_INDEX, "How many index pages there are.", metavar="P")] = None
    first_page: Annotated[Optional[int], _option(_INDEX, "Number of the first one (0).", metavar="K")] = None
    start_urls: Annotated[
        Optional[Path], _option(_INDEX, "Start from the addresses in this file, one per line.", metavar="FILE")
    ] = None
    add_to: Annotated[
        Optional[list[str]],
        _option(_ITEMS, "Write the items to this new file: .jl, .jsonl, .json, .csv.", "-o", "--output",
                metavar="FILE"),
    ] = None  # fmt: skip
    overwrite: Annotated[
        Optional[list[str]],
        _option(_ITEMS, "The same, and replace a file that is there.", "-O", "--overwrite-output", metavar="FILE"),
    ] = None
    feed: Annotated[
        Optional[str],
        _option(_ITEMS, "Where each job writes its items instead: ftp, s3, gs, file; %(batch)s and the like work.",
                metavar="URL"),
    ] = None  # fmt: skip
    batch_size: Annotated[
        Optional[int],
        _option(_BATCHES, "Requests in a batch; without it, as many as the fleet can use, 1000 at most.", metavar="N"),
    ] = None
    batch_max_age: Annotated[
        Optional[float], _option(_BATCHES, "Send a batch that has waited this long (30).", metavar="SECONDS")
    ] = None
    max_attempts: Annotated[
        Optional[int], _option(_BATCHES, "Give a batch up after this many attempts.", metavar="N")
    ] = None
    max_failed: Annotated[
        Optional[int], _option(_BATCHES, "Failed URLs that still count as success (0).", metavar="N")
    ] = None
    min_items: Annotated[
        Optional[int], _option(_END, "Fewer items than this are a failure: exit code 1.", metavar="N")
    ] = None
    on_finish: Annotated[
        Optional[str],
        _option(_END, "When the crawl has ended: run this command, with the summary on its standard input; or POST the "
                "summary to this http(s) address.", metavar="CMD|URL"),
    ] = None  # fmt: skip
    pull: Annotated[
        Optional[bool],
        _option(_NODES, "Let long-lived workers on the nodes fetch batches from the store, or send each batch to a "
                "node as a job (the default).", "--pull/--push"),
    ] = None  # fmt: skip
    workers: Annotated[
        Optional[int],
        _option(_NODES, "With --pull: most workers at once; without it, one for each process slot.", metavar="N"),
    ] = None
    fair: Annotated[
        Optional[str],
        _option(_BATCHES, "Let sites take turns, so that nobody waits for a slow one: spread, or by-domain (a site "
                "stays with one worker).", metavar="KIND"),
    ] = None  # fmt: skip
    max_jobs: Annotated[Optional[int], _option(_NODES, "Most jobs at once, over all nodes.", metavar="N")] = None
    placement: Annotated[
        Optional[str],
        _option(
            _NODES, "by-capacity (the default), round-robin or least-loaded.", autocompletion=placements, metavar="KIND"
        ),
    ] = None
    node: Annotated[
        Optional[list[str]],
        _option(_NODES, "Use this node only: a target of scrapy.cfg, or HOST:PORT. Repeatable.",
                metavar="NAME|ADDRESS", autocompletion=nodes),
    ] = None  # fmt: skip
    deploy: Annotated[
        Optional[bool],
        _option(_NODES, "Upload this code to nodes that lack it (the default), or never.", "--deploy/--no-deploy"),
    ] = None
    version: Annotated[
        Optional[str],
        _option(_NODES, "Run this version, which was deployed or crawled with from here, in place of the code that is "
                "here; its name, how it begins, or its content hash.", metavar="NAME"),
    ] = None  # fmt: skip
    node_timeout: Annotated[
        Optional[float], _option(_NODES, "Silence after which a node counts as lost.", metavar="SECONDS")
    ] = None
    fleet_timeout: Annotated[
        Optional[float], _option(_NODES, "How long to wait when all nodes are lost.", metavar="SECONDS")
    ] = None
    poll_interval: Annotated[
        Optional[float], _option(_NODES, "Pause between two questions to a node.", metavar="SECONDS")
    ] = None
    arg: Annotated[
        Optional[list[str]], _option(_SPIDER, "Argument of the spider. Repeatable.", "-a", metavar="NAME=VALUE")
    ] = None
    setting: Annotated[
        Optional[list[str]],
        _option(_SPIDER, "Setting of the spider, here and in every job. Repeatable.", "-s", "--set",
                metavar="NAME=VALUE"),
    ] = None  # fmt: skip
    profile: Annotated[
        Optional[str],
        _option(_SPIDER, "fast: each page is cheaper and logs less; none: Scrapy as it is. No result changes.",
                metavar="NAME"),
    ] = None  # fmt: skip

    def order(self, folder: Path) -> CrawlOrder:
        """The same as settings.

        Args:
            folder: what relative files are looked up in.

        Raises:
            ConfigError: an option makes no sense, or a file is there or is missing.
        """
        settings = {name: value for key, name in SETTINGS.items() if (value := getattr(self, key)) not in (None, [])}
        if self.deploy is not None:
            settings["DISTRIBUTED_DEPLOY"] = "if-missing" if self.deploy else "never"
        if self.pull is not None:
            settings["DISTRIBUTED_MODE"] = "pull" if self.pull else "push"
        if self.start_urls is not None:
            settings["DISTRIBUTED_START_URLS_FILE"] = _readable(folder / self.start_urls)
        if self.feed is not None:
            _refuse_password(self.feed)
        outputs = [output_of(folder, text, overwrite=False) for text in self.add_to or ()]
        outputs += [output_of(folder, text, overwrite=True) for text in self.overwrite or ()]
        if outputs:
            settings["DISTRIBUTED_OUTPUTS"] = outputs
        return CrawlOrder(
            spider=self.spider,
            settings=settings,
            spider_settings=pairs("-s", self.setting or ()),
            args=pairs("-a", self.arg or ()),
            version=self.version,
        )


def pairs(option: str, texts: list[str] | tuple[()]) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping; the last one of a name wins.

    Raises:
        ConfigError: one is not of that form.
    """
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError(f"{option} {text!r} is not of the form NAME=VALUE, as in {option} category=books.")
        found[name] = value
    return found


def _readable(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"The file of start addresses (--start-urls) {path} is not there.")
    return str(path.resolve())


def _refuse_password(url: str) -> None:
    try:
        password = urlsplit(url).password
    except ValueError:
        return  # the producer says what is wrong with it
    if password is not None:
        raise ConfigError(
            "The feed URL (--feed) has a password, and everybody on this machine and on the nodes could read it in the "
            "process list. Put DISTRIBUTED_TARGET_FEED_URL into the project's settings.py, which is deployed, and "
            "leave --feed out."
        )


def output_of(folder: Path, text: str, *, overwrite: bool) -> dict[str, Any]:
    """What `-o FILE` or `-O FILE` asks for, as DISTRIBUTED_OUTPUTS has it; behind a colon FILE may name its format.

    Raises:
        ConfigError: the format is not known, or the file is there.
    """
    from scrapyd_dist.items.merging import ItemOutput

    name, _, kind = text.rpartition(":")
    if kind not in _NAMES_OF_FORMATS:
        name, kind = text, ""
    path = folder / name
    ItemOutput.named(path, format=kind or None)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file in it that the items go to.")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already. -O {name} overwrites it; or give -o another name.")
    return {"path": str(path.absolute()), "format": kind or None, "overwrite": overwrite}
