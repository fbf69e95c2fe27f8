"""What a crawl can be asked for on the command line, and the settings that say the same.

The rule it keeps: an option that is left out sets nothing, so that settings.py then decides.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.config import state_dir
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.open_project import NODES
from scrapyd_dist.fleet.project_store import SETTING
from scrapyd_dist.items.sink import REVEALED, FolderSink, open_sink, password_in
from scrapyd_dist.settings import PREFIX, SETTINGS, check_settings, settings_of_options
from scrapyd_dist.store.address import VARIABLE

from ..context import Context
from ..options import NewLabels, SpiderName, checked_labels, nodes, option, span
from ..output import say
from ..setting_options import RegisteredOptions, as_sentence_start, setting_option

#: the panels of options in the help
_ITEMS = "Items and the end"
_SPIDER = "The spider"
_GOALS = "Goals for the whole crawl"
#: what stands for standard output among the files of -o and -O
STDOUT = "-"
_NAMES_OF_FORMATS = ("jsonlines", "json", "csv")
_option = partial(option, show_default=False)


@dataclass(frozen=True, kw_only=True)
class CrawlOrder:
    """A crawl as its producer is told of it."""

    spider: str
    settings: dict[str, Any] = field(default_factory=dict)  #: ours, DISTRIBUTED_…
    spider_settings: dict[str, str] = field(default_factory=dict)  #: of -s
    args: dict[str, str] = field(default_factory=dict)  #: of -a
    version: str | None = None  #: of the code, where it is not to be the working tree's


def _limit(name: str) -> Any:
    """Return the option with a span of time that gives this setting its value."""
    row = SETTINGS[PREFIX + name]
    text = f"{as_sentence_start(row.plain_help)}."
    return span(row.option, text, zero=True, panel="Nodes", show_default=False)


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """Options of every command that starts jobs; a field is a parameter of the command."""

    job_timeout: Annotated[float | None, _limit("JOB_TIMEOUT")] = None
    stall_timeout: Annotated[float | None, _limit("STALL_TIMEOUT")] = None


@dataclass(frozen=True, kw_only=True)
class SpiderOptions(JobLimits):
    """Options of every command that runs a spider on the nodes; a field is a parameter of it."""

    arg: Annotated[
        list[str] | None,
        _option("Argument of the spider. Repeatable.", "-a", panel=_SPIDER, metavar="NAME=VALUE"),
    ] = None
    setting: Annotated[
        list[str] | None,
        _option(
            "Setting of the spider, here and in every job. Repeatable.",
            "-s",
            "--set",
            panel=_SPIDER,
            metavar="NAME=VALUE",
        ),
    ] = None
    add_to: Annotated[
        list[str] | None,
        _option(
            "At the end, add the items to this file or address, in any format of the project; - "
            "is standard output.",
            "-o",
            "--output",
            panel=_ITEMS,
            metavar="FILE|URI",
        ),
    ] = None
    overwrite: Annotated[
        list[str] | None,
        _option(
            "The same as -o, but replace a file that is there.",
            "-O",
            "--overwrite-output",
            panel=_ITEMS,
            metavar="FILE|URI",
        ),
    ] = None
    deliver: Annotated[str | None, setting_option("DELIVER", metavar="DIR|URL")] = None
    on_finish: Annotated[str | None, setting_option("ON_FINISH", metavar="CMD|URL")] = None
    node: Annotated[
        list[str] | None,
        _option(
            "Only these nodes: names, globs as in 'eu-*', HOST:PORT, file:PATH or cmd:COMMAND; "
            "repeatable.",
            "--node",
            "-t",
            panel="Nodes",
            metavar="NAME|ADDRESS",
            autocompletion=nodes,
            envvar=NODES,
            show_envvar=False,
        ),
    ] = None

    def outputs(self, folder: Path) -> list[dict[str, Any]]:
        """Return the files that the items go to, as DISTRIBUTED_OUTPUTS has them.

        folder: of relative paths.
        """
        return outputs_of(folder, self.add_to, self.overwrite)

    def delivery(self, folder: Path) -> dict[str, str]:
        """Return the setting of --deliver, if it is given; folder: of relative paths."""
        if not self.deliver:
            return {}
        if password_in(self.deliver):
            raise ConfigError(REVEALED)
        sink = open_sink(self.deliver, folder)  # an address that cannot be one is refused here
        return {"DISTRIBUTED_DELIVER": sink.shown if isinstance(sink, FolderSink) else self.deliver}


@dataclass(frozen=True, kw_only=True)
class GoalOptions:
    """Goals for the whole crawl; a field is a parameter of the command."""

    max_items: Annotated[int | None, setting_option("GOAL_ITEMS", metavar="N")] = None
    max_pages: Annotated[int | None, setting_option("GOAL_PAGES", metavar="N")] = None
    max_requests: Annotated[int | None, setting_option("GOAL_REQUESTS", metavar="N")] = None
    max_errors: Annotated[int | None, setting_option("GOAL_ERRORS", metavar="N")] = None
    max_time: Annotated[
        float | None,
        span(
            "--max-time",
            "End the crawl after this time (90, 30m, 2h); sdist resume counts anew.",
            zero=True,
            panel=_GOALS,
            show_default=False,
        ),
    ] = None
    max_depth: Annotated[int | None, setting_option("GOAL_DEPTH", metavar="N")] = None

    def goals(self) -> dict[str, Any]:
        """Return those that are given, as settings."""
        given = settings_of_options(self)
        return {name: given[name] for name in given if name.startswith(f"{PREFIX}GOAL_")}


@dataclass(frozen=True, kw_only=True)
class CrawlOptions(GoalOptions, SpiderOptions):
    """The options that `sdist crawl` and `sdist plan` share; a field is a parameter of them."""

    spider: SpiderName
    #: by their settings
    registered: Annotated[Mapping[str, Any], RegisteredOptions(without=("DISTRIBUTED_CRAWL",))] = (
        field(default_factory=dict)
    )
    start_urls: Annotated[Path | None, setting_option("START_URLS_FILE", metavar="FILE")] = None
    feed: Annotated[str | None, setting_option("TARGET_FEED_URL", metavar="URL")] = None
    label: NewLabels = None
    pull: Annotated[bool | None, setting_option("MODE", "--pull/--push")] = None
    deploy: Annotated[
        bool | None,
        _option(
            "Upload this code to nodes that lack it (the default), or never.",
            "--deploy/--no-deploy",
            panel="Nodes",
        ),
    ] = None
    version: Annotated[
        str | None,
        _option(
            "Run this version, which was deployed or crawled with from here, in place of the code "
            "that is here; its name, how it begins, or its content hash.",
            panel="Nodes",
            metavar="NAME",
        ),
    ] = None

    def order(self, folder: Path) -> CrawlOrder:
        """Return the same as settings; folder: what relative files are looked up in."""
        settings = {**self.registered, **settings_of_options(self), **self.delivery(folder)}
        checked_labels(self.label)
        if self.deploy is not None:
            settings["DISTRIBUTED_DEPLOY"] = "if-missing" if self.deploy else "never"
        if self.pull is not None:
            settings["DISTRIBUTED_MODE"] = "pull" if self.pull else "push"
        if self.start_urls is not None:
            path = folder / self.start_urls
            if not path.is_file():
                raise ConfigError(
                    f"The file of start addresses (--start-urls) {path} is not there."
                )
            settings["DISTRIBUTED_START_URLS_FILE"] = str(path.resolve())
        if self.feed is not None and password_in(self.feed):
            raise ConfigError(
                "The feed URL (--feed) has a password, and every user of this machine and of the "
                "nodes could read it in the process list. Put DISTRIBUTED_TARGET_FEED_URL into the "
                "project's settings.py, which is deployed, and leave --feed out."
            )
        if outputs := self.outputs(folder):
            settings["DISTRIBUTED_OUTPUTS"] = outputs
        return CrawlOrder(
            spider=self.spider,
            settings=settings,
            spider_settings=_without_options(pairs("-s", self.setting), settings),
            args=pairs("-a", self.arg),
            version=self.version,
        )


def _without_options(given: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of `-s` that no option says: an option goes before them.

    Those are judged by the crawl's process, which tells of a refusal; ConfigError for a wrong value
    of the others.
    """
    left = {}
    beaten = {}
    for name, value in given.items():
        if name in options:
            beaten[name] = value
        else:
            left[name] = value
    check_settings(beaten)
    return left


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a mapping; the last one of a name wins."""
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError(
                f"{option} {text!r} is not of the form NAME=VALUE, as in {option} category=books."
            )
        found[name] = value
    return found


def settings_in(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the settings of `-s`; ConfigError for one of ours with a wrong value."""
    found = pairs("-s", texts)
    check_settings(found)
    return found


