"""The same promises over requests, treq and threads, against a real Scrapyd, open and with a password."""

import asyncio
import datetime as dt
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
import pytest_twisted
from rig.badpeer import BadPeer, Connection
from rig.calls import JOB, PASSWORD, node_at, says
from rig.fixtures import StartFleet
from rig.nodes import ScrapydNode
from rig.waiting import wait_for
from scrapy.resolver import CachingThreadedResolver
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from scrapyd_dist.errors import ApiRefused, AuthRefused, NotFound, NotJson
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.transports import Sender
from scrapyd_dist.transports.treq import TreqTransport

SPIDERS = """
import scrapy
from scrapy import signals
from scrapy.exceptions import DontCloseSpider

class Stays(scrapy.Spider):
    name = "stays"
    start_urls = ["data:,x"]

    @classmethod
    def from_crawler(cls, crawler, **arguments):
        spider = super().from_crawler(crawler, **arguments)
        crawler.signals.connect(spider.stay, signals.spider_idle)
        return spider

    def parse(self, response):
        self.logger.info("the words to look for")

    def stay(self):
        raise DontCloseSpider
"""


def _egg(spiders: str) -> bytes:
    files = {
        "EGG-INFO/PKG-INFO": "Metadata-Version: 1.0\nName: project\nVersion: 1.0\n",
        "EGG-INFO/entry_points.txt": "[scrapy]\nsettings = wired.settings\n",
        "EGG-INFO/top_level.txt": "wired\n",
        "wired/__init__.py": "",
        "wired/settings.py": "BOT_NAME = 'wired'\nSPIDER_MODULES = ['wired.spiders']\nTELNETCONSOLE_ENABLED = False\n",
        "wired/spiders.py": spiders,
    }
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


@pytest.fixture(
    scope="module", params=[pytest.param("open", marks=pytest.mark.black_box), "password"]
)
def scrapyd(request: pytest.FixtureRequest, module_fleet: StartFleet) -> ScrapydNode:
    options = {"username": "me", "password": PASSWORD} if request.param == "password" else {}
    # The process ids that Scrapyd tells are those of jobs that are not forked.
    return module_fleet(1, max_proc=1, poll_interval=0.2, runner="scrapyd.runner", **options)[0]


@pytest.fixture
def node(scrapyd: ScrapydNode) -> Node:
    return Node.parse(
        scrapyd.url,
        name=scrapyd.name,
        username=scrapyd.username or None,
        password=scrapyd.password or None,
    )


