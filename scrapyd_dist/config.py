"""Reads scrapy.cfg as Scrapy and scrapyd-client do, without importing Scrapy.

Invariant: no error message quotes a line of the file, which may hold a password.
"""

import configparser
import netrc
import os
import re
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.nodes import Node, distinct_nodes, is_address, names_of
from scrapyd_dist.ownership import fault_of_folder, read_regular

#: the project's state folder next to scrapy.cfg, with crawls, keys, eggs and local nodes
STATE_FOLDER = ".sdist"
#: in the folder of a crawl, that of the parts which came home
PARTS = "parts"
#: the section of scrapy.cfg with options of this program
OWN_SECTION = "sdist"

#: jobs that a node may run at once
MOST_JOBS = 10_000
#: a value that is only a variable; a lower-case one may be a password that begins with a dollar
_VARIABLE = re.compile(r"\$\{?([A-Z_][A-Z0-9_]*)\}?\Z")


@dataclass(frozen=True, kw_only=True)
class ProjectConfig:
    """What scrapy.cfg says of a project, with one settings module chosen."""

    root: Path  #: the folder of the closest scrapy.cfg
    settings_module: str  #: import path of the settings module
    #: every `[deploy]` and `[deploy:NAME]` section with a url, in file order
    targets: tuple[Node, ...]
    project: str | None  #: the `project` of `[deploy]`, if set
    options: Mapping[str, str] = field(default_factory=dict)  #: the `[sdist]` section
    #: the `[settings]` section, by names in lower case; empty where the environment names another
    #: module
    modules: Mapping[str, str] = field(default_factory=dict)

    def module_of(self, project: str | None) -> str:
        """Return the settings module of a project as Scrapyd calls it.

        It is that of the project's line in `[settings]`. A name without a line stands for the
        chosen module; but where a target names the project of that one, for the default.
        """
        listed = self._find_listed_module(project)
        if listed is not None or project is None:
            return listed or self.settings_module
        modules_of_targets = {self._find_listed_module(node.project) for node in self.targets}
        if self.settings_module in modules_of_targets:
            return self.modules.get("default") or self.settings_module
        return self.settings_module

    def _find_listed_module(self, project: str | None) -> str | None:
        return self.modules.get((project or "").lower())

    @property
    def own_targets(self) -> tuple[Node, ...]:
        """The targets with the chosen settings module, each url once, with its first name there.

        Several projects may have targets at one node. What is remembered of it goes by its name,
        which is one for all.
        """
        names: dict[str, str] = {}
        for node in self.targets:
            names.setdefault(node.url, node.name)
        own = filter(self.is_own, self.targets)
        return distinct_nodes(replace(node, name=names[node.url]) for node in own)

    @property
    def project_names(self) -> tuple[str, ...]:
        """What scrapy.cfg calls the project on nodes, in `[deploy]` and in its own targets."""
        names = [self.project, *(node.project for node in self.own_targets)]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def is_own(self, node: Node) -> bool:
        """Return whether the project that the target names has the chosen settings module."""
        return self.module_of(node.project) == self.settings_module

    def check_own(self, targets: Iterable[Node]) -> None:
        """Raise ConfigError if one of these targets is for another settings module."""
        for node in targets:
            if not self.is_own(node):
                own = names_of(filter(self.is_own, self.targets)) or "there is none yet"
                raise ConfigError(
                    f"The target {node.name} of scrapy.cfg is for the project {node.project}, whose"
                    f" settings module is {self.module_of(node.project)}, and this command runs"
                    f" {self.settings_module}. Choose that project, as for Scrapy:"
                    f" SCRAPY_PROJECT={node.project}; or name a target of this one: {own}."
                )


def find_root(folder: Path | None = None) -> Path | None:
    """Return the closest folder with a scrapy.cfg, from `folder` upward, or None.

    Without `folder`, the search begins where the process was started, if that is known, since
    settings may have changed the current folder; and then at the settings that it has loaded.
    """
    if folder is not None:
        return _search_upward(folder)
    found = _search_upward(_Start.folder or Path.cwd())
    if found:
        return found
    settings = sys.modules.get(os.environ.get("SCRAPY_SETTINGS_MODULE") or "")
    file = getattr(settings, "__file__", None)
    return _search_upward(Path(file).parent) if file else None


