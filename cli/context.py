"""What a command works on: the project, its store, its nodes and the sender. Each is opened at its first use.

The rule it keeps: looking makes no store, and no address is ever shown with its password.
"""

import ast
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from scrapyd_dist.errors import (
    ApiRefused,
    ConfigError,
    DistError,
    ForeignRow,
    NodeError,
    NoNodeReachable,
    NothingMatched,
)
from scrapyd_dist.keys import known_key, state_key
from scrapyd_dist.nodes import Node, NodeRecord, check_project, distinct, is_address, names_of
from scrapyd_dist.payload import PayloadError, RequestValue, decode
from scrapyd_dist.python_process import command_of_code
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.jobs import crawl_in, is_others
from scrapyd_dist.settings import SETTINGS
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE, is_url
from scrapyd_dist.store.address import chosen as store_address
from scrapyd_dist.store.node_memory import up_to_date
from scrapyd_dist.transports import CONNECT_TIMEOUT, Sender, sweep

from .output import say

S = TypeVar("S", Store, Store | None)
SETTING = "DISTRIBUTED_STORE"
#: the variable of the environment with the nodes of a command, in place of those of scrapy.cfg
NODES = "SDIST_NODES"
#: characters of a pattern
GLOB = frozenset("*?[")
#: of the [sdist] section in scrapy.cfg
OPTION = "store"


def where(root: Path) -> str:
    """The address of the project's store: a server's URL, or a file's absolute path.

    The environment goes before scrapy.cfg's `[sdist] store`, and that before DISTRIBUTED_STORE in the settings, which
    is refused where it is computed.
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
            f"{SETTING} in {project.settings_module} is computed, and a command does not run your settings to look for"
            f" a crawl. Put the store's address into the environment ({VARIABLE}), or into scrapy.cfg:"
            f" [{OWN_SECTION}] with {OPTION} = $NAME_OF_A_VARIABLE."
        )
    return store_address(root, value.value)


def written_names(root: Path, module: str) -> list[str]:
    """The names that a settings module gives values to, outside of blocks; it is read, not imported."""
    found = []
    for node in _statements(root, module):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        found += [target.id for target in targets if isinstance(target, ast.Name)]
    return found


def written_setting(root: Path, module: str, name: str) -> ast.expr | None:
    """The value that a settings module gives a name last. It is read, not imported: that could take seconds, or fail.

    None where the module does not name it, or cannot be read; the command that loads the settings says why.
    """
    value: ast.expr | None = None
    for node in _statements(root, module):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = node.value or value
    return value


def _statements(root: Path, module: str) -> list[ast.Assign | ast.AnnAssign]:
    """The assignments of a module of the project; none if it cannot be read."""
    path = root.joinpath(*module.split("."))
    source = next(
        (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None
    )
    try:
        body = ast.parse(source.read_bytes()).body if source else []
    except (OSError, ValueError, SyntaxError):
        return []
    return [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]


def maybe_store(root: Path) -> Store | None:
    """The project's store, or None when nothing was ever kept there; a server is always there."""
    address = where(root)
    if is_url(address):
        # Where the project has no key, nothing on a server can be its own, and any other key says so as well.
        return open_store(address, key=known_key(state_folder(root)) or secrets.token_bytes(32))
    return open_store(address, key=key_of(root)) if Path(address).exists() else None


def project_store(root: Path) -> Store:
    """The project's store; made, with the state folder, when there is none."""
    return open_store(where(root), key=key_of(root))


def key_of(root: Path) -> bytes:
    """The key that what must be hidden is encrypted with."""
    return state_key(state_dir(root))


def requests_in(store: Store, root: Path, frontier: str, batch: Batch) -> list[RequestValue]:
    """The requests of a batch; ConfigError where they are encrypted with a key that is not this folder's."""
    try:
        return decode(store.payload(frontier, batch.number).get, key=key_of(root))
    except ForeignRow as error:
        raise ConfigError(str(error)) from None
    except PayloadError as error:
        raise ConfigError(
            f"Batch {batch.number} of {frontier} cannot be read here: {error}. What is more than an address is"
            f" encrypted with the key in {root / STATE_FOLDER}; run this in the folder of the project that"
            " filled the frontier."
        ) from error


#: prints the project's name as JSON, whatever characters it has
_BOT_NAME = (
    "import json; from scrapy.utils.project import get_project_settings as settings;"
    " print(json.dumps(str(settings()['BOT_NAME'])))"
)
#: seconds that the project's settings may take to load
SETTINGS_TIMEOUT = 60


