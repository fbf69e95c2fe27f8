"""Starts and stops real Scrapyd nodes on this machine, and keeps the list of them.

They outlive the program that starts them. The list has passwords and is readable by its owner only.
A node leads a process group of its own and works in a folder of its own. Process ids are used
again, so a process is signalled only if its id and its folder are those of the node.
"""

import fcntl
import importlib.resources
import json
import os
import secrets
import signal
import socket
import string
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scrapyd_dist.config import write_file
from scrapyd_dist.errors import ConfigError, DistError, NodeError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports.requests import RequestsTransport

USERNAME = "sdist"
_HOST = "127.0.0.1"
#: seconds until a new node must answer, enough for ten nodes started at once on two cores
START_TIMEOUT = 60.0
#: timeout in seconds of one call to a starting node; another process may have taken the port
_CALL_TIMEOUT = 5.0
#: attempts to start on a free port, which another process may take first
_PORT_TRIES = 3
#: lines of a node's log in an error message
_LOG_LINES = 6
#: seconds for jobs to shut down gracefully before they are killed
STOP_GRACE = 10.0
#: seconds for killed processes to end
_KILL_GRACE = 5.0
#: seconds between two polls of processes that start or end
_POLL = 0.05


@dataclass(frozen=True, kw_only=True)
class Leader:
    """Identifies the first process of a process group."""

    pid: int
    folder: Path  #: the working directory it was started in, which its descendants share


@dataclass(frozen=True, kw_only=True)
class LocalNode(Leader):
    """Describes a node started by `up`, and is a row of the list."""

    name: str
    port: int
    password: str = field(repr=False)
    slots: int

    @property
    def node(self) -> Node:
        """Return the node as others address it."""
        address = f"{_HOST}:{self.port}"
        return Node.parse(
            address,
            name=self.name,
            username=USERNAME,
            password=self.password,
            slots=self.slots,
            local=True,
        )


