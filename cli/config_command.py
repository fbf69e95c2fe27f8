"""`sdist config`: every option in force, its value, and its source. A secret shows as ***."""

import configparser
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from scrapyd_dist.deploy import local_nodes

from scrapyd_dist.config import ProjectConfig, read_files, shared_files, state_folder
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.related_names import NAMES, answers
from scrapyd_dist.settings import PREFIX, SETTINGS, judge, limits_in, nearest, unknown
from scrapyd_dist.store.address import VARIABLE

from .context import Context, with_settings
from .options import option
from .output import Output, complain_each, say

MASK = "***"
#: how an entry of DISTRIBUTED_NODES begins that is a command
COMMAND = "cmd:"
_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key|private", re.IGNORECASE)
_QUERY = re.compile(r"([?&][^=&\s]*(?:passw|secret|token|key|sig)[^=&\s]*=)[^&\s#]+", re.IGNORECASE)
_LOGIN = re.compile(r"(://[^:@/\s]*):[^@]*@")
_HEADER = re.compile(r"((?:basic|bearer)\s+)\S+", re.IGNORECASE)


def masked(value: Any, name: str = "") -> Any:
    """The value with `***` for what is, or may be, a secret; its name may tell that all of it is one."""
    if isinstance(value, dict):
        return {key: masked(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(inner, name) for inner in value]
    if value in (None, "") or isinstance(value, (bool, int, float)):
        return value
    return MASK if _SECRET_NAME.search(name) else masked_text(str(value))


def masked_text(text: str) -> str:
    """A text in which passwords of URLs, and what looks like a token, are replaced."""
    text = "".join(_without_password(word) for word in re.split(r"(\s+)", text))
    text = _LOGIN.sub(rf"\1:{MASK}@", text)
    return _HEADER.sub(rf"\1{MASK}", _QUERY.sub(rf"\1{MASK}", text))


def _without_password(word: str) -> str:
    if "@" not in word:
        return word
    scheme, sep, rest = word.partition("://")
    if not sep:
        scheme, rest = "", word
    # What stands before the last @ may be a password, even where the text is nonsense.
    login, _, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{sep}{user}:{MASK}@{host}" if colon else word


#: keys of a [deploy:NAME] section that mean something here or to scrapyd-client
LOGIN_KEYS = ("url", "username", "password")
TARGET_KEYS = (*LOGIN_KEYS, "project", "version", "slots", "verify", "ca")
_VARIABLE = re.compile(r"\$(?:\{([^}]+)\}|(\w+))")


class ConfigFiles(NamedTuple):
    """The configuration files of a project, each by itself, in the order in which they are read."""

    root: Path
    parsers: tuple[tuple[Path, configparser.ConfigParser], ...]

    @classmethod
    def of(cls, root: Path) -> "ConfigFiles":
        files = [file for file in [*shared_files(), root / "scrapy.cfg"] if file.is_file()]
        return cls(root, tuple((file, read_files([file])) for file in files))

    def origin(self, section: str, key: str) -> str:
        """The file whose word counts, its section, and the environment variables in its value; empty if none has it."""
        for file, parser in reversed(self.parsers):
            if parser.has_option(section, key):
                taken = "".join(
                    f", environment {name}" + ("" if name in os.environ else " (not set)")
                    for names in _VARIABLE.findall(parser.get(section, key))
                    for name in names
                    if name
                )
                shown = file.relative_to(self.root) if file.is_relative_to(self.root) else file
                return f"{shown} [{section}]{taken}"
        return ""

    def raw(self, section: str, key: str) -> str:
        """The value as it is written, of the section or else inherited; empty where there is none."""
        for place in (section, "deploy"):
            for _, parser in reversed(self.parsers):
                if parser.has_option(place, key):
                    return parser.get(place, key)
        return ""

    def of_target(self, section: str, key: str) -> str:
        """Where a target has a key from; empty where no file says it, or says nothing."""
        if not self.raw(section, key).strip():
            return ""
        return self.origin(section, key) or self.origin("deploy", key)

    def of_login(self, section: str) -> str:
        """Where a login is from that no key gives: the url, or the file that is asked last."""
        return (
            f"url of [{section}]"
            if "@" in self.raw(section, "url")
            else os.environ.get("NETRC") or "~/.netrc"
        )


class ConfigOption(NamedTuple):
    """One option as it is in force; its value holds no secret."""

    section: str
    name: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        return (
            self.value
            if isinstance(self.value, str)
            else json.dumps(self.value, ensure_ascii=False)
        )


def of_project(
    found: ProjectConfig, files: ConfigFiles, settings: Mapping[str, list[Any]]
) -> Iterator[ConfigOption]:
    """Where the project is, what it is called, and what its settings module is."""
    preset, key = os.environ.get("SCRAPY_SETTINGS_MODULE"), os.environ.get("SCRAPY_PROJECT")
    origin = (
        "environment SCRAPY_SETTINGS_MODULE"
        if preset
        else files.origin("settings", key or "default")
    )
    if key and not preset:
        origin += ", chosen by environment SCRAPY_PROJECT"
    name, named = (found.project, files.origin("deploy", "project")) if found.project else ("", "")
    if not name and settings.get("BOT_NAME"):
        name, named = str(settings["BOT_NAME"][0]), "BOT_NAME of the settings"
    yield ConfigOption("project", "folder", str(found.root), "the nearest scrapy.cfg")
    yield ConfigOption("project", "settings", found.settings_module, origin)
    yield ConfigOption("project", "name", name, named or "nothing says it")
    if "ADDONS" in settings:
        there = any("scrapyd_dist" in addon for addon in settings["ADDONS"][0])
        said = "in the settings" if there else "not in the settings: only sdist crawl adds it"
        yield ConfigOption("project", "add-on", there, said)
    for key, value in found.options.items():
        yield ConfigOption("[sdist]", key, masked(value, key), files.origin("sdist", key))


def of_targets(found: ProjectConfig, files: ConfigFiles) -> Iterator[ConfigOption]:
    """Each target's keys that are set; without targets, the local nodes that run."""
    for node in found.targets:
        section = (
            "deploy"
            if node.name == "default" and files.origin("deploy", "url")
            else f"deploy:{node.name}"
        )
        values: dict[str, Any] = {"url": node.url}
        if node.username is not None:
            values |= {"username": node.username, "password": MASK if node.password else ""}
        others = [
            key for key in TARGET_KEYS if key not in LOGIN_KEYS and files.of_target(section, key)
        ]
        values |= {key: getattr(node, key) for key in others}
        for key, value in values.items():
            origin = files.of_target(section, key)
            if key in {"username", "password"}:
                origin = origin or files.of_login(section)
            yield ConfigOption(f"[{section}]", key, value, origin)
    if not found.targets:
        for node in local_nodes.running(state_folder(found.root)):
            yield ConfigOption(
                f"node {node.name}", "url", node.url, "sdist nodes up (scrapy.cfg names no node)"
            )


def of_settings(
    found: ProjectConfig, files: ConfigFiles, settings: Mapping[str, list[Any]]
) -> Iterator[ConfigOption]:
    """Our settings, those with their default too."""
    origins = {"project": "settings module", "cmdline": "command line"}
    # The store is named by the environment, else by scrapy.cfg, else by the settings.
    stores = (
        (os.environ.get(VARIABLE), f"environment {VARIABLE}"),
        (found.options.get("store"), files.origin("sdist", "store")),
    )
    limits = limits_in(found.options)
    for name, row in SETTINGS.items():
        value, kind = settings.get(name, (row.default_text, ""))
        origin = origins.get(kind, kind)
        if name == "DISTRIBUTED_STORE":
            value, origin = next(((said, place) for said, place in stores if said), (value, origin))
        if name in limits:
            value, origin = limits[name], files.origin("sdist", name.removeprefix(PREFIX).lower())
        yield ConfigOption(
            "settings", name, masked(without_commands(name, value), name), origin or "default"
        )


def without_commands(name: str, value: Any) -> Any:
    """The value of a setting with `***` for a command, and for an address that is called: any word may be a secret."""
    if isinstance(value, (list, tuple)):
        return [without_commands(name, one) for one in value]
    text = str(value or "")
    if name == "DISTRIBUTED_ON_FINISH" and text:
        return MASK
    return f"{COMMAND}{MASK}" if text.startswith(COMMAND) else value


def misspelt(files: ConfigFiles, settings: Mapping[str, list[Any]]) -> list[str]:
    """A sentence for each setting or key that means nothing."""
    sentences = unknown(settings, os.environ)
    for file, parser in files.parsers:
        for section in parser.sections():
            for key in parser[section] if section.partition(":")[0] == "deploy" else ():
                if key not in TARGET_KEYS and (meant := nearest(key, TARGET_KEYS)):
                    sentences.append(
                        f"{file}, [{section}]: the key {key!r} means nothing here.{meant}"
                    )
    return sentences


def invalid(settings: Mapping[str, list[Any]]) -> list[str]:
    """A sentence for each of our settings whose value no crawl would take."""
    sentences = []
    for name, (value, _) in settings.items():
        try:
            judge({name: value})
        except ConfigError as error:
            sentences.append(str(error))
    return sentences


#: what begins the one line that counts among all that a project may print while it is loaded
_MARK = "sdist-settings:"
#: only Scrapy knows how the settings come together
_READ = f"""
import json
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.project import get_project_settings
found = get_project_settings()
names = {{value: name for name, value in SETTINGS_PRIORITIES.items()}}
wanted = [name for name in found if name.startswith("DISTRIBUTED_") or name in ("BOT_NAME", *{NAMES!r})]
ours = {{name: [found[name], names.get(found.getpriority(name), "")] for name in wanted}}
ours["ADDONS"] = [sorted(map(str, found.getdict("ADDONS"))), ""]
print({_MARK!r} + json.dumps(ours, default=str))
"""


def config(
    *,
    context: Context,
    show_origin: Annotated[
        bool, option("Say of each value where it comes from: file and section, variable.")
    ] = False,
    every: Annotated[bool, option("Also the settings that have their default.", "--all")] = False,
    check: Annotated[
        bool, option("Exit code 10 when a setting or a key is misspelt, or a value is wrong.")
    ] = False,
    output: Output,
) -> int:
    """Show the options in force: project, targets, settings.

    They come from scrapy.cfg (the project's, the user's, the machine's), from the
    environment, from ~/.netrc, and from the project's settings. Passwords show as ***.
    What is misspelt is named, with what was probably meant, and so is a value that
    no crawl would take. A spider's custom_settings and the options of `sdist crawl`
    go before all of these.

    Example: sdist config --show-origin
    """
    found = context.project
    settings, problem = settings_of(found)
    files = ConfigFiles.of(found.root)
    options = [
        *of_project(found, files, settings),
        *of_targets(found, files),
        *of_settings(found, files, settings),
    ]
    misspellings, wrong = misspelt(files, settings), invalid(settings)
    complain_each(answers({name: value for name, (value, _) in settings.items()}))
    shown = [one for one in options if every or one.origin != "default"]
    document = {
        "options": [one._asdict() for one in options],
        "misspelt": misspellings,
        "invalid": wrong,
        "problem": problem,
    }
    headings = ("", "option", "value", "origin")[: 4 if show_origin else 3]
    cells = [(one.section, one.name, one.text, one.origin)[: len(headings)] for one in shown]
    output.table(document, headings, cells)
    if len(shown) < len(options) and not output.as_json:
        say(f"{len(options) - len(shown)} more have their default: sdist config --all shows them.")
    complain_each([*misspellings, *wrong, problem or None])
    return 2 if problem else 10 if check and (misspellings or wrong) else 0


def settings_of(found: ProjectConfig) -> tuple[dict[str, list[Any]], str]:
    """The project's settings that begin with DISTRIBUTED_, BOT_NAME and ADDONS: {name: [value, kind of origin]}.

    Gives them, and why they cannot be had; one of the two is empty.
    """
    lines, why = with_settings(found.root, _READ)
    for line in lines:
        if line.startswith(_MARK):
            return dict(json.loads(line.removeprefix(_MARK))), ""
    return {}, (
        f"The settings module {found.settings_module} cannot be loaded: {why}. Its settings are not shown; see "
        "`scrapy settings --get BOT_NAME` for the whole of the error."
    )
