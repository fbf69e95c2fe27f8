"""`sdist config`: shows each option in force, its value, and its source; a secret as ***."""

import configparser
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from scrapyd_dist.deploy import local_nodes

from scrapyd_dist.config import ProjectConfig, read_files, shared_files, state_folder
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.nodes import Node
from scrapyd_dist.project_names import common_project
from scrapyd_dist.project_settings import with_settings
from scrapyd_dist.related_names import NAMES, answers
from scrapyd_dist.settings import (
    PREFIX,
    SETTINGS,
    check_settings,
    describe_unknown,
    limits_in,
    suggest_name,
)
from scrapyd_dist.store.address import VARIABLE

from .context import Context
from .options import DIFFERENT, option
from .output import Output, complain_each, say, table

MASK = "***"
#: keys of a [deploy:NAME] section that mean something here or to scrapyd-client
LOGIN_KEYS = ("url", "username", "password")
TARGET_KEYS = (*LOGIN_KEYS, "project", "version", "slots", "verify", "ca")
#: how an entry of DISTRIBUTED_NODES begins that is a command
COMMAND = "cmd:"
_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key|private", re.IGNORECASE)
_QUERY = re.compile(r"([?&][^=&\s]*(?:passw|secret|token|key|sig)[^=&\s]*=)[^&\s#]+", re.IGNORECASE)
_LOGIN = re.compile(r"(://[^:@/\s]*):[^@]*@")
_HEADER = re.compile(r"((?:basic|bearer)\s+)\S+", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{([^}]+)\}|(\w+))")
#: what begins the one line that counts among all that a project may print while it is loaded
_MARK = "sdist-settings:"
#: only Scrapy knows how the settings come together
_READ = f"""
import json
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.project import get_project_settings
found = get_project_settings()
names = {{value: name for name, value in SETTINGS_PRIORITIES.items()}}
ours = {{}}
for name in found:
    if name.startswith("DISTRIBUTED_") or name in ("BOT_NAME", *{NAMES!r}):
        ours[name] = [found[name], names.get(found.getpriority(name), "")]
ours["ADDONS"] = [sorted(map(str, found.getdict("ADDONS"))), ""]
print({_MARK!r} + json.dumps(ours, default=str))
"""