class _Start:
    """Where this process was started."""

    folder: Path | None = None  #: None until `stay_here` is called


def stay_here() -> None:
    """Keep the current folder as that of this process, whatever the project's code makes of it."""
    _Start.folder = Path.cwd()


def _search_upward(folder: Path) -> Path | None:
    start = folder.resolve()
    for candidate in (start, *start.parents):
        if (candidate / "scrapy.cfg").is_file():
            return candidate
    return None


def load(folder: Path | None = None) -> ProjectConfig:
    """Return the configuration of the project that contains `folder` (default: the current one).

    As with Scrapy, the environment variables SCRAPY_SETTINGS_MODULE and SCRAPY_PROJECT choose the
    settings module, and the files of the machine and of the user are read before the project's.

    Raises:
        ConfigError: there is no scrapy.cfg, it cannot be read, or a value is invalid.
    """
    root = find_root(folder)
    if root is None:
        raise ConfigError(
            f"There is no scrapy.cfg in {(folder or Path.cwd()).resolve()} or in a folder above it."
            " Run this inside a Scrapy project."
        )
    parser = read_files([*shared_files(), root / "scrapy.cfg"])
    settings_module = _settings_module(parser, root)
    return ProjectConfig(
        root=root,
        settings_module=settings_module,
        targets=targets_of(parser, root),
        project=_section(parser, "deploy").get("project") or None,
        options=_section(parser, OWN_SECTION),
        modules=_modules(parser, settings_module),
    )


def read_files(files: list[Path]) -> configparser.ConfigParser:
    """Read and merge those of the files that exist; later files override earlier ones.

    A file that cannot be read is a `ConfigError`, whose message names file and line, and quotes
    nothing.
    """
    parser = configparser.ConfigParser(interpolation=None)
    for file in files:
        if file.is_file():
            _add(parser, read_text(file, str(file)), str(file))
    return parser


def read_text(path: Path, what: str) -> str:
    """Return the text of a file; ConfigError, which calls the file `what`, if it cannot be read."""
    try:
        return read_regular(path).decode("utf-8")
    except OSError as e:
        raise ConfigError(f"{what} cannot be read: {e.strerror}.") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{what} cannot be read: it is not UTF-8 text.") from e


def _add(parser: configparser.ConfigParser, text: str, where: str) -> None:
    try:
        parser.read_string(text)
    except configparser.Error as e:
        # Not chained: its text may quote a line with a password.
        raise ConfigError(f"{where} cannot be read: {_describe_syntax_error(e)}.") from None


def targets_of(parser: configparser.ConfigParser, root: Path) -> tuple[Node, ...]:
    """Return the nodes of `[deploy]` and of the `[deploy:NAME]` sections, which inherit its values.

    A relative `ca` path starts from `root`. ConfigError if a target has no url, or an invalid
    value.
    """
    base = _read_section(parser, "deploy")
    targets = {"default": base} if base.get("url") else {}
    for section in parser.sections():
        if section.startswith("deploy:"):
            name = section.removeprefix("deploy:")
            targets[name] = {**base, **_read_section(parser, section)}
    return tuple(_make_node(name, values, root) for name, values in targets.items())


def targets_in(text: str, where: str, root: Path) -> tuple[Node, ...]:
    """Return the nodes of a text with sections as in scrapy.cfg; errors call it `where`.

    ConfigError if the text cannot be parsed (no line of it is quoted), or a target is invalid.
    """
    parser = configparser.ConfigParser(interpolation=None)
    _add(parser, text, where)
    return targets_of(parser, root)