def refuse_secrets(settings: Mapping[str, str]) -> None:
    """Refuse, as an argument, the store's address, and any other one with a password.

    Other users of this machine can read arguments.
    """
    if password_in(settings.get("DISTRIBUTED_DELIVER", "")):
        raise ConfigError(REVEALED)
    if SETTING in settings:
        raise ConfigError(
            f"-s {SETTING}=… would show the store's address to every user who lists the processes "
            f"of this machine. Put it into the environment ({VARIABLE}), into scrapy.cfg ([sdist] "
            "store), or into the settings."
        )


def is_stdout(word: str) -> bool:
    """Return whether a word of -o or -O stands for standard output: `-`, or `-:csv`."""
    return word.partition(":")[0] == STDOUT


@contextmanager
def stdout_for(
    new: Sequence[str] | None, over: Sequence[str] | None, context: Context, *, taken: bool
) -> Iterator[tuple[list[str], list[str]]]:
    """Give the words of -o and -O with a file instead of standard output.

    Standard output gets what is in that file at the end. What is printed meanwhile goes to standard
    error. taken: standard output has another use.
    """
    files = list(new or ())
    replaced = list(over or ())
    words = list(filter(is_stdout, [*files, *replaced]))
    if not words:
        yield files, replaced
        return
    if taken or len(words) > 1:
        raise ConfigError(
            "-o - prints the items on standard output: name it once, and without --json or "
            "--detach."
        )
    file = state_dir(context.root) / "stdout" / f"{time.time_ns()}-{os.getpid()}"
    place = f"{file}:{words[0].partition(':')[2] or _NAMES_OF_FORMATS[0]}"
    with redirect_stdout(sys.stderr):
        yield _with_file(files, place), _with_file(replaced, place)
    _print_items(file)


