"""A store that is away is waited for; one that has lost a crawl says so."""

from pathlib import Path

import pytest
from rig.nodemodel import model
from rig.scheduling import run, sending, until

from scrapyd_dist.errors import StoreAway, StoreEmptied
from scrapyd_dist.store.store_thread import StoreThread


def test_a_full_disk_is_waited_for_where_a_thread_has_patience() -> None:
    tries = list[int]()

    def verb() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise StoreAway("the store x failed: database or disk is full.")
        return "kept"

    class Store:
        def close(self) -> None:
            pass

    async def asked(patience: float) -> str:
        thread = StoreThread(Store(), patience=patience)  # type: ignore[arg-type]  # it is only closed
        try:
            return await thread(verb)
        finally:
            thread.close()

    with pytest.raises(StoreAway):
        run(asked(0.0))
    assert run(asked(10.0)) == "kept"


async def test_a_store_that_was_emptied_stops_the_crawl_in_words_and_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sending(tmp_path, model("one", quick=False)) as b:
        await b.seal()
        await until(lambda: len(b.posts()) == 1, "it is posted")
        b.store.forget("c")
        await b.scheduler.ended()
        assert isinstance(b.state.status.fault, StoreEmptied)
        assert b.state.stopped.startswith("The store has lost this crawl with all that was in it")
        assert b.scheduler.stop_code == 1
        assert "Traceback" not in caplog.text
