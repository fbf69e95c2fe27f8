"""A sweep of many nodes, some of them dead: how long it takes, and that the living are told before the dead are."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rig.badpeer import BadPeer, Connection
from rig.manynodes import BlackHole, ManyNodes, refusing
from rig.tls import Authority

from scrapyd_dist.errors import ConnectTimeout, NoReply, NoTls
from scrapyd_dist.fleet.node_poll import ask_nodes
from scrapyd_dist.fleet.port_probes import certificate_end, speaks_http, speaks_tls
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import MAX_THREADS
from scrapyd_dist.transports.requests import RequestsTransport, ThreadTransport

CONNECT = 2.0
#: seconds that a node which never answers is waited for
SILENT = 4.0


def test_two_hundred_nodes_fifty_of_them_dead() -> None:
    with closing(ManyNodes()) as many, closing(BlackHole()) as hole:
        # The dead stand at the front, where they hold most of the threads at once.
        dead = [hole.node(f"hole{n}") for n in range(25)] + [
            refusing(f"closed{n}") for n in range(25)
        ]
        nodes = dead + [many.node(f"web{n}") for n in range(150)]
        sender = RequestsTransport(connect_timeout=CONNECT)
        threads_before = threading.active_count()
        began, most = time.monotonic(), 0
        told: dict[str, float] = {}
        seen = {}
        for one in ask_nodes(sender, nodes, "p", 10):
            told.setdefault(one.node.name, time.monotonic() - began)
            seen[one.node.name] = one
            most = max(most, threading.active_count() - threads_before)
        took = time.monotonic() - began
    assert len(seen) == 200
    assert sum(one.load is not None for one in seen.values()) == 150
    assert all(seen[f"web{n}"].versions == ("1",) for n in range(150))
    assert all(type(seen[f"hole{n}"].error) is ConnectTimeout for n in range(25))
    first_dead = min(told[f"hole{n}"] for n in range(25))
    assert first_dead >= CONNECT * 0.9
    assert told["web0"] < first_dead, (
        "the first of the living is told while the dead are waited for"
    )
    assert took < 3 * CONNECT
    assert most <= MAX_THREADS
    # Who does not connect is not asked for versions as well.
    assert len(many.asked) == 300


def test_silent_nodes_delay_no_look_at_another() -> None:
    async def look() -> float:
        with closing(ThreadTransport()) as sender:
            silent = [
                asyncio.ensure_future(
                    sender.send(mute.node(f"mute{n}"), api.daemonstatus(), timeout=SILENT)
                )
                for n in range(40)
            ]
            await asyncio.sleep(0)
            began = time.monotonic()
            await sender.send(many.node("web"), api.daemonstatus(), timeout=10)
            took = time.monotonic() - began
            answers = await asyncio.gather(*silent, return_exceptions=True)
            assert [type(one) for one in answers] == [NoReply] * 40
            return took

    # Twisted's loop runs in this thread.
    with (
        closing(ManyNodes()) as many,
        closing(ManyNodes(latency=60)) as mute,
        ThreadPoolExecutor(1) as other,
    ):
        assert other.submit(lambda: asyncio.run(look())).result() < SILENT / 2


def test_a_sweep_asks_all_nodes_at_the_same_time() -> None:
    with closing(ManyNodes(together=10)) as many:
        nodes = [many.node(f"web{n}") for n in range(10)]
        found = list(ask_nodes(RequestsTransport(), nodes, "p", 20))
    assert sum(one.load is not None for one in found) >= 10


def test_a_node_may_take_longer_to_answer_than_to_connect() -> None:
    with closing(ManyNodes(latency=0.6)) as slow:
        assert (
            RequestsTransport(connect_timeout=0.3)
            .send(slow.node("b"), api.daemonstatus(), timeout=20)
            .pending
            == 0
        )


def test_a_port_without_tls_is_not_waited_for_as_long_as_an_answer() -> None:
    """Scrapyd takes a TLS greeting for the beginning of a request, and waits for its end."""
    sender = RequestsTransport(connect_timeout=0.3)
    with closing(BadPeer(lambda connection, _: connection.hang(), listens=False)) as peer:
        node = Node.parse(f"https://127.0.0.1:{peer.port}")
        began = time.monotonic()
        with pytest.raises(NoTls, match="http://") as caught:
            sender.send(node, api.daemonstatus(), timeout=20)
        assert time.monotonic() - began < 5
        assert not caught.value.maybe_accepted
        assert speaks_tls(node, 0.3) is False


def test_what_a_port_speaks(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with closing(ManyNodes()) as plain, closing(BadPeer(_page, authority.context())) as safe:
        http = plain.node("a")
        https = Node.parse(f"https://127.0.0.1:{safe.port}", ca=str(authority.file))
        assert (speaks_http(http, 5), speaks_tls(http, 0.3)) == (True, False)
        assert (speaks_http(https, 5), speaks_tls(https, 5)) == (False, True)
        ends = certificate_end(https, 5)
        assert ends is not None
        assert 0 < (ends - datetime.now(timezone.utc)).total_seconds() < 2 * 86400
        assert certificate_end(http, 5) is None
        assert certificate_end(Node.parse(https.url), 5) is None  # no authority vouches for it
    assert speaks_http(refusing("b"), 5) is None


def _page(connection: Connection, _: bytes) -> None:
    connection.answer(200, b"{}")
