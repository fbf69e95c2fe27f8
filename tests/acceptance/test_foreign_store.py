"""Another program writes to the Redis server: no command of `sdist` does what it says, and each says why."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rig.commands import Result
from rig.crawls import ADDON, QUICK
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.redis import RedisServer

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.store import open_store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with closing(RedisServer(tmp_path / "redis")) as one:
        yield one


def assert_told(result: Result, *words: str) -> None:
    """One paragraph of ours, and no fault of ours."""
    assert "Traceback" not in result.err
    assert "has no words for" not in result.err
    assert [word for word in words if word not in result.err] == [], result.err


def test_neither_a_command_nor_a_file_comes_of_what_another_program_wrote(
    project: MakeProject, server: RedisServer, run_cli: RunCommand, tmp_path: Path
) -> None:
    it, env = project(), {"SDIST_STORE": server.url}
    ran, logged = tmp_path / "ran", tmp_path / "logged"
    evil = {
        "settings": {"DISTRIBUTED_ON_FINISH": f"touch {ran}", "DISTRIBUTED_NODES": [f"cmd:touch {ran}"]},
        "spider_settings": {"LOG_FILE": str(logged), "FEEDS": json.dumps({str(logged): {"format": "jsonlines"}})},
    }
    with closing(open_store(server.url)) as store:
        for name in ("evil", "../../../victim"):
            store.add_crawl(
                Crawl(id=name, project="properties", spider="easy", state=CrawlState.STOPPED, created=2e9, options=evil)
            )
    resumed = run_cli(it, "resume", "evil", env=env, timeout=90)
    assert not ran.exists()
    assert not logged.exists()
    assert resumed.code == 2, resumed.err
    assert_told(resumed, "evil", "is not believed", "sdist trust evil", "sdist clean evil")
    assert_told(run_cli(it, "retry", "evil", env=env), "is not believed")
    for words in (("report",), ("report", "../../../victim"), ("clean", "../../../victim", "--yes")):
        assert_told(run_cli(it, *words, env=env), "../../../victim")
    assert list(tmp_path.rglob("victim*")) == list(it.path.parents[2].glob("victim*")) == []
    listed = run_cli(it, "crawls", "--json", env=env)
    assert [one["crawl"] for one in listed.json()["crawls"]] == ["evil"], "which can be looked at, and removed"
    asked = run_cli(it, "trust", "evil", env=env)
    assert (asked.code, f"touch {ran}" in asked.err) == (2, True), asked.err
    assert run_cli(it, "clean", "evil", "--yes", env=env).code == 0


@pytest.mark.black_box
def test_a_crawl_whose_row_was_changed_is_not_gone_on_with_until_it_is_trusted(
    fleet: StartFleet, site: StartSite, project: MakeProject, server: RedisServer, run_cli: RunCommand, tmp_path: Path
) -> None:
    pages, env = site(30, per_page=10), {"SDIST_STORE": server.url}
    it = project(nodes=fleet(1), settings={"ADDONS": ADDON, "START_URL": pages.start_url, **QUICK})
    words = ("crawl", "easy", "--index", pages.template, "--pages", "3", "-O", "items.jl", "--pull")
    assert run_cli(it, *words, env=env).code == 0
    assert len(list(it.items("items.jl"))) == 30
    with closing(open_store(server.url)) as store:
        (row,) = store.crawls()
        settings = {**row.options["settings"], "DISTRIBUTED_ON_FINISH": f"touch {tmp_path / 'ran'}"}
        # As an older sdist would have left it: with no signature at all.
        store.update_crawl(row.id, options={**row.options, "settings": settings}, state=CrawlState.STOPPED)
        payload = {"DISTRIBUTED_START_URLS": '[{"url":"file:///etc/passwd"}]'}
        store.seal(row.id, payload, size=1, fingerprints=(), now=1.0, counts={})
    resumed = run_cli(it, "resume", row.id, env=env)
    assert_told(resumed, "is not believed", "it has no signature", f"sdist trust {row.id}")
    assert not (tmp_path / "ran").exists()
    with closing(open_store(server.url)) as store:
        last = max(store.batches(row.id), key=lambda batch: batch.number)
    listed = run_cli(it, "batches", row.id, "--batch", str(last.number), "--urls", env=env)
    assert_told(listed, "is not believed")
    assert "passwd" not in listed.out
    assert run_cli(it, "trust", row.id, "--yes", env=env).code == 0
    assert run_cli(it, "resume", row.id, env=env, timeout=120).code in {0, 3}
    assert (tmp_path / "ran").exists(), "what a person has looked at is done"
