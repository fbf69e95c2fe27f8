"""Scrapy replaces the reactor's resolver by one that knows no IPv6; calls to nodes are not touched by that."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest_twisted
from scrapy.resolver import CachingThreadedResolver
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred

from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports.treq import TreqTransport

reactor: Any = installed


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"status": "ok", "projects": ["a"]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def server() -> Iterator[int]:
    with _Server(("::1", 0), _Answer) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_port
        made.shutdown()


@contextmanager
def scrapys_resolver() -> Iterator[None]:
    before = reactor.nameResolver
    CachingThreadedResolver(reactor, 100, 10).install_on_reactor()
    try:
        yield
    finally:
        reactor.installNameResolver(before)


@pytest_twisted.ensureDeferred
async def test_an_ipv6_address_in_a_process_of_scrapy() -> None:
    with server() as port, scrapys_resolver():
        sent = TreqTransport().send(Node.parse(f"[::1]:{port}"), api.listprojects())
        assert await Deferred.fromFuture(asyncio.ensure_future(sent)) == ("a",)
