"""The jobs that a step is about: those that nodes list, and those that the store remembers."""

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rig.stores import lease_next

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ApiRefused, ConnectionRefused
from scrapyd_dist.frontier.backlog import Lessee, NewBatch
from scrapyd_dist.jobs.job_list import JobList, ListedJob, ask_jobs, remembered
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.store import Store, open_store

NO_SENDER: Any = None  # nothing is sent here


def site_of(store: Store) -> JobSite:
    return JobSite(root=Path(), sender=NO_SENDER, find_store=lambda: store)


def test_the_log_of_a_worker_is_that_of_the_project_and_spider_that_it_worked_for(
    tmp_path: Path,
) -> None:
    node = Node.parse("http://web1:6800/", name="web1")
    with closing(open_store(tmp_path / "store.db")) as store:
        store.add_crawl(Crawl(id="c", project="shop", spider="links", created=1.0))
        slots = ("0", "@login", "@bank:login")
        payload = {"DISTRIBUTED_START_URLS": "[]"}
        store.add_batches("c", [NewBatch(payload=payload, size=1, slot=slot) for slot in slots])
        for number, slot in enumerate(slots, 1):
            lessee = Lessee(job=f"c.w{number}.a1", node=node.name, url=node.url)
            lease_next(store, "c", lessee, slots=[slot], now=time.time())
        places = remembered(site_of(store), ["c"], [node])["c"]
    assert sorted(place.log for place in places) == [
        "logs/bank/login/c.w3.a1.log",
        "logs/shop/links/c.w1.a1.log",
        "logs/shop/login/c.w2.a1.log",
    ]


def test_a_node_without_the_project_has_no_job_of_it_and_that_is_no_error() -> None:
    def send(node: Node, call: Any, *, timeout: float | None = None) -> Any:
        error = ApiRefused(f"{node}: project 'shop' not found")
        error.scrapyd_message = "project 'shop' not found"
        raise error

    sender: Any = SimpleNamespace(send=send)
    nodes = [Node.parse("web1:6800"), Node.parse("web2:6800")]
    found = ask_jobs(sender, nodes, project="shop")
    assert (found.failed, found.lacking, found.exit_code) == ({}, 2, 0)
    assert ask_jobs(sender, nodes).exit_code == 1


def test_drained_nodes_that_are_silent_do_not_count() -> None:
    drained, well, down = (
        Node.parse(f"{name}:6800", name=name) for name in ("web1", "web2", "web3")
    )
    error = ConnectionRefused("web1: connection refused")
    site = JobSite(
        root=Path(), sender=NO_SENDER, find_store=lambda: None, find_drained=lambda _: [drained]
    )
    found = JobList(
        jobs=(), failed={drained: error, down: error}, asked=3, silent=frozenset({drained.url})
    )
    left = found.without_drained(site, [drained, well, down])
    assert (left.exit_code, len(left.errors), left.asked, left.silent) == (3, 1, 2, found.silent)


def test_where_all_that_was_named_is_found_silent_nodes_do_not_matter() -> None:
    one, other = (Node.parse(f"{name}:6800", name=name) for name in ("web1", "web2"))
    row = ListedJob(node=one, project="shop", spider="easy", job="easy-1", state=JobState.RUNNING)
    found = JobList(jobs=(row,), failed={other: ConnectionRefused("web2")}, asked=2)
    codes = [
        found.about(names).exit_code
        for names in (["easy-1"], ["easy-1", "easy-2"], [], ["a-crawl"])
    ]
    assert codes == [0, 3, 3, 3]
