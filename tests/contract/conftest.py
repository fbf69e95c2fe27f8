"""What contract tests share: stores, the transports' senders as one blocking kind, bad peers, and `sdist frontier`."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rig.badpeer import BadPeer
from rig.stores import opened, redis_server, store, where  # noqa: F401 - fixtures
from scrapyd_dist.cli import main
from twisted.internet.defer import Deferred
from twisted.internet.threads import blockingCallFromThread, deferToThread

from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.transports import AsyncSender, Sender
from scrapyd_dist.transports.requests import RequestsTransport, ThreadTransport
from scrapyd_dist.transports.treq import TreqTransport

T = TypeVar("T")

#: seconds for a connection; what waits for this to pass is short, what expects an answer has 20
CONNECT_TIMEOUT = 1.5


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Tests of the senders run in a thread: pytest-twisted calls them in the reactor, which cannot wait for itself."""
    if "sender" in pyfuncitem.fixturenames:
        pyfuncitem.obj = partial(deferToThread, pyfuncitem.obj)


class _Blocking:
    """An AsyncSender for tests that are written once for all: it runs each awaitable to its end."""

    def __init__(self, sender: AsyncSender, run: Callable[[Awaitable[Any]], Any]) -> None:
        self._sender, self._run = sender, run

    def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> Any:
        return self._run(self._sender.send(node, call, timeout=timeout))

    def close(self) -> None:
        self._sender.close()


def _in_reactor(awaitable: Awaitable[Any]) -> Any:
    from twisted.internet import reactor

    def start() -> Deferred[Any]:
        return Deferred.fromFuture(asyncio.ensure_future(awaitable))

    return blockingCallFromThread(reactor, start)


def _in_other_loop(awaitable: Awaitable[T]) -> T:
    async def wait() -> T:
        return await awaitable

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(wait())).result(120)


@pytest.fixture(params=["requests", "treq", "threads"])
def sender(request: pytest.FixtureRequest) -> Iterator[Sender]:
    made: Sender
    if request.param == "requests":
        made = RequestsTransport(connect_timeout=CONNECT_TIMEOUT)
    elif request.param == "treq":
        made = _Blocking(TreqTransport(connect_timeout=CONNECT_TIMEOUT), _in_reactor)
    else:
        made = _Blocking(
            ThreadTransport(RequestsTransport(connect_timeout=CONNECT_TIMEOUT)), _in_other_loop
        )
    yield made
    if isinstance(made, _Blocking):
        made.close()


@pytest.fixture
def peer() -> Iterator[Callable[..., BadPeer]]:
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(closing(BadPeer(*args, **options)))


@pytest.fixture
def sdist(
    tmp_path: Path,
    where: str,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Any]:
    """`sdist("count", "shop")`: the document of `sdist frontier count shop --json`; SDIST_STORE names the store."""
    (tmp_path / "scrapy.cfg").write_text(
        "[settings]\ndefault = scrapy.settings.default_settings\n", "utf-8"
    )
    (tmp_path / "folder").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDIST_STORE", where)

    def run(*arguments: object, code: int = 0) -> Any:
        assert main._run(["frontier", *map(str, arguments), "--json"], debug=False) == code
        return json.loads(capsys.readouterr().out)

    return run
