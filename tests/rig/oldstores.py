"""Stores that an older version has written, as files in `contract/stores`: one of each engine, with the same rows."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scrapyd_dist.batches import AttemptState, WorkerEntry
from scrapyd_dist.scheduling.autoscaler import listed_workers
from scrapyd_dist.store import Store
from scrapyd_dist.store.worker_thread import StoreThread

from .stores import LESSEE, YOU, accept, lease_next, seal

STORES = Path(__file__).parent.parent / "contract" / "stores"
#: of the project that wrote them
KEY_OF_OLD = b"a key of a project of yesterday"


def check_old(store: Store) -> None:
    """All that was written is there, and work goes on."""
    assert [(crawl.id, crawl.foreign) for crawl in store.crawls()] == [("shop", ""), ("c", "")]
    assert store.own_crawl("c").options == {"args": {"a": "ü"}}
    (node,) = store.nodes()
    assert (node.name, node.url, node.draining, node.idle_looks) == ("web1", "http://web1:6800", 5.0, (1.0, 2.0))
    states = ["done", "running", "dead", "split", "failed", "sealed", "sealed", "sealed"]
    assert [(batch.number, batch.state.value) for batch in store.batches("c")] == list(enumerate(states, 1))
    assert store.payload("c", 2) == {"A": "1"}
    assert [(shard.number, shard.state.value) for shard in store.shards("c")] == [(1, "finished"), (2, "open")]
    assert (store.counts("c"), store.samples("c")) == ({"sealed": 12, "found": 18}, [(3.0, {"done": 1})])
    assert [miss.url for miss in store.misses("c")] == ["http://x/p", "http://x/gone"]
    assert len(set(store.fingerprints("c"))) == 360
    assert [one.batch for one in store.attempts("c", {AttemptState.RUNNING})] == [2]
    assert store.lease("c", 2, 1, "me", 60.0, again=True)
    accept(store, batch=2)
    assert seal(store, fingerprints=[b"new"]) == 9
    _check_frontier(store)
    assert store.rules().rules["a.com"].hits == 10
    (domain,) = store.domain_states()
    assert (domain.delay, domain.pages) == (30.0, {"c": 3})


def check_workers_taken_over(store: Store) -> None:
    """The workers that the older version kept in the options become rows, and their numbers never come again."""
    thread = StoreThread(store)

    async def left() -> tuple[list[str], int]:
        there, last = await listed_workers(thread, "shop")
        one = WorkerEntry(number=last + 1, job=f"shop.w{last + 1}.a1", url="http://one:6800", pool="", since=1.0)
        await thread(store.add_workers, "shop", [one], last=one.number)
        await thread(store.remove_worker, "shop", one.job)
        return [worker.job for worker in there], one.number

    assert store.workers("shop")[0] == []
    with ThreadPoolExecutor(1) as pool:  # in a loop of its own: the tests have one
        for number in (4, 5):
            assert pool.submit(lambda: asyncio.run(left())).result() == (["shop.w2.a1", "shop.w3.a1"], number)
    assert store.own_crawl("shop").options == {"pull": True}
    assert [(one.number, one.since) for one in store.workers("shop")[0]] == [(2, 7.0), (3, 8.0)]


def _check_frontier(store: Store) -> None:
    backlog = store.backlog("shop")
    assert (backlog.waiting, backlog.leased, backlog.acked, backlog.producers) == (3, 2, 1, ("filler",))
    assert sum(sum(slot.batches.values()) for slot in store.backlog("shop").slots) == 6
    assert set(store.fingerprints("shop")) >= {b"a", b"i"}
    leased = lease_next(store, "shop", YOU, limit=9, fair="spread", now=20.0)
    assert len(leased) == 3
    store.ack("shop", leased[0].batch.number, leased[0].attempt, YOU.job, report={}, now=21.0)
    out = [one for one in store.attempts("shop", {AttemptState.RUNNING}) if one.worker == LESSEE.job]
    assert len(out) == 2
