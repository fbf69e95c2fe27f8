"""Limits that change while crawls run: every worker heeds `sdist throttle` within two seconds, without a restart."""

import time
from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlsplit

import pytest
from rig.crawls import ADDON
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

#: each address of this machine is a domain of its own, and all are one site
FASTER, BLOCKED, BY_HAND, PAUSED, SCALED, NEARLY = HOSTS = tuple(
    f"127.0.2.{number}" for number in range(1, 7)
)
#: it gets requests of a process that is switched off
FREE = "127.0.2.9"
#: of each host
PAGES = 600
SPIDER = f"""
import scrapy


class Pages(scrapy.Spider):
    name = "pages"

    async def start(self):
        for number in range({PAGES}):
            for host in self.hosts.split(","):
                yield scrapy.Request(f"http://{{host}}:{{self.port}}/echo?n={{number}}&by={{self.by}}")

    def parse(self, response):
        pass
"""
#: requests per second of each domain, by the settings of the workers and by the file
BEFORE, AFTER = 2, 12
FILE = f"""
blacklist: [{BLOCKED}, {BY_HAND}]
domains:
  {FASTER}: {{hits: {AFTER}, window: 1}}
  {SCALED}: {{hits: {BEFORE}, window: 1, scale: 0}}
  {NEARLY}: {{hits: 5, window: 1, scale: 0.1}}
"""
WORKERS = ("one", "two")
#: seconds after which a change is heeded
HEEDED = 2.0
#: seconds that are looked at after that
LOOKED = 2.0


class Crawls:
    """Two plain `scrapy crawl` that share one store, and the commands that change what they do."""

    def __init__(
        self, project: Project, site: SiteProcess, start: StartCommand, run: RunCommand
    ) -> None:
        self._project, self._site, self._run = project, site, run
        settings = {
            "ADDONS": ADDON, "DISTRIBUTED_ENABLED": False, "DISTRIBUTED_THROTTLE_HITS": BEFORE,
            "DISTRIBUTED_THROTTLE_WINDOW": 1,
        }  # fmt: skip
        project.settings(**settings)
        self.port = ("-a", f"port={urlsplit(site.url).port}")
        given = (*self.port, "-a", f"hosts={','.join(HOSTS)}")
        self.workers = [
            start(project, "crawl", "pages", *given, "-a", f"by={name}") for name in WORKERS
        ]

    def throttle(self, *words: str) -> float:
        """Run `sdist throttle`; the moment when it had ended, by the clock of the site's log."""
        done = self._run(self._project, "throttle", *words)
        assert done.code == 0, done.err
        return time.monotonic()

    def hits(self, begin: float, end: float = float("inf")) -> Counter[tuple[str, str]]:
        """(Host, worker) -> requests that came to the site from `begin` to `end`."""
        return Counter(
            (row["host"].partition(":")[0], row["target"].rpartition("=")[2])
            for row in self._site.log()
            if begin <= row["time"] < end
        )

    def all_come(self, hosts: Iterable[str], since: float) -> None:
        """Wait until requests of every worker have come to every one of these hosts since then."""
        wanted = {(host, name) for host in hosts for name in WORKERS}
        wait_for(
            lambda: wanted <= set(self.hits(since)),
            60,
            "requests of all workers to all these hosts",
        )


def until(moment: float) -> None:
    wait_for(lambda: time.monotonic() >= moment, 60, "that moment")


@pytest.mark.black_box
def test_every_worker_heeds_what_is_said_while_it_runs(
    project: MakeProject,
    site: StartSite,
    start_scrapy: StartCommand,
    run_scrapy: RunCommand,
    run_cli: RunCommand,
) -> None:
    """C9, C10, C11: limits, the blacklist, a scale of nothing, pauses: each within two seconds, without a restart."""
    it = project(spiders={"pages": SPIDER})
    it.write("limits.yml", FILE)
    it.write("faster.yml", f"domains:\n  {FASTER}: {{hits: {AFTER}, window: 1}}\n")
    crawls = Crawls(it, site(1, "--host=0.0.0.0"), start_scrapy, run_cli)
    crawls.all_come(HOSTS, 0.0)

    stopped = {
        BY_HAND: crawls.throttle("set", BY_HAND, "--block"),
        PAUSED: crawls.throttle("pause", PAUSED),
    }
    applied = crawls.throttle("apply", "limits.yml")
    stopped |= {BLOCKED: applied, SCALED: applied, NEARLY: applied}
    until(applied + HEEDED + LOOKED)
    _none_came(crawls, stopped.items())
    came = crawls.hits(applied + HEEDED, applied + HEEDED + LOOKED)
    fast = [came[FASTER, name] for name in WORKERS]
    assert AFTER * LOOKED / 2 < sum(fast) <= AFTER * LOOKED + 2, came
    assert min(fast) > 0, came

    crawls.throttle("set", BY_HAND, "--unblock")
    crawls.throttle("resume", PAUSED)
    crawls.all_come(HOSTS, crawls.throttle("apply", "faster.yml"))

    paused = crawls.throttle("pause")
    until(paused + HEEDED + LOOKED)
    _none_came(crawls, [(host, paused) for host in HOSTS])
    free = ("-a", f"hosts={FREE}", "-s", "DISTRIBUTED_THROTTLE=False")
    run_scrapy(it, "crawl", "pages", *crawls.port, *free, "-a", "by=free", code=0)
    assert crawls.hits(paused)[FREE, "free"] == PAGES, "a process that is switched off goes on"
    crawls.all_come(HOSTS, crawls.throttle("resume"))
    assert all(worker.running() for worker in crawls.workers)
    for worker in crawls.workers:
        worker.interrupt()
    for worker in crawls.workers:
        ended = worker.wait(60)
        assert "Traceback" not in ended.err, ended.err


def _none_came(crawls: Crawls, stopped: Iterable[tuple[str, float]]) -> None:
    """No request has come to these hosts since the time in which every worker has heeded that."""
    late = {
        host: [where for where in crawls.hits(since + HEEDED) if where[0] == host]
        for host, since in stopped
    }
    assert not any(late.values()), late
