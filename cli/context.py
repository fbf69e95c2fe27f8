"""Opens what a command works on, at its first use: the project, its store, nodes and sender.

The rule it keeps: looking makes no store, and no address is ever shown with its password.
"""

import ast
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from scrapyd_dist.deploy.kept_eggs import kept_eggs

from scrapyd_dist.batches import Batch, Crawl, WorkerEntry, home_of
from scrapyd_dist.config import (
    OWN_SECTION,
    STATE_FOLDER,
    ProjectConfig,
    addresses_of,
    find_root,
    load,
    node_named,
    state_dir,
    state_folder,
    with_netrc,
)
from scrapyd_dist.errors import ConfigError, ForeignRow, NothingMatched
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.keys import known_key, state_key
from scrapyd_dist.nodes import (
    Node,
    NodeRecord,
    check_project,
    distinct_nodes,
    is_address,
    names_of,
    nodes_by_url,
)
from scrapyd_dist.payload import PayloadError, RequestValue, decode
from scrapyd_dist.python_process import command_of_code
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.jobs import crawl_in, is_others
from scrapyd_dist.settings import SETTINGS
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE, is_url, store_address
from scrapyd_dist.store.node_memory import up_to_date
from scrapyd_dist.transports import CONNECT_TIMEOUT, Sender, sweep

from .output import PrintingMessenger, say

S = TypeVar("S", Store, Store | None)
#: the setting with the store's address
SETTING = "DISTRIBUTED_STORE"
#: the variable of the environment with the nodes of a command, in place of those of scrapy.cfg
NODES = "SDIST_NODES"
#: characters of a pattern
GLOB = frozenset("*?[")
#: the key with the store's address, of the [sdist] section in scrapy.cfg
OPTION = "store"
#: seconds that the project's settings may take to load
SETTINGS_TIMEOUT = 60
#: prints the project's name as JSON, whatever characters it has
_BOT_NAME = (
    "import json; from scrapy.utils.project import get_project_settings as settings;"
    " print(json.dumps(str(settings()['BOT_NAME'])))"
)


def where(root: Path) -> str:
    """Return the address of the project's store: a server's URL, or a file's absolute path.

    The environment goes before scrapy.cfg's `[sdist] store`, and that before DISTRIBUTED_STORE in
    the settings; ConfigError where that is computed.
    """
    if os.environ.get(VARIABLE) or not (root / "scrapy.cfg").is_file():
        return store_address(root)
    try:
        project = load(root)
    except ConfigError:
        return store_address(root)  # a command that needs more of the project reports it
    if project.options.get(OPTION):
        return store_address(root, project.options[OPTION])
    value = written_setting(root, project.settings_module, SETTING)
    if value is None:
        return store_address(root)
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str | None):
        raise ConfigError(
            f"{SETTING} in {project.settings_module} is computed, and a command does not run your"
            " settings to look for a crawl. Put the store's address into the environment"
            f" ({VARIABLE}), or into scrapy.cfg: [{OWN_SECTION}] with {OPTION} ="
            " $NAME_OF_A_VARIABLE."
        )
    return store_address(root, value.value)


def written_names(root: Path, module: str) -> list[str]:
    """Return the names that a settings module gives values to, outside of blocks.

    The module is read, not imported.
    """
    return [name for name, _ in _assignments(root, module)]


def written_setting(root: Path, module: str, name: str) -> ast.expr | None:
    """Return the value that a settings module gives a name last.

    The module is read, not imported: that could take seconds, or fail. None where it does not give
    the name a value, or cannot be read; the command that loads the settings says why.
    """
    last: ast.expr | None = None
    for written, value in _assignments(root, module):
        if written == name:
            last = value or last
    return last


def _assignments(root: Path, module: str) -> Iterator[tuple[str, ast.expr | None]]:
    """Generate the assignments of a module of the project, outside of blocks: name and value.

    The value is None for a name that has only an annotation.
    """
    for node in _statements(root, module):
        targets: Sequence[ast.expr] = ()
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets = node.targets
            value = node.value
        elif isinstance(node, ast.AnnAssign):
            targets = (node.target,)
            value = node.value
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, value


def _statements(root: Path, module: str) -> list[ast.stmt]:
    """Return the statements of a module of the project; none if it cannot be read."""
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            try:
                return ast.parse(file.read_bytes()).body
            except (OSError, ValueError, SyntaxError):
                return []
    return []


