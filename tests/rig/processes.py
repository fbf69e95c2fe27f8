"""Processes that belong to one test, and the interpreter of the nodes' own.

Each process gets a private HOME, by which it is found again and ended, orphans too.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from .waiting import wait_for

#: names an interpreter that has Scrapy and Scrapyd, and not this project
VARIABLE = "SDIST_NODE_PYTHON"
#: the module by which a node's jobs are forked, in that interpreter: rig/forked_runner.py
RUNNER = "sdist_forked_runner"
#: what must not leak from the shell that runs the tests into what the tests start
_FOREIGN = ("SCRAPY", "SDIST", "DISTRIBUTED", "PYTEST", "PYTHON", "COVERAGE", "NETRC", "XDG_")


def private_environment(home: Path, extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment with a HOME of its own and without Scrapy settings or proxies of the shell."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and not name.lower().endswith("_proxy")
    }
    return {**inherited, "HOME": str(home), "NO_COLOR": "1", "COLUMNS": "120", **(extra or {})}


def with_home(home: Path) -> dict[int, list[str]]:
    """Pid -> command line of all live processes whose HOME is `home`."""
    mark, found = f"HOME={home}".encode(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # gone, or not ours to look at
                # That of a fork is padded with zeros.
                if mark in (entry / "environ").read_bytes().rstrip(b"\0").split(b"\0"):
                    arguments = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                    found[int(entry.name)] = [
                        argument.decode("utf-8", "replace") for argument in arguments
                    ]
    return found


def halt(pids: Iterable[int]) -> None:
    """Stop processes where they are; one that has just ended is gone."""
    _signal_all(pids, signal.SIGSTOP)


def let_go_on(pids: Iterable[int]) -> None:
    """Continue processes that were halted; one that had just ended by then is gone."""
    _signal_all(pids, signal.SIGCONT)


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_all(home: Path) -> None:
    """Kill every process whose HOME is `home`, and wait until none is left."""

    def none_left() -> bool:
        pids = list(with_home(home))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_for(none_left, 20, f"the end of all processes of {home}")


def node_python(cache: Path) -> Path:
    """The interpreter of the nodes: the one that SDIST_NODE_PYTHON names, else one made once and kept under `cache`."""
    given = os.environ.get(VARIABLE)
    python = Path(given) if given else _made_environment(cache)
    check = "import scrapyd, sysconfig, importlib.util as u; assert not u.find_spec('scrapyd_dist')"
    line = [str(python), "-c", f"{check}; print(sysconfig.get_path('purelib'))"]
    done = subprocess.run(
        line,
        cwd=cache,
        env=private_environment(cache),
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, (
        f"{python} must have Scrapyd and must not have scrapyd_dist: nodes know nothing of us"
    )
    copy_if_other(
        Path(__file__).parent / "forked_runner.py", Path(done.stdout.strip()) / f"{RUNNER}.py"
    )
    return python


def copy_if_other(source: Path, target: Path) -> None:
    """Copy a file in one step, so that another process never sees a half of it."""
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, fresh)
    fresh.replace(target)


def _made_environment(cache: Path) -> Path:
    # The versions of this environment, so that the two ends of a test differ in nothing but this project.
    return environment_of(
        cache,
        f"scrapy=={version('scrapy')}",
        f"scrapyd=={version('scrapyd')}",
        f"twisted=={version('twisted')}",
    )


def environment_of(cache: Path, *requirements: str) -> Path:
    """The interpreter of an environment with these packages, made once and kept under `cache`."""
    # Scrapyd imports pkg_resources, which newer ones no longer have.
    wanted = [*requirements, "setuptools<81"]
    key = sha256(repr((sys.version_info[:3], sys.executable, wanted)).encode()).hexdigest()[:12]
    folder = cache / key
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", "--quiet", *wanted], check=True
        )
        (folder / "complete").touch()
    return folder / "bin/python"
