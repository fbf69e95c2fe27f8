"""The Redis store when its server or the way to it breaks: every step is made, and made once."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.redis import PASSWORD, RedisServer
from rig.stores import CRAWL, LESSEE, accept, attempt, fail, halves, lease, new_batch, seal

from scrapyd_dist.batches import BatchState
from scrapyd_dist.errors import StoreError
from scrapyd_dist.store import open_store
from scrapyd_dist.throttle.permits import DomainLook, Limit, PermitRequest, Rule, SiteNews


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that may be hurt."""
    with contextlib.closing(RedisServer(tmp_path / "redis")) as server:
        yield server


def test_a_server_that_was_killed_and_came_back_has_every_step(own: RedisServer) -> None:
    with contextlib.closing(open_store(own.url)) as store:
        store.add_crawl(CRAWL)
        for number in range(1, 6):
            seal(store, fingerprints=[str(number).encode()], counts={"sealed": 2})
            store.open_attempt("c", attempt(batch=number))
            own.kill()
            own.start()
            accept(store, batch=number)
        assert {batch.state for batch in store.batches("c")} == {BatchState.DONE}
        assert (len(list(store.fingerprints("c"))), store.counts("c")) == (5, {"sealed": 10})


def test_a_call_waits_for_a_server_that_is_away(own: RedisServer) -> None:
    with contextlib.closing(open_store(own.url)) as store:
        store.add_crawl(CRAWL)
        own.kill()
        timer = threading.Timer(1.0, own.start)
        timer.start()
        assert seal(store) == 1
        timer.join()


def test_a_server_that_stays_away_is_told_without_its_password(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(open_store(own.url)) as store:
        store.add_crawl(CRAWL)
        monkeypatch.setattr(store.connection, "_patience", 0.3)
        own.kill()
        with pytest.raises(StoreError, match=f"redis://127.0.0.1:{own.port}/0 failed") as caught:
            seal(store)
        with pytest.raises(StoreError):
            store.crawls()
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_server_that_answers_no_more_is_given_up(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapyd_dist.store.redis.redis_link.TIMEOUT", 0.5)
    with contextlib.closing(open_store(own.url)) as store:
        store.add_crawl(CRAWL)
        monkeypatch.setattr(store.connection, "_patience", 1.0)
        own.pause()
        with pytest.raises(StoreError, match="failed"):
            seal(store)
        own.go_on()
        assert seal(store) in {1, 2}  # the one before may have been made without an answer


class Breaker:
    """Stands before a server, and breaks connections before chosen answers: their steps are made all the same."""

    def __init__(self, server: RedisServer) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server = server.port
        self.url = server.url.replace(str(server.port), str(self._listener.getsockname()[1]))
        self.breaks = 0  #: how many answers are still to be lost
        self.broken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(
                    target=self._serve, args=(self._listener.accept()[0],), daemon=True
                ).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(("127.0.0.1", self._server)) as server,
            contextlib.suppress(OSError),
        ):
            losing = False
            while True:
                for side in select.select([client, server], [], [])[0]:
                    data = side.recv(1 << 20)
                    if not data:
                        return
                    if side is client:
                        losing = self.breaks > 0 and b"EVALSHA" in data
                        server.sendall(data)
                    elif losing:
                        self.breaks -= 1
                        self.broken += 1
                        return
                    else:
                        client.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def breaker(redis_server: RedisServer) -> Iterator[Breaker]:
    with contextlib.closing(Breaker(redis_server)) as one:
        yield one


@pytest.mark.parametrize("breaks", [1, pytest.param(3, marks=pytest.mark.full)])
def test_a_step_whose_answer_is_lost_is_made_once_all_the_same(
    breaks: int, breaker: Breaker
) -> None:
    with contextlib.closing(open_store(f"{breaker.url}?prefix=lost{breaks}:")) as store:
        steps: list[Callable[[], Any]] = [
            lambda: store.add_crawl(CRAWL),
            lambda: store.count("c", {"offsite": 1}),
            lambda: seal(store, fingerprints=[b"1"], counts={"sealed": 2}),
            lambda: store.open_attempt("c", attempt()),
            lambda: store.running("c", 1, 1),
            lambda: fail(store),
            lambda: store.split("c", 1, halves(1, 1)),
            lambda: store.open_attempt("c", replace(attempt(batch=2), job="x")),
            lambda: fail(store, batch=2, most=1),
            lambda: store.requeue("c", [2]),
            lambda: store.add_sample("c", 1.0, {}),
            lambda: store.open_attempt("c", attempt(batch=3)),
            lambda: accept(store, batch=3),
            lambda: store.add_batches(
                "c", [new_batch("a"), new_batch("b", slot="x")], counts={"sealed": 2}
            ),
            lambda: lease(store, slots=["x"]),
            lambda: store.ack(
                "c",
                5,
                1,
                LESSEE.job,
                report={},
                new=[new_batch("d")],
                now=1.0,
                counts={"sealed": 1},
            ),
            lambda: store.drop_batch("c", 4, forget=True),
            lambda: lease(store),
            lambda: lease(store),
            lambda: store.give_back("c", 6, 1, LESSEE.job, reason="", now=1.0),
            lambda: store.register_producer("c", "me", 60.0),
        ]
        answers = []
        for step in steps:
            breaker.breaks = breaks
            answers.append(step())
            assert breaker.breaks == 0
        assert breaker.broken == breaks * len(steps)
        assert answers[2] == 1
        assert [batch.number for batch in answers[6]] == [2, 3]
        assert (answers[8], answers[9]) == (BatchState.DEAD, [2])
        assert store.counts("c") == {"offsite": 1, "sealed": 5}
        states = [(batch.number, batch.state.value) for batch in store.batches("c")]
        assert states == [(1, "split"), (2, "running"), (3, "done"), (5, "running"), (6, "sealed")]
        assert [(answers[at].batch.number, answers[at].attempt) for at in (14, 17, 18)] == [
            (5, 1),
            (2, 2),
            (6, 1),
        ]
        assert set(store.fingerprints("c")) == {b"1", b"b", b"d"}
        backlog = store.backlog("c")
        assert (backlog.waiting, backlog.leased, backlog.acked, backlog.producers) == (
            1,
            1,
            1,
            ("me",),
        )
        assert len(store.samples("c")) == 1


def test_permits_whose_answer_is_lost_are_charged_once(breaker: Breaker) -> None:
    asked = PermitRequest(
        key="a.com",
        domain="a.com",
        count=3,
        limit=Limit(hits=10, window=1000.0),
        pages=9,
        budget="c",
    )
    with contextlib.closing(open_store(f"{breaker.url}?prefix=lostpermits:")) as store:
        steps: list[Callable[[], Any]] = [
            lambda: store.change_rules({"b.com": Rule(paused=True)}),
            lambda: store.take_permits([asked, replace(asked, key="b.com", domain="b.com")]),
            lambda: store.return_permits(taken[1].answers[0].permits[2:]),
            lambda: store.tell_sites([SiteNews(domain="a.com", refused_at=4e9)], 0),
        ]
        taken: list[Any] = []
        for step in steps:
            breaker.breaks = 1
            taken.append(step())
            assert breaker.breaks == 0
        first, held = taken[1].answers
        assert [round(permit.at - taken[1].now) for permit in first.permits] == [0, 100, 200]
        assert (held.held, taken[0]) == (True, 1)
        assert taken[3] == DomainLook(version=2, changed=frozenset({"a.com", "b.com"}))
        (state,) = store.domain_states()
        assert (state.pages, state.pace, state.next_at) == ({"c": 2}, 0.5, first.permits[1].at)
