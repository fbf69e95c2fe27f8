"""The sources of each option: files in their order, the environment, ~/.netrc, the settings, defaults; no secrets."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.settings import SETTINGS, nearest, unknown

if TYPE_CHECKING:
    import configparser
    from collections.abc import Iterator, Mapping

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.nodes import Node

MASK = "***"
_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key|private", re.IGNORECASE)
_QUERY = re.compile(r"([?&][^=&\s]*(?:passw|secret|token|key|sig)[^=&\s]*=)[^&\s#]+", re.IGNORECASE)
_LOGIN = re.compile(r"(://[^:@/\s]*):[^@]*@")
_HEADER = re.compile(r"((?:basic|bearer)\s+)\S+", re.IGNORECASE)


def masked(value: Any, name: str = "") -> Any:
    """The value with `***` for what is, or may be, a secret; texts, lists and mappings are looked into.

    Args:
        value: anything that JSON can say.
        name: what it is called, which may tell that all of it is secret.
    """
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
TARGET_KEYS = ("url", "username", "password", "project", "version", "slots", "verify", "ca")
_VARIABLE = re.compile(r"\$(?:\{([^}]+)\}|(\w+))")


@dataclass(frozen=True, kw_only=True)
class ConfigOption:
    """One option as it is in force; its value holds no secret."""

    section: str
    name: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)


def of_project(found: ProjectConfig, files: ConfigFiles, settings: Mapping[str, list[Any]]) -> list[ConfigOption]:
    """Where the project is, what it is called, and what its settings module is."""
    preset, key = os.environ.get("SCRAPY_SETTINGS_MODULE"), os.environ.get("SCRAPY_PROJECT")
    origin = "environment SCRAPY_SETTINGS_MODULE" if preset else files.origin("settings", key or "default")
    if key and not preset:
        origin += ", chosen by environment SCRAPY_PROJECT"
    name, named = (found.project, files.origin("deploy", "project")) if found.project else ("", "")
    if not name and settings.get("BOT_NAME"):
        name, named = str(settings["BOT_NAME"][0]), "BOT_NAME of the settings"
    options = [
        ConfigOption(section="project", name="folder", value=str(found.root), origin="the nearest scrapy.cfg"),
        ConfigOption(section="project", name="settings", value=found.settings_module, origin=origin),
        ConfigOption(section="project", name="name", value=name, origin=named or "nothing says it"),
    ]
    if "ADDONS" in settings:
        there = any("scrapyd_dist" in addon for addon in settings["ADDONS"][0])
        said = "in the settings" if there else "not in the settings: only sdist crawl adds it"
        options.append(ConfigOption(section="project", name="add-on", value=there, origin=said))
    for key_, value in found.options.items():
        where = files.origin("sdist", key_)
        options.append(ConfigOption(section="[sdist]", name=key_, value=masked(value, key_), origin=where))
    return options


def of_targets(found: ProjectConfig, files: ConfigFiles) -> list[ConfigOption]:
    """Each target's keys that are set."""
    from scrapyd_dist.config import STATE_FOLDER

    options = [option for node in found.targets for option in _of_target(files, node)]
    if options:
        return options
    from scrapyd_dist.deploy import local_nodes

    where = "sdist nodes up (scrapy.cfg names no node)"
    return [
        ConfigOption(section=f"node {node.name}", name="url", value=node.url, origin=where)
        for node in local_nodes.running(found.root / STATE_FOLDER)
    ]


def _of_target(files: ConfigFiles, node: Node) -> Iterator[ConfigOption]:
    section = "deploy" if node.name == "default" and files.origin("deploy", "url") else f"deploy:{node.name}"
    label = f"[{section}]"
    yield ConfigOption(section=label, name="url", value=node.url, origin=files.of_target(section, "url"))
    if node.username is not None:
        origin = files.of_target(section, "username") or files.of_login(section)
        yield ConfigOption(section=label, name="username", value=node.username, origin=origin)
        origin = files.of_target(section, "password") or files.of_login(section)
        yield ConfigOption(section=label, name="password", value=MASK if node.password else "", origin=origin)
    for key in ("project", "version", "slots", "verify", "ca"):
        origin = files.of_target(section, key)
        if origin:
            yield ConfigOption(section=label, name=key, value=getattr(node, key), origin=origin)


def of_settings(found: ProjectConfig, files: ConfigFiles, settings: Mapping[str, list[Any]]) -> list[ConfigOption]:
    """Our settings, those with their default too."""
    from scrapyd_dist.store.address import VARIABLE

    # The store is named by the environment, else by scrapy.cfg, else by the settings.
    stores = (
        (os.environ.get(VARIABLE), f"environment {VARIABLE}"),
        (
            found.options.get("store"),
            files.origin("sdist", "store"),
        ),
    )
    options = []
    for name, row in SETTINGS.items():
        value, origin = row.default_text, ""
        if name in settings:
            value, origin = settings[name][0], _settings_origin(settings[name][1])
        if name == "DISTRIBUTED_STORE":
            value, origin = next(((said, place) for said, place in stores if said), (value, origin))
        options.append(
            ConfigOption(section="settings", name=name, value=masked(value, name), origin=origin or "default")
        )
    return options


def misspelt(files: ConfigFiles, settings: Mapping[str, list[Any]]) -> list[str]:
    """A sentence for each setting or key that means nothing."""
    said = unknown(settings, os.environ)
    for file, parser in files.parsers:
        for section in parser.sections():
            if section == "deploy" or section.startswith("deploy:"):
                said += [
                    f"{file}, [{section}]: the key {key!r} means nothing here.{nearest(key, TARGET_KEYS)}"
                    for key in parser[section]
                    if key not in TARGET_KEYS and nearest(key, TARGET_KEYS)
                ]
    return said


def _settings_origin(kind: str) -> str:
    return {"project": "settings module", "default": "default", "cmdline": "command line"}.get(kind, kind)


@dataclass(frozen=True, kw_only=True)
class ConfigFiles:
    """The configuration files of a project, each by itself, in the order in which they are read."""

    root: Path
    parsers: tuple[tuple[Path, configparser.ConfigParser], ...]

    @classmethod
    def of(cls, root: Path) -> ConfigFiles:
        from scrapyd_dist.config import read_files, shared_files

        files = [file for file in [*shared_files(), root / "scrapy.cfg"] if file.is_file()]
        return cls(root=root, parsers=tuple((file, read_files([file])) for file in files))

    def origin(self, section: str, key: str) -> str:
        """The file whose word counts, its section, and the environment variables in its value; empty if none has it."""
        for file, parser in reversed(self.parsers):
            if parser.has_option(section, key):
                taken = "".join(
                    f", environment {name}" + ("" if name in os.environ else " (not set)")
                    for name in _variables(parser.get(section, key))
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
        return self.origin(section, key) or (self.origin("deploy", key) if section != "deploy" else "")

    def of_login(self, section: str) -> str:
        """Where a login is from that no key gives: the url, or the file that is asked last."""
        return f"url of [{section}]" if "@" in self.raw(section, "url") else os.environ.get("NETRC") or "~/.netrc"


def _variables(value: str) -> list[str]:
    return [one or other for one, other in _VARIABLE.findall(value)]
