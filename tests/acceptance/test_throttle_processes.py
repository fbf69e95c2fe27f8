"""The throttle in plain processes, at the site's own log: bursts, domains, and a service of addresses that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from rig.badpeer import BadPeer, Connection
from rig.fixtures import MakeProject, RunCommand, StartCommand
from rig.throttled import SPIDERS, Throttled, assert_limit, mean_gap
from rig.waiting import wait_for

pytestmark = pytest.mark.black_box

#: seconds in which all hits of a window come, where they may
BURST = 1.0
BURSTS, KNOWN, UNKNOWN = "127.0.4.1", "127.0.4.2", "127.0.4.3"
#: what the service says
PUBLIC = "203.0.113.7"


@pytest.fixture
def crawls(project: MakeProject, site: Callable[..., Any], start_scrapy: StartCommand) -> Callable[..., Throttled]:
    def make(hits: int, window: float, **settings: Any) -> Throttled:
        limit = {"DISTRIBUTED_THROTTLE_HITS": hits, "DISTRIBUTED_THROTTLE_WINDOW": window}
        it = project(spiders={"pages": SPIDERS})
        return Throttled(it, site(200, "--host=0.0.0.0"), start_scrapy, {**limit, **settings})

    return make


def test_without_moderation_all_hits_of_a_window_come_at_once_and_then_none(crawls: Callable[..., Throttled]) -> None:
    """C2: two processes have one burst between them, in each window."""
    hits, window = 10, 4.0
    it = crawls(hits, window, DISTRIBUTED_THROTTLE_MODERATED=False)
    jobs = [it.crawl(BURSTS, 0, 15, output="0.jl"), it.crawl(BURSTS, 15, 30, spider="others", output="1.jl")]
    for command in jobs:
        assert command.wait().code == 0
    times = it.times(BURSTS)
    assert len(times) == 30
    # The quickest of them: a machine that stands still for a moment is not the throttle.
    assert min(last - first for first, last in zip(times, times[hits - 1 :], strict=False)) < BURST, times
    assert assert_limit(it.permits(BURSTS, "0.jl", "1.jl"), times, hits, window) == hits


#: leads every host to this machine
LOOPBACK = """
from scrapy.resolver import CachingThreadedResolver
from twisted.internet import defer


class Loopback(CachingThreadedResolver):
    def getHostByName(self, name, timeout=()):
        return defer.succeed("127.0.0.1")
"""


def test_hosts_of_one_registered_domain_share_a_limit_and_those_of_a_public_suffix_do_not(
    crawls: Callable[..., Throttled],
) -> None:
    """C8: the window is longer than the test."""
    it = crawls(3, 3600, DISTRIBUTED_THROTTLE_MODERATED=False, DNS_RESOLVER="small.loopback.Loopback")
    it.project.write("small/loopback.py", LOOPBACK)
    hosts = ("a.x.co.uk", "b.x.co.uk", "x.com.br", "y.com.br")
    running = [it.crawl(host, 0, 10) for host in hosts]

    def came() -> tuple[int, ...]:
        first, second, *others = (len(it.hits(host)) for host in hosts)
        return first + second, *others

    wait_for(lambda: came() == (3, 3, 3), 60, "the hits that the limits allow")
    for command in running:
        command.signal()
        assert command.wait(60).code == 0
    assert came() == (3, 3, 3)


@pytest.fixture
def service() -> Iterator[Service]:
    """One that answers until it is told to hang."""
    one = Service()
    with closing(one.peer):
        yield one


class Service:
    """A service that tells who asks his own address."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        #: questions that have no answer
        self.open = 0
        self.peer = BadPeer(self._play)
        self.url = f"http://127.0.0.1:{self.peer.port}/raw"

    def _play(self, connection: Connection, _request: bytes) -> None:
        if not self.hangs.is_set():
            connection.answer(200, PUBLIC.encode())
            return
        self.open += 1
        connection.hang()


def test_a_service_of_addresses_that_hangs_holds_nothing_up_and_no_limit_is_exceeded(
    crawls: Callable[..., Throttled], service: Service, run_cli: RunCommand
) -> None:
    """C7: who knew the address goes on under it, who never did under a name that all of those share."""
    gap = 0.2
    ours: dict[str, Any] = {
        "DISTRIBUTED_THROTTLE_PER_IP": True, "DISTRIBUTED_THROTTLE_PUBLIC_IP": service.url,
        "DISTRIBUTED_THROTTLE_PUBLIC_IP_REFRESH": 0.2,
    }  # fmt: skip
    it = crawls(10, 10 * gap, **ours)
    knowing = [it.crawl(KNOWN, 0, 100), it.crawl(KNOWN, 100, 200, spider="others")]
    wait_for(lambda: _spiders(it, KNOWN) == 2, 60, "hits of both processes")
    service.hangs.set()
    wait_for(lambda: service.open >= 2, 60, "questions of both that get no answer")
    before = len(it.hits(KNOWN))
    for command in [it.crawl(UNKNOWN, 0, 10), it.crawl(UNKNOWN, 10, 20, spider="others")]:
        assert command.wait().code == 0
    during = it.times(KNOWN)[before:]
    for command in knowing:
        command.interrupt()
        assert command.wait().code == 0
    assert len(it.hits(UNKNOWN)) == 20
    assert min(mean_gap(it.times(host)) for host in (KNOWN, UNKNOWN)) > 0.9 * gap
    assert mean_gap(during) < 3 * gap, "a question that waits five seconds for its answer holds up nothing"
    shown = run_cli(it.project, "throttle", "show", "--json", env={"SDIST_STORE": it.store}).json()
    keys = {row["domain"]: set(row["keys"]) for row in shown["domains"]}
    assert keys == {KNOWN: {f"{PUBLIC}|{KNOWN}"}, UNKNOWN: {f"unknown|{UNKNOWN}"}}


def _spiders(it: Throttled, host: str) -> int:
    return len({row["target"].rpartition("=")[2] for row in it.hits(host)})