def list_path(state: Path) -> Path:
    """Return the file of the list, in the state folder."""
    return state / "nodes" / "nodes.json"


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold a lock, so that concurrent commands do not start the same nodes twice."""
    folder = state / "nodes"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(state: Path) -> list[LocalNode]:
    """Read the list of the local nodes; ConfigError if its file is damaged."""
    path = list_path(state)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["nodes"]
        return [_node_of(row) for row in rows]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}, the list of the local nodes, cannot be read ({type(error).__name__}). "
            "Remove it, and end the nodes that may still run by hand; they are processes called "
            "`python -m scrapyd`."
        ) from error


def _node_of(row: Mapping[str, Any]) -> LocalNode:
    return LocalNode(
        name=str(row["name"]),
        port=int(row["port"]),
        password=str(row["password"]),
        slots=int(row["slots"]),
        pid=int(row["pid"]),
        folder=Path(row["folder"]),
    )


def write(state: Path, nodes: Iterable[LocalNode]) -> None:
    """Write the list of the local nodes, in the order of their numbers."""
    ordered = sorted(nodes, key=lambda node: (len(node.name), node.name))
    document = {"schema": 1, "nodes": [asdict(node) for node in ordered]}
    write_file(list_path(state), json.dumps(document, indent=1, default=str).encode())


def cores() -> int:
    """Return the number of processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_nodes(
    state: Path, count: int, *, slots: int | None = None, python: str | None = None
) -> tuple[Node, ...]:
    """Start local nodes until at least `count` run; return all running ones.

    A new node gets `slots` process slots, by default the number of cores divided by `count`, and
    runs in the interpreter `python`, by default this one. Raises ConfigError if Scrapyd or psutil
    is not installed, or `count` or `slots` is below one; DistError if a node ended or did not
    answer, while the others keep running.
    """
    if count < 1 or (slots is not None and slots < 1):
        raise ConfigError(
            f"Cannot start {count} local nodes with {slots} process slots: "
            "both must be one or more."
        )
    _psutil()  # without it no node could be found again
    with locked(state):
        # Jobs outlive a killed node, which stays in the list until they are gone, so that `down`
        # finds them.
        known = [node for node in read(state) if _members([node])]
        names = _free_names(known, count - len(_alive(known)))
        slots = slots or max(1, cores() // count)
        _start_all(state, known, names, python or sys.executable, slots)
    return running(state)


def _free_names(known: Sequence[LocalNode], count: int) -> list[str]:
    """Return names for so many new nodes."""
    free = [f"local{number}" for number in range(1, len(known) + count + 1)]
    for node in known:
        if node.name in free:
            free.remove(node.name)
    return free[: max(0, count)]


def _start_all(
    state: Path, known: Sequence[LocalNode], names: Sequence[str], python: str, slots: int
) -> None:
    """Start nodes at the same time, and list those that run; then raise the first error."""
    try:
        with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
            results = [pool.submit(_start, state, name, python, slots) for name in names]
    finally:
        started = [result.result() for result in results if result.exception() is None]
        write(state, [*known, *started])
    for result in results:
        result.result()


def running(state: Path) -> tuple[Node, ...]:
    """Return the local nodes whose process runs, ordered by name."""
    return _addresses(_alive(read(state)))


def dead(state: Path) -> tuple[Node, ...]:
    """Return the local nodes that were not stopped and whose process has ended, ordered by name."""
    return _addresses(node for node in read(state) if not is_alive(node))


def _addresses(nodes: Iterable[LocalNode]) -> tuple[Node, ...]:
    return tuple(node.node for node in nodes)


def forget_dead(state: Path, names: Iterable[str], *, grace: float = STOP_GRACE) -> None:
    """Take dead local nodes of these names off the list, and end jobs that they left."""
    wanted = set(names)
    with locked(state):
        nodes = read(state)
        forgotten = [node for node in nodes if node.name in wanted and not is_alive(node)]
        stop(forgotten, grace=grace)
        write(state, [node for node in nodes if node not in forgotten])


def stop_nodes(state: Path, *, grace: float = STOP_GRACE) -> tuple[str, ...]:
    """Stop all local nodes and their jobs, which get `grace` seconds.

    Returns the names of the nodes that ran.
    """
    if not list_path(state).exists():
        return ()
    with locked(state):
        nodes = read(state)
        alive = _alive(nodes)
        # Nodes that have died may have left jobs.
        stop(nodes, grace=grace)
        left = _alive(nodes)
        write(state, left)
    if left:
        ids = ", ".join(str(node.pid) for node in left)
        raise DistError(
            f"These local nodes do not end, though they were killed (process ids): {ids}."
        )
    return tuple(node.name for node in alive)


def _start(state: Path, name: str, python: str, slots: int) -> LocalNode:
    """Start a node, with another port if its port is taken."""
    folder = state / "nodes" / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    template = importlib.resources.files(__package__).joinpath("scrapyd.conf")
    text = string.Template(template.read_text(encoding="utf-8"))
    config = text.substitute(node_name=name, max_proc=slots)
    # The nearest scrapy.cfg overrides ~/.scrapyd.conf. Without this one it would be the project's,
    # whose [settings] would make Scrapyd run the project's folder instead of the egg.
    for file in ("scrapyd.conf", "scrapy.cfg"):
        (folder / file).write_text(config, encoding="utf-8")
    for _ in range(_PORT_TRIES):
        if node := _attempt(name, folder, python, slots):
            return node
    raise DistError(
        f"The local node {name} found no free port {_PORT_TRIES} times. Start it again."
    )


def _attempt(name: str, folder: Path, python: str, slots: int) -> LocalNode | None:
    """Start a node and wait for its first answer; return None if another process took its port."""
    port = _free_port()
    password = secrets.token_urlsafe(24)
    with (folder / "scrapyd.log").open("wb") as log:
        # The session of its own keeps a Ctrl-C in the terminal from the node.
        process = subprocess.Popen(
            [python, "-m", "scrapyd", "--pidfile="],
            cwd=folder,
            env=_environment(port, password),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    node = LocalNode(
        name=name,
        port=port,
        password=password,
        slots=slots,
        pid=process.pid,
        folder=folder.resolve(),
    )
    try:
        if _answers(node.node, process):
            process.returncode = 0  # suppresses the warning that the process outlives this object
            return node
    except BaseException:
        stop([node], grace=0)
        # It may have let go of its folder, and still be there for a moment.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_GRACE)
        raise
    _explain_end(name, python, process.wait(), folder / "scrapyd.log")
    return None


def _environment(port: int, password: str) -> dict[str, str]:
    """Return the environment variables of a new node."""
    environment = dict(os.environ)
    for name in os.environ:
        # An inherited SCRAPY_SETTINGS_MODULE would replace the egg's.
        if name.startswith(("SCRAPY_", "SCRAPYD_")):
            del environment[name]
    environment["SCRAPYD_HTTP_PORT"] = str(port)
    environment["SCRAPYD_USERNAME"] = USERNAME
    environment["SCRAPYD_PASSWORD"] = password
    return environment


def _answers(node: Node, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the node answers; return False if it ends first."""
    deadline = time.monotonic() + START_TIMEOUT
    transport = RequestsTransport()
    while time.monotonic() < deadline:
        try:
            transport.send(node, api.daemonstatus(), timeout=min(_CALL_TIMEOUT, START_TIMEOUT))
        except NodeError as error:
            last = error
        else:
            return True
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL)
            return False
    raise DistError(
        f"The local node {node.name} did not answer within {START_TIMEOUT:g} seconds and was "
        f"stopped. The last attempt said: {last}"
    )


def _explain_end(name: str, python: str, code: int, log: Path) -> None:
    """Raise an error that explains why a node ended; return if the reason was its port."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if "No module named scrapyd" in text or "No module named 'scrapyd'" in text:
        raise not_installed("Scrapyd", python)
    if "CannotListenError" in text or "Couldn't listen" in text:
        return
    lines = [line for line in text.splitlines() if line.strip()]
    tail = "\n".join(lines[-_LOG_LINES:])
    raise DistError(
        f"The local node {name} ended with exit code {code} before it answered. "
        f"{log} ends with:\n{tail}"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _alive(nodes: Iterable[LocalNode]) -> list[LocalNode]:
    return [node for node in nodes if is_alive(node)]


def is_alive(leader: Leader) -> bool:
    """Return whether this very process still runs."""
    return _folder_of(leader.pid) == leader.folder


def stop(leaders: Iterable[Leader], *, grace: float) -> None:
    """End processes with all that runs in their groups: TERM, then KILL after `grace` seconds.

    Scrapy and Scrapyd both shut down gracefully on TERM.
    """
    everyone = tuple(leaders)
    for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_GRACE)):
        for pid in _members(everyone):
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
        deadline = time.monotonic() + patience
        while _members(everyone) and time.monotonic() < deadline:
            time.sleep(_POLL)
    for leader in everyone:
        # Only its parent, which may be this process, can remove an ended process from the table.
        with suppress(ChildProcessError):
            os.waitpid(leader.pid, os.WNOHANG)


def not_installed(package: str, python: str = sys.executable) -> ConfigError:
    """Return the error that says what local nodes lack, and how to install it."""
    return ConfigError(
        f"Local nodes need {package}, which is not installed for {python}. Install it with "
        "pip install 'scrapyd-dist[local]', or name nodes of your own: [deploy:NAME] sections in "
        "scrapy.cfg, or --node."
    )


def _members(leaders: Iterable[Leader]) -> list[int]:
    """Return the ids of these processes, and of those in their groups that belong to them."""
    groups = defaultdict(list)
    for pid in _psutil().pids():
        with suppress(OSError):
            groups[os.getpgid(pid)].append(pid)
    members = []
    for leader in leaders:
        certain = is_alive(leader)
        for pid in groups[leader.pid]:
            folder = _folder_of(pid)
            # The jobs of a killed node live on. Without their leader, the folder shows which node
            # they belong to.
            if folder is not None and (certain or folder == leader.folder):
                members.append(pid)
    return members


def _folder_of(pid: int) -> Path | None:
    """Return the working directory of a process; None if it has ended or is another user's."""
    psutil = _psutil()
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return Path(process.cwd())
    return None


def _psutil() -> Any:
    try:
        import psutil  # noqa: PLC0415 - of the extra `local`
    except ImportError:
        raise not_installed("psutil") from None
    return psutil
