"""Real Scrapyd nodes, each with an empty working directory, a private HOME, and an interpreter without this project."""

import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .forked_runner import VARIABLE as JOB_SERVER
from .forks import ForkedProgram, fork_server, start_program
from .http import Reply, fetch
from .processes import RUNNER, end_all, private_environment, with_home
from .waiting import wait_for

#: the modules that Scrapyd takes long to import
IMPORTS = (
    "scrapy.http", "pkg_resources", "twisted.web.server", "twisted.web.static", "twisted.web.guard",
    "twisted.cred.portal", "twisted.application.app",
)  # fmt: skip
#: the modules that a job takes long to import; `scrapyd.runner` itself is what it runs
JOB_IMPORTS = (
    "scrapy.*", "pkg_resources", "scrapyd.exceptions", "scrapyd.utils", "scrapyd.eggstorage", "itemloaders.processors",
    "tldextract", "twisted.conch.insults.insults", "twisted.conch.telnet", "twisted.web.client",
)  # fmt: skip
_POSTED = {"schedule.json", "cancel.json", "delversion.json", "delproject.json", "addversion.json"}


def free_port() -> int:
    """A free port below those that connections get, so that it is still free when a node is restarted."""
    while True:
        port = random.randint(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class ScrapydNode:
    """One Scrapyd daemon; its folder gets `home/`, `work/` (the working directory) and `scrapyd.log`.

    `config` has the options of its [scrapyd] section, `env` more environment variables for it and its jobs. With
    `fork` it is forked, and so are its jobs; without, or with such variables, all start as they do for a user.
    """

    def __init__(
        self, name: str, python: Path, folder: Path, config: dict[str, str], env: dict[str, str] | None = None,
        *, fork: bool = True,
    ) -> None:  # fmt: skip
        self.name = name
        self.username, self.password = config.get("username", ""), config.get("password", "")
        self.home, self.work = folder / "home", folder / "work"
        self.port = 0
        self._python, self._config, self._env = python, config, env or {}
        # A library that is loaded by the environment needs a start of its own.
        self._fork = fork and not env
        self._log_path = folder / "scrapyd.log"
        self._daemon: subprocess.Popen[bytes] | ForkedProgram | None = None
        self.home.mkdir(parents=True)
        self.work.mkdir()

    def __repr__(self) -> str:
        return f"<node {self.name} {self.url}>"

    @property
    def url(self) -> str:
        """The address, with a slash at the end, without user name and password."""
        host = self._config.get("bind_address", "127.0.0.1")
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @property
    def pid(self) -> int:
        assert self._daemon, f"{self.name} was not started"
        return self._daemon.pid

    @property
    def log(self) -> str:
        return (
            self._log_path.read_text(encoding="utf-8", errors="replace")
            if self._log_path.exists()
            else ""
        )

    @property
    def logs_dir(self) -> Path:
        """The folder behind /logs/."""
        return self.work / self._config.get("logs_dir", "logs")

    def start(self) -> None:
        """Start the daemon, on the port it had before if it had one. `wait` tells when it is ready."""
        self.port = self.port or free_port()
        lines = {"bind_address": "127.0.0.1", **self._config, "http_port": str(self.port)}
        env = private_environment(self.home, self._env)
        if self._fork and "runner" not in self._config:
            lines["runner"] = RUNNER
            env[JOB_SERVER] = fork_server(str(self._python), JOB_IMPORTS).address
        text = "[scrapyd]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items())
        (self.home / ".scrapyd.conf").write_text(text, encoding="utf-8")
        log = self._log_path
        self._daemon = start_program(
            [*self._program(), "--pidfile="],
            cwd=self.work,
            env=env,
            out=log,
            err=log,
            preload=IMPORTS if self._fork else (),
        )

    def _program(self) -> list[str]:
        """Its command; before 1.5 Scrapyd can be started by its script only."""
        script = self._python.with_name("scrapyd")
        if not self._fork and script.exists():
            return [str(script)]
        return [str(self._python), "-m", "scrapyd"]

    def wait(self) -> None:
        """Return when the node answers; another process may have been faster with the port, then take the next."""
        wait_for(self._answers, 60, f"the start of {self.name}")

    def _answers(self) -> bool:
        if self._daemon and self._daemon.poll() is not None:
            if "CannotListenError" not in self.log:
                raise RuntimeError(f"{self.name} ended while starting:\n{self.log}")
            self.kill()
            self._log_path.unlink()
            self.port = 0
            self.start()
            return False
        # Another process that took the port first would answer, too: only the log says that this node has it.
        return f"Site starting on {self.port}" in self.log and bool(
            self.api("daemonstatus.json")["status"] == "ok"
        )

    def request(self, path: str, **options: Any) -> Reply:
        """Any request to the node, with its user name and password; the options are those of `fetch`."""
        options.setdefault("auth", (self.username, self.password) if self.username else None)
        return fetch(self.url + path, **options)

    def api(self, endpoint: str, **params: Any) -> dict[str, Any]:
        """The JSON reply of an endpoint such as "listjobs.json", also an error; a list as parameter repeats it."""
        options = {"method": "POST", "data": params} if endpoint in _POSTED else {"params": params}
        reply = self.request(endpoint, **options)
        assert reply.status == 200, (
            f"{self.name}/{endpoint} answered {reply.status}: {reply.body[:300]!r}"
        )
        answer: dict[str, Any] = json.loads(reply.body)
        return answer

    def add_version(self, project: str, version: str, egg: bytes) -> dict[str, Any]:
        fields = {"project": project, "version": version}
        reply = self.request("addversion.json", method="POST", data=fields, files={"egg": egg})
        answer: dict[str, Any] = json.loads(reply.body)
        return answer

    def jobs(self, state: str | None = None, project: str | None = None) -> list[dict[str, Any]]:
        """The rows of listjobs.json, of one state ("pending", "running", "finished") or of all."""
        answer = self.api("listjobs.json", **({"project": project} if project else {}))
        assert answer["status"] == "ok", answer
        return [
            row
            for name in ("pending", "running", "finished")
            if state in {None, name}
            for row in answer[name]
        ]

    def wait_idle(self) -> None:
        """Return when no job is pending or running."""
        wait_for(
            lambda: not self.jobs("pending") and not self.jobs("running"), 60, f"{self.name} idle"
        )

    def job_pids(self) -> dict[int, str]:
        """Pid -> job id of all live jobs, also of those that a dead daemon left behind."""
        forked: dict[int, str] = {}
        runners: dict[int, str] = {}  # each stands for a job, which may not be forked yet
        for pid, arguments in with_home(self.home).items():
            ids = [argument[5:] for argument in arguments if argument.startswith("_job=")]
            if ids:
                (runners if RUNNER in arguments else forked)[pid] = ids[0]
        return forked | {pid: job for pid, job in runners.items() if job not in forked.values()}

    def job_log(self, job: str) -> str:
        """The log of a job, "" while there is none."""
        found = list(self.logs_dir.glob(f"*/*/{job}.log"))
        return found[0].read_text(encoding="utf-8", errors="replace") if found else ""

    def kill(self) -> None:
        """SIGKILL the daemon and wait for its end; its jobs live on, as they do in real life."""
        if self._daemon is not None:
            if self._daemon.poll() is None:
                os.kill(self._daemon.pid, signal.SIGKILL)
            self._daemon.wait(30)
            self._daemon = None

    def kill_jobs(self) -> dict[int, str]:
        """SIGKILL all its jobs, and say which they were."""
        killed = self.job_pids()
        for pid in killed:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
        return killed

    def versions(self, project: str) -> list[str]:
        """A project's versions, in Scrapyd's order."""
        found: list[str] = self.api("listversions.json", project=project)["versions"]
        return found

    def clear(self) -> None:
        """End its jobs, and delete its projects."""
        self.kill_jobs()
        self.wait_idle()
        for project in self.api("listprojects.json")["projects"]:
            self.api("delproject.json", project=project)

    def pause(self) -> None:
        """SIGSTOP: the port stays open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Start again on the same port."""
        self.kill()
        self.start()
        self.wait()

    def close(self) -> None:
        """Kill the daemon and everything it started."""
        self.kill()
        end_all(self.home)


def at_rest(nodes: Iterable[ScrapydNode]) -> bool:
    """Whether jobs run, and each of them has seen that its crawl was paused."""
    logs = [node.job_log(job["id"]) for node in nodes for job in node.jobs("running")]
    return bool(logs) and all("The crawl rests" in log for log in logs)


class Nodes:
    """Starts nodes, and stops them all in the end."""

    def __init__(self, python: Path, folder: Path, *, fork: bool = True) -> None:
        self._python = python
        self._folder = folder
        self._fork = fork
        self.nodes: list[ScrapydNode] = []

    def make(
        self, *, max_proc: int = 2, poll_interval: float = 0.5, username: str = "", password: str = "",
        env: dict[str, str] | None = None, python: Path | None = None, **config: str,
    ) -> ScrapydNode:  # fmt: skip
        """A node that is not yet started; more options of [scrapyd] by keyword."""
        name = f"node{len(self.nodes) + 1}"
        options = {
            "max_proc": str(max_proc),
            "poll_interval": str(poll_interval),
            "node_name": name,
            **config,
        }
        if username:
            options |= {"username": username, "password": password}
        self.nodes.append(
            ScrapydNode(
                name,
                python or self._python,
                self._folder / name,
                options,
                env,
                fork=self._fork and python is None,
            )
        )
        return self.nodes[-1]

    def fleet(self, count: int, **options: Any) -> list[ScrapydNode]:
        """Start `count` nodes at the same time, and return them ready; options as of `make`."""
        nodes = [self.make(**options) for _ in range(count)]
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait()
        return nodes

    def close(self) -> None:
        for node in self.nodes:
            node.close()
