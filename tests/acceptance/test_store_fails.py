"""A store that fails in the middle of a crawl: nothing hangs, nothing is called good, and nothing is lost."""

import sqlite3

import pytest
from rig.crawls import ADDON, QUICK
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.waiting import wait_for


@pytest.mark.black_box
def test_a_batch_that_cannot_be_sealed_stops_the_crawl_and_is_found_again(
    fleet: StartFleet, site: StartSite, project: MakeProject, start_scrapy: StartCommand, run_cli: RunCommand
) -> None:
    origin = site(90, "--latency=0.3", per_page=10)
    it = project(
        nodes=fleet(1), settings={"ADDONS": ADDON, "START_URL": origin.start_url, **QUICK, "DISTRIBUTED_BATCH_SIZE": 20}
    )
    command = start_scrapy(it, "crawl", "easy", "-o", "items.jl")
    path = it.path / ".sdist" / "store.db"

    def counted() -> int:
        if not path.exists():
            return 0
        database = sqlite3.connect(path)
        try:
            return int(database.execute("SELECT count(*) FROM batches").fetchone()[0])
        except sqlite3.Error:
            return 0
        finally:
            database.close()

    wait_for(lambda: counted() >= 1, 60, "the first batch")
    database = sqlite3.connect(path, timeout=30)
    with database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON batches BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    stopped = command.wait(60)
    assert (stopped.code, "disk full" in stopped.err) == (1, True), stopped.err
    with database:
        database.execute("DROP TRIGGER full")
        (name,) = database.execute("SELECT id FROM crawls").fetchone()
    database.close()

    resumed = run_cli(it, "resume", name)

    assert resumed.code == 0, resumed.err
    assert origin.differences(it.items("items.jl")) == {}