def maybe_store(root: Path) -> Store | None:
    """Return the project's store, or None if nothing was ever kept there.

    A server is always there.
    """
    address = where(root)
    if is_url(address):
        # Where the project has no key, nothing on a server can be its own, and any other key says
        # so as well.
        return open_store(address, key=known_key(state_folder(root)) or secrets.token_bytes(32))
    if not Path(address).exists():
        return None
    return open_store(address, key=key_of(root))


def project_store(root: Path) -> Store:
    """Return the project's store; it is made, with the state folder, when there is none."""
    return open_store(where(root), key=key_of(root))


def key_of(root: Path) -> bytes:
    """Return the key that what must be hidden is encrypted with."""
    return state_key(state_dir(root))


def requests_in(store: Store, root: Path, frontier: str, batch: Batch) -> list[RequestValue]:
    """Return the requests of a batch of a frontier.

    Raises:
        ConfigError: they are encrypted with a key that is not this folder's.
    """
    try:
        return decode(store.payload(frontier, batch.number).get, key=key_of(root))
    except ForeignRow as error:
        raise ConfigError(str(error)) from None
    except PayloadError as error:
        raise ConfigError(
            f"Batch {batch.number} of {frontier} cannot be read here: {error}. What is more than an"
            f" address is encrypted with the key in {root / STATE_FOLDER}; run this in the folder"
            " of the project that filled the frontier."
        ) from error


def project_name(project: ProjectConfig, nodes: Sequence[Node], chosen: str | None) -> str:
    """Return Scrapyd's name of the project.

    That is the chosen one, else that of [deploy] or of all targets, else BOT_NAME of the settings;
    ConfigError if there is none.
    """
    named = chosen or project.project
    if named:
        return check_project(named)
    common = _common_project(nodes)
    if common:
        return common
    if not project.settings_module:
        raise ConfigError(
            "There is no scrapy.cfg here that names the project: add -p NAME, or set SDIST_PROJECT."
        )
    lines, why = with_settings(project.root, _BOT_NAME)
    if why or not lines:
        raise ConfigError(
            "The project's name is its BOT_NAME, and the settings cannot be loaded:"
            f" {why or 'it is empty'}. Correct them, or name the project with -p, or by `project ="
            " NAME` in [deploy] of scrapy.cfg."
        )
    return check_project(str(json.loads(lines[-1])))


def _common_project(nodes: Sequence[Node]) -> str | None:
    """Return the project of the first node, if all nodes have one."""
    if not nodes:
        return None
    for node in nodes:
        if not node.project:
            return None
    return nodes[0].project


def code_of_setting(name: str) -> str:
    """Return code that prints a setting of the project, as `scrapy settings --get` does."""
    return f"from scrapy.cmdline import execute; execute(['scrapy', 'settings', '--get', {name!r}])"