def _with_file(words: Sequence[str], place: str) -> list[str]:
    """Return words of -o or -O with this place instead of standard output."""
    return [place if is_stdout(word) else word for word in words]


def _print_items(file: Path) -> None:
    """Copy the file to standard output and remove it; where that fails, say where the items are."""
    if not file.exists():
        say(f"The items are not all home. When they are, they are in {file}.")
        return
    try:
        with file.open("rb") as items:
            shutil.copyfileobj(items, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except OSError:
        say(f"The items are in {file}.")
        raise
    file.unlink()


def outputs_of(
    folder: Path, new: Sequence[str] | None, over: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return what `-o FILE` (new) and `-O FILE` (over) ask for, as DISTRIBUTED_OUTPUTS has it.

    `FILE:csv` names a format. As with Scrapy, -o adds to a file that is there. Addresses, and
    formats that the project may have, are judged by the crawl's process.
    """
    outputs: dict[str, dict[str, Any]] = {}
    for words, overwrite in ((new, False), (over, True)):
        for text in words or ():
            output = _output_of(folder, text, overwrite=overwrite)
            path = output["path"]
            if path in outputs:
                raise ConfigError(f"{path} is named twice. Name each file of -o and -O once.")
            outputs[path] = output
    return list(outputs.values())


def _output_of(folder: Path, text: str, *, overwrite: bool) -> dict[str, Any]:
    """Return what a word of -o or -O asks for."""
    from scrapyd_dist.items.merging import is_elsewhere

    name, _, kind = text.rpartition(":")
    if not (name and kind.isidentifier()):
        name = text
        kind = ""
    if not is_elsewhere(name):
        return _file_of(folder / name, kind, overwrite=overwrite)
    if password_in(name):
        raise ConfigError(
            "An address of -o or -O has a password, which every user of this machine could read in "
            "the process list. Put it into FEEDS of the project's settings, and leave the option "
            "out."
        )
    output: dict[str, Any] = {"path": name, "format": kind or None}
    if overwrite:
        output["overwrite"] = True
    return output


def _file_of(path: Path, kind: str, *, overwrite: bool) -> dict[str, Any]:
    """Return the output for a file of this machine.

    ConfigError if it has no format, cannot be added to, or cannot be made there.
    """
    from scrapyd_dist.items.merging import FORMATS, ItemOutput, check_folder

    is_known = kind in _NAMES_OF_FORMATS if kind else path.suffix.lower() in FORMATS
    if is_known or not (kind or path.suffix):
        ItemOutput.named(path, format=kind or None, overwrite=overwrite)
    check_folder(path.parent)
    return {"path": str(path.absolute()), "format": kind or None, "overwrite": overwrite}
