"""A broad crawl on real nodes: a frontier that is filled once for each way, and crawled from a copy in each run.

The rule it keeps: the site counts. What is measured is how many pages it served in how many seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broad_project import project_of
from broad_site import host_name, means
from measure import RunError
from rig.commands import SDIST, Command
from rig.http import fetch
from rig.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rig.nodes import ScrapydNode

#: the frontier
NAME = "broad"
#: links that one page has, all of them to its own host: what is found together
TOGETHER = 90
#: requests that a worker makes at one time: scrapy-bench's number
AT_ONCE = 120
#: links that a frontier is filled with: no run comes further
REACHED = 30_000
#: seconds between two looks at the site, and for a command, or the first answer
LOOK, PATIENCE = 0.25, 90.0
_GOLDEN = (5**0.5 - 1) / 2
_SITE = Path(__file__).with_name("broad_site.py")


class Way(NamedTuple):
    """How the frontier's requests are shared out."""

    says: str
    settings: Mapping[str, str]
    dealt: bool = False  #: the list is dealt host by host before it is cut into batches; else it is as it was found
    pushed: bool = False  #: batches are jobs; else workers lease them

    @property
    def filling(self) -> str:
        """What the frontier looks like; ways may share it."""
        return (
            "dealt" if self.dealt else "sites" if "DISTRIBUTED_FAIR" in self.settings else "found"
        )


