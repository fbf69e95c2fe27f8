"""Workers that are posted while the producer still loads: they begin with the crawl, and end with one that is refused."""

from contextlib import closing
from typing import Any

import pytest
from rig.crawls import QUICK, last_crawl, store_of
from rig.fixtures import MakeProject, RunCommand
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

from scrapyd_dist.batches import CrawlState

LEASING = {**QUICK, "DISTRIBUTED_MODE": "auto"}
#: an extension that leaves a file in each worker; in the producer it is not made before there are two
GATE = """
import json
import threading
import time
from pathlib import Path


class Gate:
    @classmethod
    def from_crawler(cls, crawler):
        settings = crawler.settings
        folder = Path(settings["GATE"])
        if settings.get("DISTRIBUTED_PULL"):
            number = json.loads(settings["DISTRIBUTED_PULL"])["worker"]
            (folder / str(number)).touch()
            if settings.getbool("BREAKS_ON_NODES"):
                raise ValueError("no bucket on this node")
            return cls()
        deadline = time.monotonic() + 60
        while len(list(folder.iterdir())) < 2:
            if time.monotonic() > deadline:
                raise TimeoutError("no worker was posted while this process loads")
            threading.Event().wait(0.05)
        if settings.getbool("BREAKS"):
            raise ValueError("no such bucket")
        if settings.getbool("CHANGES"):
            settings.set("DISTRIBUTED_PROFILE", "none", priority="cmdline")
        return cls()
"""


class Gated:
    """A project with the gate, and what became of the workers of its crawl."""

    def __init__(self, it: Project, nodes: list[ScrapydNode], run: RunCommand) -> None:
        self.it = it
        self._nodes = nodes
        self._run = run

    def crawl(self, code: int, *words: str) -> str:
        done = self._run(self.it, "crawl", "easy", "-o", "out.jl", *words, code=code)
        for node in self._nodes:
            node.wait_idle()
        return done.err

    def early_jobs(self) -> list[dict[str, Any]]:
        """The workers that were posted first, one on each node, as a user lists them."""
        name = last_crawl(self.it).id
        listed = self._run(self.it, "jobs", "list", "--json", code=None).json()["jobs"]
        early = [f".w{number}.a1" for number, _ in enumerate(self._nodes, 1)]
        jobs = [job for job in listed if job["job"].startswith(f"{name}.")]
        return [job for job in jobs if job["job"].endswith(tuple(early))]


@pytest.fixture
def gated(
    project: MakeProject, pair: list[ScrapydNode], site_now: SiteProcess, run_cli: RunCommand
) -> Any:
    def make(**settings: Any) -> Gated:
        it = project(nodes=pair, settings={**LEASING, "START_URL": site_now.start_url, **settings})
        it.write(f"{it.name}/gate.py", GATE)
        gate = it.path / "gate"
        gate.mkdir()
        it.settings(EXTENSIONS={f"{it.name}.gate.Gate": 0}, GATE=str(gate))
        return Gated(it, pair, run_cli)

    return make


def test_a_worker_starts_while_the_producer_still_loads(gated: Any, site_now: SiteProcess) -> None:
    one = gated()
    one.crawl(0)
    assert site_now.differences(one.it.items("out.jl")) == {}
    jobs = one.early_jobs()
    assert len(jobs) == 2
    # One may have had nothing to do.
    assert {job["state"] for job in jobs} <= {"finished", "cancelled"}


@pytest.mark.parametrize("on_nodes", [False, True])
@pytest.mark.black_box
def test_a_crawl_that_is_refused_leaves_no_request_and_no_failure(
    gated: Any, site_now: SiteProcess, run_cli: RunCommand, *, on_nodes: bool
) -> None:
    one = gated(BREAKS=True, BREAKS_ON_NODES=on_nodes)
    said = one.crawl(2)
    assert "no such bucket" in said
    assert "No request was made; the workers that were posted before end without one." in said
    assert site_now.hits() == {}
    assert [job["state"] for job in one.early_jobs()] == ["cancelled", "cancelled"]
    # The workers asked for it, so it was not forgotten with its message.
    assert last_crawl(one.it).state is CrawlState.REFUSED
    assert "refused" in run_cli(one.it, "crawls", code=0).out


@pytest.mark.black_box
def test_workers_that_were_posted_with_other_settings_make_way(
    gated: Any, site_now: SiteProcess
) -> None:
    one = gated(CHANGES=True)
    one.crawl(0)
    assert site_now.differences(one.it.items("out.jl")) == {}
    jobs = one.early_jobs()
    assert [job["reason"] for job in jobs] == ["superseded", "superseded"]
    with closing(store_of(one.it)) as store:
        worked = {attempt.worker for attempt in store.attempts(last_crawl(one.it).id)}
    assert worked
    assert not worked & {job["job"] for job in jobs}