def node_named(text: str, known: Iterable[Node]) -> Node:
    """Return the known node of that name or at that address, else the node there.

    `NothingMatched` if the text is neither a name nor an address.
    """
    known_nodes = list(known)
    names = [node.name for node in known_nodes]
    if text in names:
        return known_nodes[names.index(text)]
    if text and not is_address(text):
        raise NothingMatched(
            f"There is no node {text!r}.{did_you_mean(text, names)} The targets are:"
            f" {names_of(known_nodes) or 'none'}. An address will do as well, such as web1:6800."
        )
    addressed = with_netrc(Node.parse(text))
    if not addressed.username:
        for node in known_nodes:
            if node.url == addressed.url:
                return node
    return addressed


def addresses_of(node: Node) -> tuple[Node, ...]:
    """Return a node for each address of a `dns+http://…` node's host, sorted.

    `ConfigError` if there is no address.
    """
    try:
        found = socket.getaddrinfo(node.host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as e:
        why = getattr(e, "strerror", None) or "it cannot be looked up"
        raise ConfigError(f"The host {node.host} of the {node} has no address: {why}.") from e
    addresses = {str(socket_address[0]) for *_, socket_address in found}
    return tuple(node.at(address) for address in sorted(addresses))


def with_netrc(node: Node) -> Node:
    """Return the node with the credentials of ~/.netrc (or the file in NETRC) if it has none."""
    if node.username is not None:
        return node
    logins = _read_netrc()
    entry = None if logins is None else logins.authenticators(node.host)
    if not entry:
        return node
    username, _, password = entry
    return replace(node, username=username, password=password) if username else node


def _read_netrc() -> netrc.netrc | None:
    """Return what the file has now; None if there is none, or it cannot be used.

    It is parsed anew when it has changed: a page of a large fleet asks once for each node.
    """
    given = os.environ.get("NETRC")
    path = Path(given or "~/.netrc").expanduser()
    try:
        file = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(file.st_mode):  # a pipe would be waited for without end
        return None
    state = (file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns)
    return _parse_netrc(given, path, state)


@lru_cache(maxsize=1)
def _parse_netrc(
    given: str | None, _path: Path, _state: tuple[int, int, int, int]
) -> netrc.netrc | None:
    """Return what the file has; the other arguments tell whether it is still the same one."""
    try:
        return netrc.netrc(given)
    except (OSError, netrc.NetrcParseError):
        # Other programs use this file too; a broken one must not stop a project without need of it.
        return None


def state_folder(root: Path) -> Path:
    """Return the project's state folder, whether it is there or not.

    The key, the eggs and the nodes in it are believed: ConfigError if others can write to it.
    """
    folder = root / STATE_FOLDER
    if fault := fault_of_folder(folder):
        raise ConfigError(f"The state folder is not used: {fault}")
    return folder


def state_dir(root: Path) -> Path:
    """Return `state_folder`, made for its owner only and ignored by git.

    ConfigError if it cannot be made.
    """
    folder = state_folder(root)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", "utf-8")
    except OSError as e:
        raise ConfigError(
            f"The state folder {folder} cannot be made: {e.strerror}. Crawls are recorded there, so"
            " that none is lost; make the project's folder writable."
        ) from e
    return folder


def write_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write or replace a file in one step, so that half of it is never read.

    Before it has its mode only its owner can read it.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def shared_files() -> list[Path]:
    """Return the configuration files that Scrapy reads before a project's own."""
    config_home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return [
        Path("/etc/scrapy.cfg"),
        Path(f"{config_home}/scrapy.cfg").expanduser(),
        Path("~/.scrapy.cfg").expanduser(),
    ]


def _settings_module(parser: configparser.ConfigParser, root: Path) -> str:
    preset = os.environ.get("SCRAPY_SETTINGS_MODULE")
    if preset:
        return preset
    key = os.environ.get("SCRAPY_PROJECT") or "default"
    module = _section(parser, "settings").get(key.lower())
    if not module:
        raise ConfigError(
            f"{root / 'scrapy.cfg'} names no settings module: its [settings] section needs a line"
            f" like `{key} = myproject.settings`."
        )
    return module


def _modules(parser: configparser.ConfigParser, chosen: str) -> dict[str, str]:
    """Return the settings module of each project, and of `default`; `shell` names a program.

    Empty if the chosen module is none of the file's: then the environment says it, for all.
    """
    modules = _section(parser, "settings")
    if chosen not in modules.values():
        return {}
    return {name: module for name, module in modules.items() if name != "shell"}


def _section(parser: configparser.ConfigParser, name: str) -> dict[str, str]:
    """Return a section's values with `$NAME` expanded from the environment."""
    return _expand(_read_section(parser, name))


def _expand(written: Mapping[str, str]) -> dict[str, str]:
    return {key: os.path.expandvars(value) for key, value in written.items()}


def _read_section(parser: configparser.ConfigParser, name: str) -> dict[str, str]:
    """Return a section's values as they are written; empty if there is no such section."""
    if not parser.has_section(name):
        return {}
    # Scrapy reads the file with interpolation, where a percent sign is doubled.
    return {key: value.replace("%%", "%") for key, value in parser.items(name)}


def _find_unset_variables(written: Mapping[str, str]) -> dict[str, str]:
    """Return `username` and `password` if they are only variables that are not set: key -> name."""
    unset: dict[str, str] = {}
    for key in ("username", "password"):
        match = _VARIABLE.match(written.get(key, ""))
        if match and match[1] not in os.environ:
            unset[key] = match[1]
    return unset


def _make_node(name: str, written: Mapping[str, str], root: Path) -> Node:
    values = _expand(written)
    section = f"[deploy:{name}]"
    url = values.get("url", "").strip()
    if not url:
        raise ConfigError(
            f"The target {section} of scrapy.cfg has no url. Give it a line like"
            " `url = http://web1:6800/`, or remove the section."
        )
    try:
        node = Node.parse(
            url,
            name=name,
            username=values.get("username") or None,
            password=values.get("password"),
            slots=read_slots(values.get("slots", "").strip()),
            verify=_read_yes_no("verify", values.get("verify", "yes")),
            ca=_find_ca_file(values.get("ca", "").strip(), root),
            project=values.get("project") or None,
            version=values.get("version") or None,
        )
    except ConfigError as e:
        raise ConfigError(f"The target {section} of scrapy.cfg: {e}") from e
    return with_netrc(replace(node, unset=_find_unset_variables(written)))


def read_slots(text: str) -> int | None:
    """Return the number of process slots that a text states, or None if it is empty.

    Raises:
        ConfigError: it is no whole number from 1 to `MOST_JOBS`.
    """
    if not text:
        return None
    is_number = text.isascii() and text.isdigit()
    if not is_number or not 0 < int(text[:9]) <= MOST_JOBS:
        shown = text[:9] + "…" * (len(text) > 9)
        raise ConfigError(
            f"slots = {shown!r} must be a whole number from 1 to {MOST_JOBS}: the jobs the node"
            " runs at once."
        )
    return int(text)


def _read_yes_no(key: str, text: str) -> bool:
    try:
        return configparser.ConfigParser.BOOLEAN_STATES[text.strip().lower()]
    except KeyError:
        raise ConfigError(f"{key} = {text!r} must be yes or no.") from None


def _find_ca_file(text: str, root: Path) -> str | None:
    if not text:
        return None
    file = root / Path(text).expanduser()
    if not file.is_file():
        raise ConfigError(
            f"ca = {text!r} names no file ({file} is not there). It holds the certificates to"
            " trust."
        )
    return str(file)


def _describe_syntax_error(error: configparser.Error) -> str:
    """Describe a syntax error without quoting any value."""
    if isinstance(error, configparser.DuplicateSectionError):
        return f"the section [{error.section}] comes twice, again in line {error.lineno}"
    if isinstance(error, configparser.DuplicateOptionError):
        return (
            f"in [{error.section}] the key {error.option!r} comes twice, again in line"
            f" {error.lineno}"
        )
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} stands before the first [section]"
    if isinstance(error, configparser.ParsingError):
        lines = ", ".join(str(number) for number, _ in error.errors)
        return f"line {lines} is neither a [section] nor `key = value`"
    return "it is no configuration file"
