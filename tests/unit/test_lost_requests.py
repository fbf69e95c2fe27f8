"""Requests that a store has lost with its last steps are noticed, though its account balances."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rig.scheduling import run
from scrapyd_dist.middlewares.producer.crawl_repository import CrawlRepository

from scrapyd_dist.batches import Crawl
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.store import open_store
from scrapyd_dist.store.store_thread import StoreThread

CRAWL = Crawl(id="c", project="p", spider="s", created=1.0)


def test_what_was_sealed_and_is_not_there_any_more_is_counted(tmp_path: Path) -> None:
    project: Any = SimpleNamespace(state=tmp_path)
    request: Any = SimpleNamespace(options=None, project=project)

    async def lost() -> list[int]:
        thread = StoreThread(open_store(tmp_path / "store.db"))
        try:
            repository = CrawlRepository(thread, CRAWL, request)
            found = [await repository.lost_requests()]
            with closing(open_store(tmp_path / "store.db")) as store:
                for _ in range(2):
                    store.seal("c", NewBatch(payload={"x": "y"}, size=5), (), {"sealed": 5})
            found.append(await repository.lost_requests())
            with closing(open_store(tmp_path / "store.db")) as store:
                store.forget("c")
                store.add_crawl(CRAWL)
                store.seal("c", NewBatch(payload={"x": "y"}, size=5), (), {"sealed": 5})
            return [*found, await repository.lost_requests()]
        finally:
            thread.close()

    with closing(open_store(tmp_path / "store.db")) as store:
        store.add_crawl(CRAWL)
    assert run(lost()) == [0, 0, 5]