class TestScrapyd:
    def test_a_project_comes_and_goes(self, sender: Sender, node: Node) -> None:
        assert sender.send(node, api.addversion("p ü&1", "r1", _egg(SPIDERS))) == 1
        assert sender.send(node, api.listprojects()) == ("p ü&1",)
        assert sender.send(node, api.listversions("p ü&1")) == ("r1",)
        assert sender.send(node, api.listspiders("p ü&1", "r1")) == ("stays",)
        sender.send(node, api.delversion("p ü&1", "r1"))
        with pytest.raises(ApiRefused) as caught:
            sender.send(node, api.delproject("p ü&1"))
        assert caught.value.scrapyd_message == "project 'p ü&1' not found"
        assert sender.send(node, api.listversions("p ü&1")) == ()

    def test_a_broken_egg(self, sender: Sender, node: Node) -> None:
        with pytest.raises(ApiRefused) as caught:
            sender.send(node, api.addversion("broken", "r1", _egg("import not_there")))
        assert (
            caught.value.scrapyd_message
            == "RunnerError: ModuleNotFoundError: No module named 'not_there'"
        )
        assert "\n" not in str(caught.value)
        assert sender.send(node, api.listversions("broken")) == (
            "r1",
        )  # it is kept: the reason for delversion
        sender.send(node, api.delproject("broken"))

    def test_the_life_of_two_jobs(self, sender: Sender, scrapyd: ScrapydNode, node: Node) -> None:
        sender.send(node, api.addversion("jobs", "r1", _egg(SPIDERS)))
        stamp = str(time.monotonic_ns())
        first, second = f"c{stamp}.b1.a1", f"c{stamp}.b2.a1"
        args, settings = {"text": "a=b & ü", "empty": ""}, {"MY_SETTING": "x=y;ß", "OTHER": "2"}

        assert sender.send(node, api.status(first)) is None
        assert sender.send(node, api.schedule("jobs", "stays", jobid=first, version="r1")) == first
        wait_for(
            lambda: sender.send(node, api.status(first, "jobs")) is api.JobState.RUNNING,
            30,
            "the first job",
        )
        waiting = api.schedule(
            "jobs", "stays", jobid=second, version="r1", args=args, settings=settings, priority=1
        )
        sender.send(node, waiting)

        jobs = sender.send(node, api.listjobs("jobs"))
        (pending,), (running,) = jobs.pending, jobs.running
        assert (pending.id, pending.version, pending.settings) == (second, "r1", settings)
        assert args.items() <= pending.args.items()
        assert (running.id, running.spider, running.project) == (first, "stays", "jobs")
        assert running.pid in scrapyd.job_pids()
        assert running.start_time is not None
        local = dt.datetime.now()  # noqa: DTZ005 - as Scrapyd writes it
        assert abs(running.start_time - local) < dt.timedelta(minutes=5)
        load = sender.send(node, api.daemonstatus())
        assert (load.pending, load.running, load.node_name) == (1, 1, scrapyd.name)
        assert load.date is not None
        assert abs(load.date - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(minutes=5)

        wait_for(lambda: "the words to look for" in scrapyd.job_log(first), 30, "its page")
        assert sender.send(node, api.cancel("jobs", second)) is api.JobState.PENDING
        assert sender.send(node, api.cancel("jobs", first)) is api.JobState.RUNNING
        wait_for(
            lambda: sender.send(node, api.status(first)) is api.JobState.FINISHED, 30, "its end"
        )
        assert sender.send(node, api.cancel("jobs", first)) is None
        done = sender.send(node, api.listjobs()).finished[0]
        assert done.id == first
        assert done.start_time is not None
        assert done.end_time is not None
        assert done.end_time > done.start_time
        self._read_log(sender, node, first)

    @staticmethod
    def _read_log(sender: Sender, node: Node, job: str) -> None:
        path = f"logs/jobs/stays/{job}.log"
        got = bytearray()
        sender.send(node, api.fetch(path, sink=got.extend))
        assert b"the words to look for" in got
        piece = sender.send(node, api.fetch(path, start=10, limit=20))
        assert piece is not None
        assert (piece.body, piece.start, piece.total) == (bytes(got[10:30]), 10, len(got))
        last = api.tail(path, 15, sender.send(node, api.fetch(path, start=0, limit=15)))
        assert last is not None
        end = sender.send(node, last)
        assert end is not None
        assert (end.body, end.start) == (bytes(got[-15:]), len(got) - 15)
        assert (
            api.tail(path, 10**6, sender.send(node, api.fetch(path, start=0, limit=10**6))) is None
        )
        beyond = sender.send(node, api.fetch(path, start=len(got)))
        assert beyond is not None
        assert (beyond.body, beyond.total) == (b"", len(got))
        assert sender.send(node, api.fetch("logs/jobs/stays/no.log")) is None
        with pytest.raises(NotJson):
            sender.send(node, api.fetch("logs/jobs/"))  # a listing is no file

    def test_a_wrong_password(self, sender: Sender, scrapyd: ScrapydNode, node: Node) -> None:
        stranger = Node.parse(scrapyd.url, username="me", password="guess")
        if node.username is None:
            assert sender.send(stranger, api.daemonstatus()).node_name == scrapyd.name
            return
        for wrong in (stranger, Node.parse(scrapyd.url)):
            with pytest.raises(AuthRefused):
                sender.send(wrong, api.daemonstatus())
            with pytest.raises(AuthRefused):
                sender.send(wrong, api.fetch("logs/"))

    def test_refusals(self, sender: Sender, node: Node) -> None:
        calls: tuple[Call[Any], ...] = (
            api.listspiders("nobody"),
            api.schedule("nobody", "s", jobid="x"),
            api.cancel("nobody", "x"),
        )
        for call in calls:
            with pytest.raises(ApiRefused) as caught:
                sender.send(node, call)
            assert caught.value.scrapyd_message == "project 'nobody' not found"

    def test_a_page_that_is_not_there(self, sender: Sender, node: Node) -> None:
        elsewhere = Node.parse(
            f"{node.url}/elsewhere/", username=node.username, password=node.password
        )
        with pytest.raises(NotFound):
            sender.send(elsewhere, api.daemonstatus())


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"], ids=["before", "in the body"]
)
@pytest_twisted.ensureDeferred
async def test_treq_lets_go_when_cancelled(peer: Callable[..., BadPeer], head: bytes) -> None:
    closed: list[bytes] = []

    def play(connection: Connection, _: bytes) -> None:
        connection.say(head)
        closed.append(connection.wait_closed())

    server = peer(play)
    sending = asyncio.ensure_future(TreqTransport().send(node_at(server.port), JOB))
    await deferToThread(wait_for, lambda: server.requests, 10, "the request")
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await Deferred.fromFuture(sending)
    await deferToThread(wait_for, lambda: closed == [b""], 10, "the connection to be closed")


@pytest_twisted.ensureDeferred
async def test_an_ipv6_address_in_a_process_of_scrapy(peer: Callable[..., BadPeer]) -> None:
    """Scrapy replaces the reactor's resolver by one that knows no IPv6; calls to nodes are not touched by that."""
    reactor: Any = installed_reactor
    before = reactor.nameResolver
    CachingThreadedResolver(reactor, 100, 10).install_on_reactor()
    try:
        node = Node.parse(f"[::1]:{peer(says(status='ok', projects=['a']), host='::1').port}")
        sent = TreqTransport().send(node, api.listprojects())
        assert await Deferred.fromFuture(asyncio.ensure_future(sent)) == ("a",)
    finally:
        reactor.installNameResolver(before)
