"""One crawl that something breaks: a fleet, a site, a project, and the commands that a person would type afterwards."""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from faults import own_work
from rig.bad_days import IMPATIENT, ITEMS, arguments
from rig.commands import SDIST, Command, Result
from rig.nodes import Nodes, ScrapydNode
from rig.projects import Project
from rig.proxy import Proxy
from rig.redis import RedisServer, ServerCluster
from rig.sites import SiteProcess
from rig.waiting import wait_for
from scrapyd_dist.examples.pages import Site

from scrapyd_dist.batches import Attempt, Crawl
from scrapyd_dist.keys import state_key
from scrapyd_dist.payload import decode
from scrapyd_dist.store import Store, open_store

#: trouble is noticed within seconds, and a job lasts long enough to be hurt
SETTINGS: Mapping[str, Any] = {
    **IMPATIENT,
    "DISTRIBUTED_BATCH_SIZE": 40,
    "DISTRIBUTED_FLEET_TIMEOUT": 8,
}
#: each worker tells the site which job it is, for the site's log of requests
NAMED = """
import sys
USER_AGENT = next((text[5:] for text in sys.argv if text.startswith("_job=")), "producer")
"""
#: jobs that begin while the first file is there wait before they have read anything, and make the second one
HELD = """
import time
from pathlib import Path

if USER_AGENT != "producer" and Path({hold!r}).exists():
    Path({held!r}).touch()
    while Path({hold!r}).exists():
        time.sleep(0.05)
"""
#: jobs whose requests hang when a file says so: those of one page, or all of the one job that takes the file away
HANGING = """
import asyncio
from pathlib import Path

from scrapyd_dist.middlewares import watchdog

watchdog.GRACE = watchdog.AFTER = 1.0


class Hanging:
    hangs = False

    async def process_request(self, request, spider=None):
        page, worker = Path({page!r}), Path({worker!r})
        if USER_AGENT == "producer":
            return
        if not self.hangs and worker.exists():
            try:
                worker.unlink()
                self.hangs = True
            except FileNotFoundError:
                pass
        if self.hangs or (page.exists() and request.url.endswith(page.read_text())):
            await asyncio.sleep(3600)


DOWNLOADER_MIDDLEWARES = {{Hanging: 1}}
"""
#: each request tells the site which permit of the throttle it has, for the site's log
SHOWN = """

class ShowPermit:
    def process_request(self, request, spider=None):
        permit = request.meta.get("distributed_permit")
        if permit:
            request.headers["X-Permit"] = repr(permit.at)


DOWNLOADER_MIDDLEWARES[ShowPermit] = 2
"""
#: the site's, which is a domain of its own for the throttle
HOST = "127.0.0.1"
ITEMS_OF_SITE = 400
#: seconds until a trial is given up
PATIENCE = 180.0
#: how often a person goes on with a crawl that stopped
RESUMES = 4


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A rule of the throttle for the site: so many requests in any window of so many seconds."""

    hits: int
    window: float


class Trial:
    """See the module. `begin`, break something, `finish`, then look.

    Args:
        seed: of the dice that choose moments and victims.
        redis: whether the store is a Redis server instead of a file.
        proxied: whether each node is reached through a proxy that can spoil exchanges.
        node_env: environment variables of single nodes, by their place.
        mode: how batches reach the nodes; `auto`: the workers of the second node do not reach the store.
        latency, patience: seconds for a page, and for one command.
        nodes, node_config: how many, and their options of [scrapyd].
        asks_for_more: whether the project's own code asks for pages (`own_work`).
        cluster: whether the store is a Redis Cluster of three servers.
        spider, words: what is crawled, and more options of the command.
        limit: a rule of the throttle that holds from before the crawl on.
        goal: the most requests that the site may get until the crawl is resumed without this goal.
    """

    def __init__(
        self, folder: Path, node_python: Path, seed: int, *, redis: bool = False, proxied: bool = False,
        node_env: Mapping[int, dict[str, str]] | None = None, settings: Mapping[str, Any] | None = None,
        items: int = ITEMS_OF_SITE, latency: float = 0.15, mode: str = "auto", patience: float = PATIENCE,
        nodes: int = 2, node_config: Mapping[str, Any] | None = None, asks_for_more: bool = False,
        cluster: bool = False, spider: str = "easy", words: Sequence[str] = (), limit: Limit | None = None,
        goal: int | None = None,
    ) -> None:  # fmt: skip
        self.dice = Random(seed)
        self.asks_for_more = asks_for_more
        #: files that make requests hang
        self.hanging_page, self.hanging_worker = folder / "page", folder / "worker"
        #: the files of jobs that are held as they begin
        self._hold, self._held = folder / "hold", folder / "held"
        #: the one page that has to be missed, and a word of the reason that is given
        self.missed: int | None = None
        self.reason = "stalled"
        self.limit = limit
        #: whether all that the store had is gone, which the crawl has to say
        self.is_store_lost = False
        #: the name of a node of which no part can be had
        self.bad_node = ""
        #: whether no item may be lost, not even one of which the crawl says so
        self.is_all_to_come = False
        self.goal = goal
        #: how many requests the site had when the crawl had ended by its goal
        self.hits_at_goal = 0
        self.began = 0.0
        #: environment variables of the commands
        self.env: dict[str, str] = {}
        self._spider, self._words = (own_work.SPIDER if asks_for_more else spider), words
        self._patience = patience
        self._stack = ExitStack()
        self.redis: RedisServer | None = None
        self.cluster: ServerCluster | None = None
        if cluster:
            self.cluster = self._stack.enter_context(closing(ServerCluster(folder / "cluster")))
        elif redis:
            self.redis = self._stack.enter_context(closing(RedisServer(folder / "redis")))
        site = Site(items=items, per_page=20)
        self.site = self._stack.enter_context(
            closing(SiteProcess(folder / "site", site, f"--latency={latency}", "--log-headers"))
        )
        self._nodes = self._stack.enter_context(closing(Nodes(node_python, folder / "nodes")))
        lost = {"SDIST_STORE": "/nowhere/store.db"} if mode == "auto" else {}
        env = {0: {}, 1: lost} | {
            at: {**lost, **values} if at else values for at, values in (node_env or {}).items()
        }
        self.nodes: list[ScrapydNode] = [
            self._nodes.make(env=env.get(at, {}), **(node_config or {})) for at in range(nodes)
        ]
        self.proxies: list[Proxy] = []
        self.project = Project.demo(folder / "project")
        usual = {**SETTINGS, "DISTRIBUTED_MODE": mode, "START_URL": self.site.start_url}
        self._settings = {**usual, **(settings or {})}
        self._proxied = proxied
        self.command: Command | None = None
        self.resumes = 0

    def close(self) -> None:
        self._stack.close()

    # the crawl

    def begin(self) -> None:
        """Start the fleet and the crawl; returns when the crawl has a row in the store."""
        self.prepare()
        if self.limit:
            self.set_limit(self.limit)
        program, _, *options = arguments("sdist", self.site)
        self.began = time.monotonic()
        self.command = self.cli(program, self._spider, *options, *self._words)
        wait_for(self.crawls, 60, "the crawl in the store")

    def prepare(self) -> None:
        """Start the fleet, and write what the project needs for it."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait()
        if self._proxied:
            self.proxies = [self._stack.enter_context(closing(Proxy(node))) for node in self.nodes]
            sections = "\n".join(p.section(self.project.name, p.node.name) for p in self.proxies)
            self.project.targets([], sections)
        else:
            self.project.targets(self.nodes)
        if self.asks_for_more:
            own_work.write_project(self.project.package)
            self._settings |= own_work.make_settings(self.site.url)
        self.project.settings(**self._settings)
        with (self.project.package / "settings.py").open("a", encoding="utf-8") as file:
            file.write(NAMED)
            file.write(HELD.format(hold=str(self._hold), held=str(self._held)))
            file.write(HANGING.format(page=str(self.hanging_page), worker=str(self.hanging_worker)))
            if self.limit:
                file.write(SHOWN)

    def set_limit(self, limit: Limit) -> None:
        """Set a rule of the throttle for the site's host."""
        words = ("--hits", str(limit.hits), "--window", str(limit.window))
        self.cli("throttle", "set", HOST, *words).wait(60, code=0)

    def cli(self, *arguments: str) -> Command:
        """Start `sdist` in the project's folder."""
        env = {"SDIST_STORE": self.store_url} if self.store_url else None
        env = {**(env or {}), **self.env} or None
        project = self.project
        command = Command(
            [*SDIST, *arguments],
            cwd=project.path,
            folder=project.output,
            home=project.home,
            env=env,
        )
        return self._stack.enter_context(closing(command))

    @property
    def store_url(self) -> str:
        """The address of the store when that is a server; "" when it is the project's file."""
        server = self.redis or self.cluster
        return server.url if server else ""

    @property
    def store_file(self) -> Path:
        """The project's store when that is a file."""
        return self.project.path / ".sdist" / "store.db"

    def store(self) -> Store:
        return open_store(self.store_url or self.store_file)

    def crawls(self) -> list[Crawl]:
        if not self.store_url and not self.store_file.exists():
            return []
        with closing(self.store()) as store:
            return store.crawls()

    @property
    def home(self) -> Path:
        """The crawl's folder in the project's state folder."""
        return self.project.path / ".sdist" / "crawls" / self.row.id

    @property
    def row(self) -> Crawl:
        return self.crawls()[0]

    def attempts(self) -> list[Attempt]:
        with closing(self.store()) as store:
            return store.attempts(self.row.id)

    def targets(self, batch: int) -> frozenset[str]:
        """The pages of a batch, as the site's log names them."""
        with closing(self.store()) as store:
            settings = store.payload(self.row.id, batch)
        values = decode(settings.get, key=state_key(self.project.path / ".sdist"))
        return frozenset(urlsplit(value["url"]).path for value in values)

    def items(self) -> list[dict[str, Any]]:
        """What came home; nothing when there is no file."""
        with suppress(FileNotFoundError):
            return list(self.project.items(ITEMS))
        return []

    # moments and victims

    def wait_moment(self, low: float = 0.05, high: float = 0.75) -> None:
        """Let the crawl come to a moment that the dice choose: a share of the detail pages asked for."""
        moment = int(self.dice.uniform(low, high) * self.site.site.items)
        hits = self.site.item_hits
        wait_for(
            lambda: self.row.state.ended or hits().total() >= moment,
            self._patience,
            f"{moment} pages",
        )

    def victim(self) -> ScrapydNode:
        """A node that is at work, by the dice; any when none is."""
        busy = [node for node in self.nodes if node.job_pids()]
        return self.dice.choice(busy or self.nodes)

    @contextmanager
    def new_jobs_held(self) -> Iterator[None]:
        """While this is open, jobs begin that have read nothing yet; one at least, as workers are killed for it."""
        self._hold.touch()
        victims = [pid for node in self.nodes for pid in node.job_pids()]
        self.dice.shuffle(victims)
        for pid in victims:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
            with suppress(AssertionError):  # none takes the place of one that had nothing to do
                wait_for(self._held.exists, 20, "a job that begins")
                break
        wait_for(self._held.exists, 40, "a job that begins")
        yield
        self._hold.unlink()

    def kill_producer(self) -> None:
        """SIGKILL the process that coordinates."""
        pid = self.row.pid
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # the end

    def finish(self) -> Result:
        """See it to its end, resuming as its messages say; how the last command ended."""
        assert self.command
        done = self.command.wait(self._patience)
        if self.is_store_lost:
            return done
        while self.row.state.value != "finished" and self.resumes < RESUMES:
            self.resume()
            done = self.command.wait(self._patience)
        return done

    def resume(self) -> None:
        """Resume the crawl as its message says."""
        self.resumes += 1
        self.command = self.cli("resume", self.row.id, "--json")