def masked(value: Any, name: str = "") -> Any:
    """Return a value with `***` for what is, or may be, a secret.

    name: what it is called, which may tell that all of it is one.
    """
    if isinstance(value, dict):
        return {key: masked(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(inner, name) for inner in value]
    if value in (None, "") or isinstance(value, (bool, int, float)):
        return value
    if _SECRET_NAME.search(name):
        return MASK
    return masked_text(str(value))


def masked_text(text: str) -> str:
    """Return a text in which passwords of URLs, and what looks like a token, are replaced."""
    text = "".join(map(_without_password, re.split(r"(\s+)", text)))
    text = _LOGIN.sub(rf"\1:{MASK}@", text)
    return _HEADER.sub(rf"\1{MASK}", _QUERY.sub(rf"\1{MASK}", text))


def _without_password(word: str) -> str:
    if "@" not in word:
        return word
    scheme, sep, rest = word.partition("://")
    if not sep:
        scheme = ""
        rest = word
    # What stands before the last @ may be a password, even where the text is nonsense.
    login, _, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if not colon:
        return word
    return f"{scheme}{sep}{user}:{MASK}@{host}"


class ConfigFiles(NamedTuple):
    """The configuration files of a project, each by itself, in the order in which they are read."""

    root: Path
    parsers: tuple[tuple[Path, configparser.ConfigParser], ...]

    @classmethod
    def read(cls, root: Path) -> "ConfigFiles":
        """Return the files of the project in this folder that are there."""
        files = filter(Path.is_file, (*shared_files(), root / "scrapy.cfg"))
        return cls(root, tuple((file, read_files([file])) for file in files))

    def origin(self, section: str, key: str) -> str:
        """Return where a key has its value from; empty if no file has it.

        That is the file whose word counts, the section, and the environment variables in the value.
        """
        for file, parser in reversed(self.parsers):
            if parser.has_option(section, key):
                shown = file
                if file.is_relative_to(self.root):
                    shown = file.relative_to(self.root)
                return f"{shown} [{section}]{_variables_in(parser.get(section, key))}"
        return ""

    def raw(self, section: str, key: str) -> str:
        """Return a value as it is written, of the section or else inherited; empty without one."""
        for place in (section, "deploy"):
            for _, parser in reversed(self.parsers):
                if parser.has_option(place, key):
                    return parser.get(place, key)
        return ""

    def of_target(self, section: str, key: str) -> str:
        """Return where a target has a key from; empty if no file says it, or it is empty there."""
        if not self.raw(section, key).strip():
            return ""
        return self.origin(section, key) or self.origin("deploy", key)

    def of_login(self, section: str) -> str:
        """Return where a login is from that no key gives: the url, or the file asked last."""
        if "@" in self.raw(section, "url"):
            return f"url of [{section}]"
        return os.environ.get("NETRC") or "~/.netrc"


def _variables_in(value: str) -> str:
    """Return the environment variables that a value takes, as the end of its origin."""
    names = ""
    for braced, plain in _VARIABLE.findall(value):
        name = braced or plain
        names += f", environment {name}"
        if name not in os.environ:
            names += " (not set)"
    return names


class ConfigOption(NamedTuple):
    """One option as it is in force; its value holds no secret."""

    section: str
    name: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        """The value as it is shown to people."""
        if isinstance(self.value, str):
            return self.value
        return json.dumps(self.value, ensure_ascii=False)


def of_project(
    found: ProjectConfig, files: ConfigFiles, settings: Mapping[str, list[Any]]
) -> Iterator[ConfigOption]:
    """Generate where the project is, what it is called, and what its settings module is."""
    origin = _settings_origin(files)
    name, named = _name_and_origin(found, files, settings)
    yield ConfigOption("project", "folder", str(found.root), "the nearest scrapy.cfg")
    yield ConfigOption("project", "settings", found.settings_module, origin)
    yield ConfigOption("project", "name", name, named or "nothing says it")
    if "ADDONS" in settings:
        is_there = any("scrapyd_dist" in addon for addon in settings["ADDONS"][0])
        place = "in the settings"
        if not is_there:
            place = "not in the settings: only sdist crawl adds it"
        yield ConfigOption("project", "add-on", is_there, place)
    for key, value in found.options.items():
        yield ConfigOption("[sdist]", key, masked(value, key), files.origin("sdist", key))


def _settings_origin(files: ConfigFiles) -> str:
    if os.environ.get("SCRAPY_SETTINGS_MODULE"):
        return "environment SCRAPY_SETTINGS_MODULE"
    key = os.environ.get("SCRAPY_PROJECT")
    if not key:
        return files.origin("settings", "default")
    return f"{files.origin('settings', key)}, chosen by environment SCRAPY_PROJECT"


def _name_and_origin(
    found: ProjectConfig, files: ConfigFiles, settings: Mapping[str, list[Any]]
) -> tuple[str, str]:
    if found.project:
        return found.project, files.origin("deploy", "project")
    common = common_project(found.own_targets)
    if common:
        first = _section_of(found.own_targets[0], files)
        return common, files.of_target(first, "project")
    if settings.get("BOT_NAME"):
        return str(settings["BOT_NAME"][0]), "BOT_NAME of the settings"
    return "", ""


def of_targets(found: ProjectConfig, files: ConfigFiles) -> Iterator[ConfigOption]:
    """Generate each target's keys that are set; without targets, the local nodes that run."""
    for node in found.targets:
        yield from _of_target(node, files)
    if not found.targets:
        for node in local_nodes.running(state_folder(found.root)):
            yield ConfigOption(
                f"node {node.name}", "url", node.url, "sdist nodes up (scrapy.cfg names no node)"
            )


def _section_of(node: Node, files: ConfigFiles) -> str:
    """Return the section of scrapy.cfg that a target is from."""
    if node.name == "default" and files.origin("deploy", "url"):
        return "deploy"
    return f"deploy:{node.name}"


def _of_target(node: Node, files: ConfigFiles) -> Iterator[ConfigOption]:
    section = _section_of(node, files)
    for key, value in _values_of(node, section, files).items():
        origin = files.of_target(section, key)
        if not origin and key in {"username", "password"}:
            origin = files.of_login(section)
        yield ConfigOption(f"[{section}]", key, value, origin)


def _values_of(node: Node, section: str, files: ConfigFiles) -> dict[str, Any]:
    """Return the keys of a target that are set."""
    values: dict[str, Any] = {"url": node.url}
    if node.username is not None:
        values["username"] = node.username
        values["password"] = MASK if node.password else ""
    for key in TARGET_KEYS:
        if key not in LOGIN_KEYS and files.of_target(section, key):
            values[key] = getattr(node, key)
    return values


def of_settings(
    found: ProjectConfig, files: ConfigFiles, settings: Mapping[str, list[Any]]
) -> Iterator[ConfigOption]:
    """Generate our settings, those with their default too."""
    origins = {"project": "settings module", "cmdline": "command line"}
    limits = limits_in(found.options)
    for name, row in SETTINGS.items():
        value, kind = settings.get(name, (row.default_text, ""))
        origin = origins.get(kind, kind)
        if name == "DISTRIBUTED_STORE":
            value, origin = _store_and_origin(found, files) or (value, origin)
        if name in limits:
            value = limits[name]
            origin = files.origin("sdist", name.removeprefix(PREFIX).lower())
        shown = masked(without_commands(name, value), name)
        yield ConfigOption("settings", name, shown, origin or "default")


def _store_and_origin(found: ProjectConfig, files: ConfigFiles) -> tuple[str, str] | None:
    """Return the store that goes before that of the settings, if there is one, and its origin."""
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE], f"environment {VARIABLE}"
    if found.options.get("store"):
        return found.options["store"], files.origin("sdist", "store")
    return None