def with_settings(root: Path, code: str) -> tuple[list[str], str]:
    """Run Python code that loads the project's settings, and so runs the project's code.

    It runs in a process of its own. Returns the lines of its output, and the reason if it failed.
    """
    try:
        done = subprocess.run(
            command_of_code(code),
            cwd=root,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=SETTINGS_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return [], f"they did not load within {SETTINGS_TIMEOUT} seconds"
    lines = done.stdout.strip().splitlines()
    if not done.returncode:
        return lines, ""
    reasons = done.stderr.strip().splitlines() or ["it gave no reason"]
    return lines, reasons[-1].rstrip(".")


def quick_project(found: ProjectConfig, chosen: str | None = None) -> str | None:
    """Return Scrapyd's name of the project, if it is known without running the project's code."""
    known = chosen or found.project
    if known:
        return known
    value = written_setting(found.root, found.settings_module, "BOT_NAME")
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    return None


def versions_by_job(
    crawls: Iterable[Crawl], workers: Iterable[WorkerEntry] = ()
) -> Callable[[str], str | None]:
    """Return what gives the version of a job of these crawls by its id.

    The job may be an attempt, a row, or a worker; for every other job it gives None.
    """
    versions: dict[str, str | None] = {}
    homes: dict[str, str] = {}
    for crawl in crawls:
        homes[crawl.id] = home_of(crawl.id, crawl.created)
        versions[crawl.id] = crawl.version
        if crawl.options.get("earlier_versions"):
            # The crawl went on with other code, and a job may run either.
            versions[crawl.id] = None
    of_workers: dict[str, str] = {}
    for worker in workers:
        if worker.version:
            of_workers[worker.job] = worker.version

    def version_of(job: str) -> str | None:
        crawl_name = crawl_in(job)
        if crawl_name is None or is_others(job, homes):
            return None
        return of_workers.get(job) or versions.get(crawl_name)

    return version_of


class Context:
    """The project of the current folder, or of the given one.

    A command gets it by a parameter of this type.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._nodes_are_named = bool(os.environ.get(NODES))
        self._store: Store | None = None
        #: the store was opened with the project's key, not with one that only looks
        self._knows_key = True
        self._opened: list[Store] = []
        self.messenger = PrintingMessenger()

    def close(self) -> None:
        """Close the stores that were opened."""
        for store in self._opened:
            store.close()

    @cached_property
    def project(self) -> ProjectConfig:
        """The project's configuration; ConfigError if there is none here, or scrapy.cfg is wrong.

        Where all nodes are named by their addresses, there need not be a project, and what it would
        say is empty.
        """
        if self._nodes_are_named and find_root(self._folder) is None:
            return ProjectConfig(
                root=self._folder or Path.cwd(), settings_module="", targets=(), project=None
            )
        return load(self._folder)

    @property
    def root(self) -> Path:
        """The folder of the project."""
        return self.project.root

    @property
    def store_if_any(self) -> Store | None:
        """The project's store; None where nothing was ever kept. Looking makes no store."""
        if self._store is None:
            self._knows_key = known_key(state_folder(self.root)) is not None
            self._keep(maybe_store(self.root))
        return self._store

    @property
    def store(self) -> Store:
        """The project's store, for a command that reads; NothingMatched if there is none."""
        store = self.store_if_any
        if store is None:
            raise NothingMatched(
                f"There are no crawls in {self.root} yet. `sdist crawl SPIDER` starts one."
            )
        return store

    @property
    def new_store(self) -> Store:
        """The project's store, for a command that writes: made where there is none."""
        if self._store is None or not self._knows_key:
            # What is signed with a key that is thrown away would be believed by nobody.
            self._knows_key = True
            return self._keep(project_store(self.root))
        return self._store

    def _keep(self, store: S) -> S:
        self._store = store
        if store is not None:
            self._opened.append(store)
        return store

    @cached_property
    def sender(self) -> Sender:
        """What sends calls to nodes."""
        return self.sender_within(CONNECT_TIMEOUT)

    @cached_property
    def job_site(self) -> JobSite:
        """What the project's jobs are found and judged with.

        It is to be asked for after the nodes: where these are addresses, no project is needed.
        """
        return JobSite(
            root=self.root,
            sender=self.sender,
            find_store=lambda: self.store_if_any,
            find_drained=self.drained,
            messenger=self.messenger,
        )

    def sender_within(self, connect_timeout: float) -> Sender:
        """Return a sender that gives up if no connection comes about within these seconds."""
        from scrapyd_dist.transports.requests import RequestsTransport

        return RequestsTransport(connect_timeout=connect_timeout)

    @property
    def added(self) -> tuple[Node, ...]:
        """The nodes that `sdist nodes add` put into the store."""
        return self._read_added()

    def _read_added(self) -> tuple[Node, ...]:
        store = self.store_if_any
        if store is None:
            return ()
        known = store.nodes()
        if not known:
            return ()
        nodes = []
        for record in up_to_date(known, where(self.root), state_folder(self.root)):
            if record.url:
                node = Node.parse(record.url, name=record.name)
                nodes.append(with_netrc(node))
        return tuple(nodes)

    @property
    def local_nodes(self) -> tuple[Node, ...]:
        """The nodes of `sdist nodes up` that run."""
        from scrapyd_dist.deploy.local_nodes import running

        return running(state_folder(self.root))

    @property
    def dead_local_nodes(self) -> tuple[Node, ...]:
        """The nodes of `sdist nodes up` whose process has ended without `sdist nodes down`."""
        from scrapyd_dist.deploy.local_nodes import dead

        return dead(self.root / STATE_FOLDER)

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes, each once; empty where none is named and no local one runs.

        A name that is to be looked up and has no address is a ConfigError.
        """
        nodes = distinct_nodes(self._all)
        if os.environ.get(NODES):
            return nodes
        return tuple(self._own.get(node.url, node) for node in nodes)

    @cached_property
    def _all(self) -> tuple[Node, ...]:
        """The node of each target, which may be several for different projects."""
        chosen = os.environ.get(NODES, "").split()
        return self._matching(chosen) if chosen else self._listed

    @cached_property
    def _listed(self) -> tuple[Node, ...]:
        return self._looked_up((*self.project.targets, *self.added)) or self.local_nodes

    @cached_property
    def _own(self) -> dict[str, Node]:
        """The targets of the project itself, by url."""
        return nodes_by_url(self._looked_up(self.project.own_targets))

    @staticmethod
    def _looked_up(nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Return the nodes, with all its addresses in the place of one that is to be looked up."""
        found: list[Node] = []
        for node in nodes:
            if node.lookup:
                found += addresses_of(node)
            else:
                found.append(node)
        return tuple(found)

    def nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return the nodes that these names, globs and addresses mean, each once; or all nodes.

        Raises:
            ConfigError: there is no node at all.
            NothingMatched: a pattern means none.
        """
        found = self.targets(patterns)
        return distinct_nodes(found) if patterns else self.all_nodes

    def own_nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return `nodes`, for a command that starts the project's code.

        Without patterns these are the nodes of the project's own targets; ConfigError where
        scrapy.cfg has targets, and all of them are for projects with other settings modules.
        """
        nodes = self.nodes(patterns)
        targets = self.project.targets
        if patterns or os.environ.get(NODES) or not targets:
            return nodes
        if not self._own:
            self.project.check_own(targets)
        others = nodes_by_url(self._looked_up(targets)).keys() - self._own.keys()
        return tuple(node for node in nodes if node.url not in others)

    def targets(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return what these names, globs and addresses mean, without patterns all that is listed.

        A node comes once for each of its targets: they may be for different projects. Errors are
        those of `nodes`.
        """
        are_addresses = bool(patterns) and all(map(is_address, patterns or ()))
        self._nodes_are_named |= are_addresses
        if not are_addresses and not self.all_nodes:
            raise ConfigError(
                f"{self.root / 'scrapy.cfg'} names no node, and no local one runs. Add a section"
                " such as [deploy:node1] with url = http://web1:6800/, or start nodes on this"
                " machine: sdist nodes up 3."
            )
        return self._matching(patterns) if patterns else self._all

    def _matching(self, patterns: Sequence[str]) -> tuple[Node, ...]:
        """Return the nodes with names that fit, and those that stand for the other patterns."""
        named = self._named_nodes()
        found = []
        known = set[str]()  # patterns that fit the name of a node
        for node in named:
            fitting = [text for text in patterns if fnmatchcase(node.name, text)]
            known.update(fitting)
            if fitting:
                found.append(node)
        for text in patterns:
            if text in known:
                continue
            found.append(node_named(text, named))
        return tuple(found)

    def _named_nodes(self) -> list[Node]:
        # Two targets may have one url: each of their names will do.
        targets = self.project.targets
        named = [node for node in targets if not node.lookup]
        named += [node for node in self._listed if node not in targets]
        return named

    def nodes_if_any(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """Return `nodes`, for a command that also shows what the store remembers.

        Where no node is listed, that is said, and there is none.
        """
        if patterns or self.all_nodes or self.store_if_any is None:
            return self.nodes(patterns)
        say(
            f"{self.root / 'scrapy.cfg'} names no node, and no local one runs: this is what the"
            " store remembers."
        )
        return ()

    def nodes_now(self) -> tuple[Node, ...]:
        """Return `nodes`, for a command that stays: all that lists nodes is read again."""
        fresh = Context(self._folder)
        fresh._store = self.store_if_any
        return fresh.nodes()

    def project_nodes(
        self, patterns: Sequence[str] | None, name: str | None
    ) -> tuple[str, tuple[Node, ...], dict[str, float]]:
        """Return the project's name on the nodes, the nodes, and `known_times`.

        name: the name that was asked for, or a pattern; it goes before all others.
        """
        nodes = self.nodes(patterns) if name else self.own_nodes(patterns)
        name = self.one_project(name, nodes)
        found = project_name(self.project, nodes, name)
        if name is not None:
            nodes = tuple(replace(node, project=name) for node in nodes)
        return found, nodes, self.known_times(nodes, found)

    def one_project(self, pattern: str | None, nodes: Sequence[Node]) -> str | None:
        """Return the one project of the nodes that a pattern as in 'shop*' means.

        A plain name is returned as it is.

        Raises:
            NothingMatched: no node that answers has such a project.
            ConfigError: there are several.
        """
        if pattern is None or not GLOB & {*pattern}:
            return pattern
        names = set[str]()
        for answer in sweep(nodes, self._list_projects):
            for name in answer.value or ():
                if fnmatchcase(name, pattern):
                    names.add(name)
        if not names:
            raise NothingMatched(
                f"No node that answers has a project {pattern}. `sdist code projects` lists them."
            )
        if len(names) > 1:
            raise ConfigError(
                f"-p {pattern} means several projects: {', '.join(sorted(names))}. A command is for"
                " one project: type it once for each."
            )
        return names.pop()

    def _list_projects(self, node: Node) -> Sequence[str]:
        return self.sender.send(node, api.listprojects(), timeout=api.TIMEOUT)

    def nodes_or_all(
        self, patterns: Sequence[str] | None, *, everyone: bool, verb: str
    ) -> tuple[Node, ...]:
        """Return the nodes that these names and globs mean, or all of them.

        ConfigError without one of the two, or with both. verb: what is done to them.
        """
        if everyone and patterns:
            raise ConfigError(f"--all, and names of nodes to {verb}: one of the two has to go.")
        if not everyone and not patterns:
            raise ConfigError(
                f"Name the targets to {verb}, or globs like 'eu-*'. For all of them: --all."
            )
        return self.nodes(patterns)

    def note_unused_nodes(self) -> None:
        """Say which local nodes run and get no work, since others are named."""
        from scrapyd_dist.deploy.local_nodes import list_path

        added = self.added
        urls = nodes_by_url((*self.project.targets, *added))
        idle = [node for node in self.local_nodes if urls and node.url not in urls]
        if not idle:
            return
        to_use_again = ""
        if added and not self.project.targets:
            to_use_again = f" To use these again: sdist nodes remove {names_of(added, ' ')}."
        first = idle[0]
        say(
            f"Note: local nodes run that get no work ({names_of(idle)}): they are used only where"
            " scrapy.cfg and `sdist nodes add` name no other. To use both, give each a section in"
            f" scrapy.cfg, such as [deploy:{first.name}] with url = {first.url}, username ="
            f" {first.username} and its password, which is in"
            f" {list_path(self.root / STATE_FOLDER)}; or stop them: sdist nodes down.{to_use_again}"
        )

    def known_times(self, nodes: Iterable[Node], project: str | None) -> dict[str, float]:
        """Return when versions were sent from here, by their names, in seconds since the epoch.

        These are versions of this project and of those of the nodes.
        """
        names = {project}
        for node in nodes:
            names.add(node.project)
        times = {}
        for name in filter(None, names):
            for egg in kept_eggs(state_folder(self.root), name):
                times[egg.version] = egg.at
        return times

    @property
    def keep_days(self) -> float:
        """Days for which plain jobs are remembered."""
        return self.written_number("DISTRIBUTED_KEEP_DAYS")

    def written_number(self, name: str) -> float:
        """Return a setting, if settings.py gives it as a plain number; else its default."""
        row = SETTINGS[name]
        found = written_setting(self.root, self.project.settings_module, row.name)
        if not isinstance(found, ast.Constant) or isinstance(found.value, bool):
            return float(row.default)
        if not isinstance(found.value, int | float) or found.value < 0:
            return float(row.default)
        return float(found.value)

    def version_lookup(self) -> Callable[[str], str | None]:
        """Return what gives the version of a job of the project's crawls by its id.

        For every other job it gives None.
        """
        store = self.store_if_any
        if store is None:
            return lambda _: None
        crawls = store.crawls()
        workers: list[WorkerEntry] = []
        for crawl in crawls:
            workers += store.workers(crawl.id)[0]
        return versions_by_job(crawls, workers)

    def node_records(self, nodes: Iterable[Node]) -> dict[str, NodeRecord]:
        """Return what the store remembers of these nodes, by the node's name.

        Of a node that it does not have, the record has nothing but the name.
        """
        store = self.store_if_any
        known: dict[str, NodeRecord] = {}
        for record in store.nodes() if store is not None else ():
            known[record.name] = record
        records = {}
        for node in nodes:
            first = self._first_names.get(node.name, node.name)
            records[node.name] = known.get(first) or NodeRecord(name=node.name)
        return records

    def drained(self, nodes: Sequence[Node]) -> list[Node]:
        """Return those of the nodes that get no new work."""
        records = self.node_records(nodes)
        return [node for node in nodes if records[node.name].draining is not None]

    @cached_property
    def _first_names(self) -> dict[str, str]:
        """The name of each target -> that of the first one at the same url.

        A node is remembered by that name.
        """
        by_url: dict[str, str] = {}
        names = {}
        for node in self.project.targets:
            names[node.name] = by_url.setdefault(node.url, node.name)
        return names

    def remember(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep these fields of these nodes, by name, in the store; without any, none is made."""
        if not changes:
            return
        store = self.new_store
        before = {}
        for record in store.nodes():
            before[record.name] = record.changed
        for name, fields in changes.items():
            first = self._first_names.get(name, name)
            values: dict[str, Any] = {}
            if "url" in fields:
                # Also where a clock was put back, what was said last is the newest.
                values["changed"] = max(time.time(), before.get(first, 0.0) + 0.001)
            store.update_node(first, **values, **fields)
        self._read_added()  # which keeps a copy in the state folder