_PLAIN = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
PUSHED = Way("first in, first out; a job for each batch", _PLAIN, pushed=True)
FIFO = Way("first in, first out; leased batches", _PLAIN)
TURNS = Way("round-robin", {"SCHEDULER_PRIORITY_QUEUE": "broad.turns.RoundRobin"}, dealt=True)
SPREAD = Way("`--fair spread`", {"DISTRIBUTED_FAIR": "spread"})
BY_DOMAIN = Way("`--fair by-domain`", {"DISTRIBUTED_FAIR": "by-domain"})
WAYS = {
    "pushed": PUSHED,
    "fifo": FIFO,
    "round-robin": TURNS,
    "spread": SPREAD,
    "by-domain": BY_DOMAIN,
}


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What one run reached."""

    items: int
    seconds: float

    @property
    def rate(self) -> float:
        """Items per second."""
        return self.items / self.seconds


def links(delays: Sequence[float], each: int, port: int) -> list[str]:
    """All links in the order in which they are found: page by page, each with those of its host.

    Fast hosts and slow ones are mixed evenly, wherever one begins: so a short run meets what a long one would.
    """
    slower = sorted(range(len(delays)), key=lambda host: delays[host])
    mixed = [
        slower[rank] for rank in sorted(range(len(delays)), key=lambda rank: rank * _GOLDEN % 1)
    ]
    return [
        f"http://{host_name(host)}:{port}/{number}"
        for start in range(0, each, TOGETHER)
        for host in mixed
        for number in range(start, min(each, start + TOGETHER))
    ]


def dealt(found: Sequence[str]) -> list[str]:
    """The same links, one of each host in turn."""
    turn: dict[str, int] = {}
    keyed = []
    for at, link in enumerate(found):
        host = link.split("/")[2]
        turn[host] = turn.get(host, 0) + 1
        keyed.append((turn[host], at, link))
    return [link for _, _, link in sorted(keyed)]


class Fleet:
    """The site, the nodes, and filled stores.

    Args:
        folder: for all of it.
        nodes: how many.
        law: of the site's delays.
        hosts: of the site.
        each: links to each host.
        at_once: requests that a worker makes at one time.
        seed: of all that is random.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int,
        law: str,
        hosts: int,
        each: int,
        at_once: int = AT_ONCE,
        seed: int = 1,
    ) -> None:
        self._folder, self._stack, self._runs = folder, ExitStack(), 0
        self._site = subprocess.Popen(
            [sys.executable, str(_SITE), f"--law={law}", f"--hosts={hosts}", f"--seed={seed}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._stack.callback(self._site.kill)
        assert self._site.stdout
        port: int = json.loads(self._site.stdout.readline())["port"]
        self._site_url = f"http://127.0.0.1:{port}"
        self.project = project_of(folder / "project")
        self._nodes = self._stack.enter_context(
            closing(Nodes(Path(sys.executable), folder / "nodes", fork=False))
        ).fleet(nodes, max_proc=1, poll_interval=0.5)
        self.project.targets(self._nodes)
        self.project.settings(CONCURRENT_REQUESTS=at_once)
        self._links = links(means(law, hosts, seed), each, port)
        self._sdist("deploy", "--all", store=folder / "deploy.db").wait(PATIENCE)

    def close(self) -> None:
        """End all that runs."""
        self._stack.close()

    def _fill(self, way: Way) -> Path:
        """A store with all links in a frontier, as this way needs it."""
        store = self._folder / way.filling / "store.db"
        if not store.parent.exists():
            store.parent.mkdir()
            fair = way.settings.get("DISTRIBUTED_FAIR", "")
            # For this command alone: the code on the nodes stays as it is.
            settings = self.project.package / "settings.py"
            before = settings.read_text(encoding="utf-8")
            self.project.settings(DISTRIBUTED_FAIR=fair)
            done = self._sdist("frontier", "add", NAME, str(self._list(way)), store=store).wait(
                PATIENCE * 4
            )
            settings.write_text(before, encoding="utf-8")
            if done.code:
                raise RunError(f"the frontier was not filled:\n{done.err[-3000:]}")
        return store

    def _list(self, way: Way) -> Path:
        """A file with as many of the links as a run of this way could come to."""
        path = self._folder / f"{way.filling}.txt"
        if not path.exists():
            first = dealt(self._links)[:REACHED]
            known = set(first)
            lists = {
                "found": self._links[:REACHED],
                "dealt": first,
                "sites": [link for link in self._links if link in known],
            }
            path.write_text("\n".join(lists[way.filling]), encoding="utf-8")
        return path

    def run(self, way: Way, nodes: int, *, items: int, seconds: float, settle: float) -> Pace:
        """Crawl that way on so many nodes.

        Args:
            way: the way.
            nodes: how many of them.
            items: after so many of them the run is over,
            seconds: or after this time.
            settle: seconds from the first answer on that are not counted: the workers come up, and queues fill.

        Raises:
            RunError: nothing came, or the command ended before.
        """
        self._runs += 1
        store = self._folder / f"run{self._runs}" / "store.db"
        if not way.pushed:
            shutil.copytree(self._fill(way).parent, store.parent)
        self._afresh(self._nodes[:nodes])
        fetch(f"{self._site_url}/__reset__")
        command = self._sdist(*self._crawl(way, nodes), store=store)
        try:
            return self._watched(command, items, seconds, settle)
        finally:
            command.close()
            for node in self._nodes:
                node.kill_jobs()

    def _crawl(self, way: Way, nodes: int) -> list[str]:
        words = [f"--node={node.name}" for node in self._nodes[:nodes]]
        for setting, value in way.settings.items():
            words += ["-s", f"{setting}={value}"]
        if way.pushed:
            start = ["-a", f"links={self._list(way)}", "-a", f"site={self._site_url}/__answers__"]
            return [
                "crawl",
                "pages",
                *start,
                "--push",
                "--callback=parse",
                "--batch-size=100",
                *words,
            ]
        return [
            "frontier",
            "consume",
            "pages",
            NAME,
            "--per-slot=0",
            f"--max-running={nodes}",
            *words,
        ]

    def _watched(self, command: Command, items: int, seconds: float, settle: float) -> Pace:
        deadline = time.monotonic() + PATIENCE
        while True:
            time.sleep(LOOK)
            answers = self._answers()
            if not command.running() or (not answers and time.monotonic() > deadline):
                raise RunError(
                    f"{len(answers)} items:\n{command.out[-2000:]}\n{command.err[-3000:]}"
                )
            if not answers:
                continue
            begin = answers[0] + settle
            counted = [at for at in answers if begin <= at < begin + seconds][:items]
            if len(counted) == items:
                return Pace(items=items, seconds=max(counted[-1] - begin, LOOK))
            if time.monotonic() >= begin + seconds:
                return Pace(items=len(counted), seconds=seconds)

    def _answers(self) -> list[float]:
        found: list[float] = json.loads(fetch(f"{self._site_url}/__answers__").body)
        return found

    def _afresh(self, nodes: Sequence[ScrapydNode]) -> None:
        """Nodes that know of no job, and have no files of one: runs share the names of their jobs."""
        for node in nodes:
            node.wait_idle()
            node.kill()
            shutil.rmtree(node.logs_dir, ignore_errors=True)
            node.start()
        for node in nodes:
            node.wait()

    def _sdist(self, *words: str, store: Path) -> Command:
        command = Command(
            [*SDIST, *words], cwd=self.project.path, folder=self.project.output, home=self.project.home,
            env={"SDIST_STORE": str(store)},
        )  # fmt: skip
        self._stack.callback(command.close)
        return command