def without_commands(name: str, value: Any) -> Any:
    """Return the value of a setting with `***` for a command, or an address that is called.

    Any word of these may be a secret.
    """
    if isinstance(value, (list, tuple)):
        return [without_commands(name, entry) for entry in value]
    text = str(value or "")
    if name == "DISTRIBUTED_ON_FINISH" and text:
        return MASK
    if text.startswith(COMMAND):
        return f"{COMMAND}{MASK}"
    return value


def misspelt(files: ConfigFiles, settings: Mapping[str, list[Any]]) -> list[str]:
    """Return a sentence for each setting or key that means nothing."""
    sentences = describe_unknown(settings, os.environ)
    for file, parser in files.parsers:
        for section in parser.sections():
            if section.partition(":")[0] == "deploy":
                sentences += _misspelt_keys(f"{file}, [{section}]", parser[section])
    return sentences


def _misspelt_keys(where: str, keys: Iterable[str]) -> list[str]:
    sentences = []
    for key in keys:
        if key in TARGET_KEYS:
            continue
        hint = suggest_name(key, TARGET_KEYS)
        if hint:
            sentences.append(f"{where}: the key {key!r} means nothing here.{hint}")
    return sentences


def invalid(settings: Mapping[str, list[Any]]) -> list[str]:
    """Return a sentence for each of our settings whose value no crawl would take."""
    sentences = []
    for name, (value, _) in settings.items():
        try:
            check_settings({name: value})
        except ConfigError as error:
            sentences.append(str(error))
    return sentences


def config(
    *,
    context: Context,
    show_origin: Annotated[
        bool, option("Say of each value where it comes from: file and section, variable.")
    ] = False,
    every: Annotated[bool, option("Also the settings that have their default.", "--all")] = False,
    output: Output,
) -> int:
    """Show the options in force: project, targets, settings.

    They come from scrapy.cfg (the project's, the user's, the machine's), from the
    environment, from ~/.netrc, and from the project's settings. Passwords show as ***.
    What is misspelt is named, with what was probably meant, and so is a value that
    no crawl would take; exit code 10 then. A spider's custom_settings and the
    options of `sdist crawl` go before all of these.

    Example: sdist config --show-origin
    """
    found = context.project
    settings, problem = settings_of(found)
    files = ConfigFiles.read(found.root)
    options = [
        *of_project(found, files, settings),
        *of_targets(found, files),
        *of_settings(found, files, settings),
    ]
    misspellings = misspelt(files, settings)
    wrong = invalid(settings)
    complain_each(answers({name: value for name, (value, _) in settings.items()}))
    document = {
        "options": [entry._asdict() for entry in options],
        "misspelt": misspellings,
        "invalid": wrong,
        "problem": problem,
    }
    if not output.document(document):
        _show(options, every=every, show_origin=show_origin)
    complain_each([*misspellings, *wrong, problem or None])
    if problem:
        return ConfigError.exit_code
    if misspellings or wrong:
        return DIFFERENT
    return 0


def _show(options: Sequence[ConfigOption], *, every: bool, show_origin: bool) -> None:
    headings = ["", "option", "value"]
    if show_origin:
        headings.append("origin")
    cells = []
    for entry in options:
        if every or entry.origin != "default":
            shown = (entry.section, entry.name, entry.text, entry.origin)
            cells.append(shown[: len(headings)])
    table(headings, cells)
    hidden = len(options) - len(cells)
    if hidden:
        say(f"{hidden} more have their default: sdist config --all shows them.")


def settings_of(found: ProjectConfig) -> tuple[dict[str, list[Any]], str]:
    """Return the project's settings of ours, BOT_NAME and ADDONS: {name: [value, kind of origin]}.

    Returns them, and why they cannot be had; one of the two is empty.
    """
    lines, why = with_settings(found.root, _READ)
    for line in lines:
        if line.startswith(_MARK):
            return dict(json.loads(line.removeprefix(_MARK))), ""
    problem = (
        f"The settings module {found.settings_module} cannot be loaded: {why}. Its settings are not"
        " shown; see `scrapy settings --get BOT_NAME` for the whole of the error."
    )
    return {}, problem
