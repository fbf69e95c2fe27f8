"""Read the lists of nodes of a crawl: in settings, scrapy.cfg, files, commands and the store."""

from __future__ import annotations

import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from scrapyd_dist.deploy import local_nodes

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.nodes import Node, NodeRecord, distinct_nodes
from scrapyd_dist.store.node_memory import up_to_date

from .crawl_request import CrawlRequest

logger = logging.getLogger(__name__)
#: how an entry begins that names a file with a list of nodes
FILE = "file:"
#: how an entry begins that names a command which prints such a list
COMMAND = "cmd:"
#: maximum number of characters that messages quote from a command's standard error
QUOTED = 300


class NodeSources:
    """Reads the lists of nodes of one crawl.

    Entries of DISTRIBUTED_NODES, else DISTRIBUTED_TARGET_HOSTS, else scrapy.cfg, else the local
    nodes. The nodes that were added to the store join, unless DISTRIBUTED_NODES has only names and
    addresses.
    """

    def __init__(self, request: CrawlRequest) -> None:
        self._options = request.options
        self._project = request.project
        self._store = request.store
        #: name of a list -> its stamp when it was read last, and its nodes then
        self._lists: dict[str, tuple[object, tuple[Node, ...]]] = {}
        #: name of a list that cannot be read now -> the error that was logged last
        self._errors: dict[str, str] = {}
        self._added: list[Node] = []  #: what `sdist nodes add` put into the store
        self._local_urls = set[str]()  #: of the local nodes that this crawl has used

    def read(self, records: Sequence[NodeRecord] = ()) -> tuple[Node, ...]:
        """Return the nodes that are listed now, each once, with the `records` of the store.

        ConfigError if a list cannot be read, and could not be before.
        """
        added = []
        for record in up_to_date(records, self._store, self._project.state):
            if not record.url:
                continue
            node = Node.parse(record.url, name=record.name)
            added.append(config.with_netrc(node))
        self._added = added
        listed = self._read_named()
        if not self._names_only():
            listed += self._added
        resolved: list[Node] = []
        for node in listed:
            resolved += self._resolve(node)
        nodes = distinct_nodes(resolved)
        if nodes or self._options.nodes:
            return nodes
        return self._read_local()

    def _read_local(self) -> tuple[Node, ...]:
        """Return the local nodes that run, and those that have died.

        A dead one is a node of the crawl all the same, which says that it is down; where all were
        dead before the crawl began, it starts new ones.
        """
        state = self._project.state
        running = local_nodes.running(state)
        dead = local_nodes.dead(state)
        if not running:
            dead = tuple(node for node in dead if node.url in self._local_urls)
        self._local_urls.update(node.url for node in running)
        return (*running, *dead)

    def _names_only(self) -> bool:
        """Return whether DISTRIBUTED_NODES is given, and has only names and addresses."""
        entries = self._options.nodes
        return bool(entries) and not any(entry.startswith((FILE, COMMAND)) for entry in entries)

    def _read_named(self) -> list[Node]:
        """Return the nodes of the first setting or file that names any."""
        options = self._options
        nodes: list[Node] = []
        if options.nodes:
            for entry in options.nodes:
                nodes += self._read_entry(entry)
            return nodes
        for address in options.target_hosts:
            nodes.append(config.with_netrc(Node.parse(address)))
        return nodes or list(self._read_targets())

    def _read_targets(self) -> tuple[Node, ...]:
        """Return the targets of the project itself.

        ConfigError if all are for projects with other settings modules.
        """
        if self._project.config is None:
            return ()
        root = self._project.root
        stamp = _stamp_of(root / "scrapy.cfg")
        return self._read_list("scrapy.cfg", stamp, lambda: _own_targets(root))

    def _read_entry(self, entry: str) -> tuple[Node, ...]:
        """Return the nodes of an entry of DISTRIBUTED_NODES: of a file or command, or a name's."""
        root = self._project.root
        if entry.startswith(FILE):
            path = root / Path(entry.removeprefix(FILE)).expanduser()
            read = partial(config.read_text, path, f"The list of nodes {path} (DISTRIBUTED_NODES)")
            stamp = _stamp_of(path)
            where = str(path)
        elif entry.startswith(COMMAND):
            command = entry.removeprefix(COMMAND)
            read = partial(_output_of, command, root, self._options.limits.request_timeout)
            stamp = self._period()
            where = f"the output of {_program_of(command)}"
        else:
            return self._find_named(entry)
        return self._read_list(
            entry, stamp, lambda: nodes_of(read(), where, self._known_nodes(), root)
        )

    def _find_named(self, entry: str) -> tuple[Node, ...]:
        """Return the nodes that a name, an address, or a pattern of names stands for.

        Of several projects in one scrapy.cfg, a pattern means the nodes of this one. ConfigError
        for a name of another project, NothingMatched for what is neither a name nor an address.
        """
        known = self._known_nodes()
        fitting = tuple(node for node in known if fnmatchcase(node.name, entry))
        if fitting:
            return fitting
        project_config = self._project.config
        if project_config is not None:
            targets = project_config.targets
            project_config.check_own(node for node in targets if fnmatchcase(node.name, entry))
        return (config.node_named(entry, known),)

    def _known_nodes(self) -> tuple[Node, ...]:
        """Return the nodes that have a name, the first of each name.

        A target that shares its node with one before it has a name of its own, too.
        """
        known = list(self._read_targets())
        if self._project.config is not None:
            known += filter(self._project.config.is_own, self._project.config.targets)
        known += self._added
        known += local_nodes.running(self._project.state)
        known += local_nodes.dead(self._project.state)
        first: dict[str, Node] = {}
        for node in known:
            first.setdefault(node.name, node)
        return tuple(first.values())

    def _resolve(self, node: Node) -> tuple[Node, ...]:
        """Return the node itself, or one for each address of its name."""
        if not node.lookup:
            return (node,)
        return self._read_list(
            f"the addresses of {node.host}",
            (node.url, self._period()),
            lambda: config.addresses_of(node),
        )

    def _period(self) -> int:
        """Return a value that changes when commands and names are to be asked again."""
        return int(time.monotonic() // self._options.nodes_every)

    def _read_list(
        self, name: str, stamp: object, read: Callable[[], tuple[Node, ...]]
    ) -> tuple[Node, ...]:
        """Return the nodes of a list, which is read again only when its stamp is another one."""
        earlier = self._lists.get(name)
        if earlier is not None and earlier[0] == stamp:
            return earlier[1]
        try:
            nodes = read()
        except ConfigError as error:
            if earlier is None:
                raise
            if self._errors.get(name) != str(error):
                logger.warning("%s The crawl goes on with the nodes that it named before.", error)
            self._errors[name] = str(error)
            nodes = earlier[1]
        else:
            self._errors.pop(name, None)
        self._lists[name] = (stamp, nodes)
        return nodes


def _own_targets(root: Path) -> tuple[Node, ...]:
    """Return the targets of scrapy.cfg for this project; ConfigError if all are for others."""
    found = config.load(root)
    own = found.own_targets
    if not own:
        found.check_own(found.targets)
    return own


def nodes_of(text: str, where: str, targets: Sequence[Node], root: Path) -> tuple[Node, ...]:
    """Return the nodes of a list: sections as in scrapy.cfg, or one node per line.

    A line is the name of a target of scrapy.cfg, or an address; behind it there may be `name=…` and
    `slots=…`, and behind a # anything. Relative paths in sections start from `root`. ConfigError if
    a line makes no sense: the text names the list as `where`, and quotes nothing but a name.
    """
    lines = []
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("[") and line.endswith("]"):
            return config.targets_in(text, where, root)
        lines.append(line)
    found = []
    for number, line in enumerate(lines, 1):
        if line:
            try:
                found.append(_read_line(line, targets))
            except (ConfigError, NothingMatched) as error:
                raise ConfigError(f"{where}, line {number}: {error}") from None
    return tuple(found)


def _read_line(line: str, targets: Sequence[Node]) -> Node:
    """Return the node of a line; ConfigError if the line makes no sense."""
    address, *words = line.split()
    pairs = {}
    for word in words:
        name, _, value = word.partition("=")
        pairs[name] = value
    has_bare_words = not all("=" in word for word in words)
    is_repeated = len(pairs) < len(words)
    if has_bare_words or is_repeated or pairs.keys() - {"name", "slots"}:
        raise ConfigError(
            "behind the address there can be name=NAME and slots=N, and nothing else."
        )
    node = config.node_named(address, targets)
    slots = config.read_slots(pairs.get("slots", "")) or node.slots
    return replace(node, name=pairs.get("name") or node.name, slots=slots)


def _stamp_of(path: Path) -> object:
    """Return a value that changes with the file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _output_of(command: str, folder: Path, timeout: float) -> str:
    """Return what a command prints.

    ConfigError if it cannot be run, takes too long, or ends with another code than 0.
    """
    what = f"The command that lists nodes, {_program_of(command)} (DISTRIBUTED_NODES),"
    if not command.strip():
        raise ConfigError(f"There is no command behind {COMMAND} (--node, DISTRIBUTED_NODES).")
    try:
        done = subprocess.run(
            shlex.split(command),
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what} did not end within {timeout:g} s.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what} cannot be run: {error}.") from error
    if done.returncode:
        message = " ".join(done.stderr.split())[:QUOTED] or "nothing on standard error"
        raise ConfigError(f"{what} ended with code {done.returncode} and said: {message}.")
    return done.stdout


def _program_of(command: str) -> str:
    """Return how a command may be called in public: its arguments may hold a secret."""
    return (command.split() or [""])[0]