def project_name(project: ProjectConfig, nodes: Sequence[Node], chosen: str | None) -> str:
    """Scrapyd's name of the project: chosen, else that of [deploy] or of all targets, else BOT_NAME of the settings."""
    known = chosen or project.project
    if known:
        return check_project(known)
    names = [node.project for node in nodes if node.project]
    if names and len(names) == len(nodes):
        return names[0]
    if not project.settings_module:
        raise ConfigError(
            "There is no scrapy.cfg here that names the project: add -p NAME, or set SDIST_PROJECT."
        )
    lines, why = with_settings(project.root, _BOT_NAME)
    if why or not lines:
        raise ConfigError(
            f"The project's name is its BOT_NAME, and the settings cannot be loaded: {why or 'it is empty'}. Correct"
            " them, or name the project with -p, or by `project = NAME` in [deploy] of scrapy.cfg."
        )
    return check_project(str(json.loads(lines[-1])))


def code_of_setting(name: str) -> str:
    """Code that prints a setting of the project, as `scrapy settings --get` does."""
    return f"from scrapy.cmdline import execute; execute(['scrapy', 'settings', '--get', {name!r}])"


def with_settings(root: Path, code: str) -> tuple[list[str], str]:
    """Run Python code that loads the project's settings, in a process of its own: that runs the project's code.

    Gives the lines of its output, and the reason when it failed.
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
    why = (
        (done.stderr.strip().splitlines() or ["it gave no reason"])[-1].rstrip(".")
        if done.returncode
        else ""
    )
    return done.stdout.strip().splitlines(), why


def exit_code(total: int, found: Iterable[DistError | None]) -> int:
    """The exit code of a command that asked all nodes: 0, 3 when some failed, else what kept all of them away."""
    errors = [error for error in found if error is not None]
    if not errors:
        return 0
    if len(errors) < total:
        return 3
    # A node that answered and said no has more to tell than those that did not answer.
    told = [
        error
        for error in errors
        if isinstance(error, ApiRefused) or not isinstance(error, NodeError)
    ]
    if told:
        return told[0].exit_code
    return 6 if any(error.exit_code == 6 for error in errors) else NoNodeReachable.exit_code


def must_answer(total: int, found: Iterable[NodeError | None]) -> None:
    """Where nothing can be said without an answer: raises why there is none, in one paragraph."""
    errors = [error for error in found if error is not None]
    if not errors or len(errors) < total:
        return
    code, texts = exit_code(total, errors), list(dict.fromkeys(map(str, errors)))
    kind = next((type(error) for error in errors if error.exit_code == code), NoNodeReachable)
    raise kind(" ".join(texts if len(texts) == 1 else ["No node answered.", *texts]))


def quick_project(found: ProjectConfig, chosen: str | None = None) -> str | None:
    """Scrapyd's name of the project, where it can be told without running the project's code."""
    if known := chosen or found.project:
        return known
    value = written_setting(found.root, found.settings_module, "BOT_NAME")
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def versions_by_job(
    crawls: Iterable[Crawl], workers: Iterable[WorkerEntry] = ()
) -> Callable[[str], str | None]:
    """Tells the version of a job of these crawls by its id: of an attempt, a row, or a worker; None for every other."""
    versions: dict[str, str | None] = {}
    elsewhere = {worker.job: worker.version for worker in workers if worker.version}
    homes = dict[str, str]()
    for crawl in crawls:
        homes[crawl.id] = home_of(crawl.id, crawl.created)
        # Of a crawl that went on with other code, a job may run either.
        versions[crawl.id] = None if crawl.options.get("earlier_versions") else crawl.version

    def version_of(job: str) -> str | None:
        ours = crawl_in(job)
        return (
            None
            if ours is None or is_others(job, homes)
            else elsewhere.get(job) or versions.get(ours)
        )

    return version_of


class Context:
    """The project of the current folder, or of the given one; a command gets it by a parameter of this type."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._nodes_are_named = bool(os.environ.get(NODES))
        self._store: Store | None = None
        self._knows_key = (
            True  #: the store was opened with the project's key, not with one that only looks
        )
        self._opened: list[Store] = []
        self.told = set[str]()  #: what was said once, and need not be said again

    def close(self) -> None:
        for store in self._opened:
            store.close()

    @cached_property
    def project(self) -> ProjectConfig:
        """The project's configuration; ConfigError if there is no project here, or its scrapy.cfg is wrong.

        Where all nodes are named by their addresses, there need not be a project, and what it would say is empty.
        """
        if self._nodes_are_named and find_root(self._folder) is None:
            return ProjectConfig(
                root=self._folder or Path.cwd(), settings_module="", targets=(), project=None
            )
        return load(self._folder)

    @property
    def root(self) -> Path:
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
        """The project's store, for a command that reads; NothingMatched if no crawl was ever started here."""
        store = self.store_if_any
        if store is None:
            raise NothingMatched(
                f"There are no crawls in {self.root} yet. `sdist crawl SPIDER` starts one."
            )
        return store

    @property
    def new_store(self) -> Store:
        """The project's store, for a command that writes: made, with the state folder, where there is none."""
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
        return self.sender_within(CONNECT_TIMEOUT)

    def sender_within(self, connect_timeout: float) -> Sender:
        """A sender that gives up where no connection comes about within these seconds."""
        from scrapyd_dist.transports.requests import RequestsTransport

        return RequestsTransport(connect_timeout=connect_timeout)

    @property
    def added(self) -> tuple[Node, ...]:
        """The nodes that `sdist nodes add` put into the store."""
        store = self.store_if_any
        known = store.nodes() if store is not None else ()
        records = up_to_date(known, where(self.root), state_folder(self.root)) if known else ()
        return tuple(with_netrc(Node.parse(one.url, name=one.name)) for one in records if one.url)

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
        nodes = distinct(self._all)
        return (
            nodes
            if os.environ.get(NODES)
            else tuple(self._own.get(node.url, node) for node in nodes)
        )

    @cached_property
    def _all(self) -> tuple[Node, ...]:
        """The node of each target, which may be several for different projects."""
        chosen = os.environ.get(NODES, "").split()
        return self._of(chosen) if chosen else self._listed

    @cached_property
    def _listed(self) -> tuple[Node, ...]:
        return self._looked_up((*self.project.targets, *self.added)) or self.local_nodes

    @cached_property
    def _own(self) -> dict[str, Node]:
        """The targets of the project itself, by url."""
        return {node.url: node for node in self._looked_up(self.project.own_targets)}

    @staticmethod
    def _looked_up(nodes: Iterable[Node]) -> tuple[Node, ...]:
        return tuple(
            one for node in nodes for one in (addresses_of(node) if node.lookup else (node,))
        )

    def nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """The nodes that these names, globs and addresses mean, each once; without patterns all of them.

        ConfigError where there is no node at all, NothingMatched where a pattern means none.
        """
        found = self.targets(patterns)
        return distinct(found) if patterns else self.all_nodes

    def own_nodes(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """`nodes`, for a command that starts the project's code: without patterns, those of the project's own targets.

        ConfigError where scrapy.cfg has targets, and all of them are for projects with other settings modules.
        """
        nodes = self.nodes(patterns)
        targets = self.project.targets
        if patterns or os.environ.get(NODES) or not targets:
            return nodes
        if not self._own:
            self.project.check_own(targets)
        others = {node.url for node in self._looked_up(targets)} - self._own.keys()
        return tuple(node for node in nodes if node.url not in others)

    def targets(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """What these names, globs and addresses mean, without patterns everything that is listed; errors as of `nodes`.

        A node comes once for each of its targets: they may be for different projects.
        """
        addresses = bool(patterns) and all(map(is_address, patterns or ()))
        self._nodes_are_named |= addresses
        if not addresses and not self.all_nodes:
            raise ConfigError(
                f"{self.root / 'scrapy.cfg'} names no node, and no local one runs. Add a section such as [deploy:node1]"
                " with url = http://web1:6800/, or start nodes on this machine: sdist nodes up 3."
            )
        return self._of(patterns) if patterns else self._all

    def _of(self, patterns: Sequence[str]) -> tuple[Node, ...]:
        targets = self.project.targets
        # two targets may have one url: each of their names will do
        named = (
            *(node for node in targets if not node.lookup),
            *(node for node in self._listed if node not in targets),
        )
        unknown = [
            text for text in patterns if not any(fnmatchcase(node.name, text) for node in named)
        ]
        there = [node_named(text, named) for text in unknown]
        return (
            *(node for node in named if any(fnmatchcase(node.name, text) for text in patterns)),
            *there,
        )

    def nodes_if_any(self, patterns: Sequence[str] | None = None) -> tuple[Node, ...]:
        """`nodes`, for a command that also tells what the store remembers: with a word, none where there is none."""
        if patterns or self.all_nodes or self.store_if_any is None:
            return self.nodes(patterns)
        say(
            f"{self.root / 'scrapy.cfg'} names no node, and no local one runs: this is what the store remembers."
        )
        return ()

    def nodes_now(self) -> tuple[Node, ...]:
        """`nodes`, for a command that stays: scrapy.cfg, and which local nodes run, are read again."""
        fresh = Context(self._folder)
        fresh._store = self.store_if_any
        return fresh.nodes()

    def project_nodes(
        self, patterns: Sequence[str] | None, name: str | None
    ) -> tuple[str, tuple[Node, ...], dict[str, float]]:
        """The project's name on the nodes, the nodes, and `known_times`; a name that was asked for goes first."""
        nodes = self.nodes(patterns) if name else self.own_nodes(patterns)
        name = self.one_project(name, nodes)
        found = project_name(self.project, nodes, name)
        nodes = tuple(replace(node, project=name) for node in nodes) if name is not None else nodes
        return found, nodes, self.known_times(nodes, found)

    def one_project(self, pattern: str | None, nodes: Sequence[Node]) -> str | None:
        """Return the one project of the nodes that a pattern as in 'shop*' means; a plain name is returned as it is.

        Raises:
            NothingMatched: no node that answers has such a project.
            ConfigError: there are several.
        """
        if pattern is None or not GLOB & {*pattern}:
            return pattern
        answers = sweep(
            nodes, lambda node: self.sender.send(node, api.listprojects(), timeout=api.TIMEOUT)
        )
        names = {
            name for answer in answers for name in answer.value or () if fnmatchcase(name, pattern)
        }
        if not names:
            raise NothingMatched(
                f"No node that answers has a project {pattern}. `sdist code projects` lists them."
            )
        if len(names) > 1:
            raise ConfigError(
                f"-p {pattern} means several projects: {', '.join(sorted(names))}. A command is for one project: type"
                " it once for each."
            )
        return names.pop()

    def nodes_or_all(
        self, patterns: Sequence[str] | None, *, everyone: bool, verb: str
    ) -> tuple[Node, ...]:
        """The nodes that these names and globs mean, or all of them; refused without one of the two, or with both."""
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

        urls = {node.url for node in (*self.project.targets, *self.added)}
        idle = [node for node in self.local_nodes if urls and node.url not in urls]
        if idle:
            these = (
                f" To use these again: sdist nodes remove {names_of(self.added, ' ')}."
                if self.added
                else ""
            )
            say(
                f"Note: local nodes run that get no work ({names_of(idle)}): they are used only where scrapy.cfg and"
                " `sdist nodes add` name no other. To use both, give each a section in scrapy.cfg, such as"
                f" [deploy:{idle[0].name}] with url = {idle[0].url}, username = {idle[0].username} and its password,"
                f" which is in {list_path(self.root / STATE_FOLDER)}; or stop them: sdist nodes down."
                f"{'' if self.project.targets else these}"
            )

    def known_times(self, nodes: Iterable[Node], project: str | None) -> dict[str, float]:
        """When versions were sent from here whose names do not tell it: name -> seconds since the epoch."""
        names = {name for name in (project, *(node.project for node in nodes)) if name}
        return {
            egg.version: egg.at
            for name in names
            for egg in kept_eggs(state_folder(self.root), name)
        }

    @property
    def keep_days(self) -> float:
        """Days for which plain jobs are remembered."""
        return self.written_number("DISTRIBUTED_KEEP_DAYS")

    def written_number(self, name: str) -> float:
        """A setting, where settings.py says it as a plain number; else its default."""
        row = SETTINGS[name]
        found = written_setting(self.root, self.project.settings_module, row.name)
        value = found.value if isinstance(found, ast.Constant) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            return float(row.default)
        return float(value)

    def version_lookup(self) -> Callable[[str], str | None]:
        """Tells the version of a job of one of the project's crawls by its id; None for every other job."""
        store = self.store_if_any
        if store is None:
            return lambda _: None
        crawls = store.crawls()
        return versions_by_job(
            crawls, [worker for crawl in crawls for worker in store.workers(crawl.id)[0]]
        )

    def node_records(self, nodes: Iterable[Node]) -> dict[str, NodeRecord]:
        """What the store remembers of these nodes, by the node's name; nothing but the name of one that it has not."""
        store = self.store_if_any
        known = {record.name: record for record in store.nodes()} if store is not None else {}
        first = self._first_names
        return {
            node.name: known.get(first.get(node.name, node.name)) or NodeRecord(name=node.name)
            for node in nodes
        }

    @cached_property
    def _first_names(self) -> dict[str, str]:
        """The name of each target -> that of the first one at the same url, by which its node is remembered."""
        names: dict[str, str] = {}
        for node in self.project.targets:
            names.setdefault(node.url, node.name)
        return {node.name: names[node.url] for node in self.project.targets}

    def remember(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep these fields of these nodes in the store; without any, no store is made."""
        if not changes:
            return
        store = self.new_store
        before = {record.name: record.changed for record in store.nodes()}
        for name, fields in changes.items():
            # Also where a clock was put back, what was said last is the newest.
            first = self._first_names.get(name, name)
            now = (
                {"changed": max(time.time(), before.get(first, 0.0) + 0.001)}
                if "url" in fields
                else {}
            )
            store.update_node(first, **now, **fields)
        self.added
