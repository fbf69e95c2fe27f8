"""The producer's process seen from outside: names, signs of life, last words, and what cannot be resumed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rig.waiting import wait_for
from scrapyd_dist.cli.context import project_store
from scrapyd_dist.cli.crawls import producer_process
from scrapyd_dist.cli.crawls.crawl_options import CrawlOrder

from scrapyd_dist.batches import CRAWL_NAME, Crawl, CrawlState, crawl_name
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.store import Store

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def a_crawl(**fields: Any) -> Crawl:
    values: dict[str, Any] = {"id": "c", "project": "p", "spider": "easy", "created": time.time(), **fields}
    return Crawl(**values)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(project_store(tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize("spider", ["easy", "books.example.com", "ümlaut und leer", "x" * 200, "..."])
def test_any_spider_gives_a_name_that_a_crawl_can_have(spider: str) -> None:
    name = crawl_name(spider, NOW)
    assert CRAWL_NAME.fullmatch(name)
    assert name.endswith("-20260102T030405Z")


def test_two_crawls_of_one_second_get_two_names() -> None:
    first = crawl_name("easy", NOW.astimezone(timezone(timedelta(hours=9))))
    second = crawl_name("easy", NOW, {first})
    third = crawl_name("easy", NOW, {first, second})
    assert [first, second, third] == [f"easy-20260102T030405Z{end}" for end in ("", "-2", "-3")]


def test_a_name_in_use_is_refused_before_anything_starts_and_what_has_it_says_what_to_do(
    tmp_path: Path, store: Store
) -> None:
    store.add_crawl(a_crawl(id="mine", state=CrawlState.STOPPED))
    store.add_crawl(a_crawl(id="over", state=CrawlState.FINISHED))
    store.add_crawl(a_crawl(id="shop", kind="frontier"))
    sayings = {"mine": "sdist resume mine", "over": "sdist clean over", "shop": "There is a frontier shop already"}
    for name, said in {**sayings, "not a name": "cannot name a crawl"}.items():
        with pytest.raises(ConfigError, match=said):
            producer_process.begin(tmp_path, store, CrawlOrder(spider="easy"), name)
    assert not (tmp_path / ".sdist" / "crawls").exists()


def test_a_process_lives_that_is_the_one_which_gave_the_last_sign_of_life() -> None:
    assert producer_process.lives(a_crawl(pid=os.getpid(), beat=time.time()))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not producer_process.lives(a_crawl(pid=ended.pid, beat=time.time()))
    assert not producer_process.lives(a_crawl(pid=None))
    # one that was started after it is another process
    assert not producer_process.lives(a_crawl(pid=os.getpid(), created=1.0, beat=1.0))
    assert not producer_process.lives(a_crawl(pid=os.getpid(), created=1.0))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"state": CrawlState.FINISHED}, "nothing to resume"),
        ({"state": CrawlState.WORKING, "pid": os.getpid()}, "sdist watch c"),
    ],
)
def test_a_crawl_that_is_finished_or_runs_is_not_started_again(
    tmp_path: Path, store: Store, row: dict[str, Any], words: str
) -> None:
    store.add_crawl(a_crawl(beat=time.time(), **row))
    with pytest.raises(ConfigError, match=words):
        producer_process.begin_again(tmp_path, store, "c")


@pytest.mark.parametrize("state", [CrawlState.STOPPED, CrawlState.REFUSED, CrawlState.WORKING])
def test_resume_starts_a_process_for_the_same_crawl(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, state: CrawlState
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    store.add_crawl(a_crawl(state=state, message="why", exit_code=3, ended=5.0, options={"args": {"a": "1"}}))
    _, process = producer_process.begin_again(tmp_path, store, "c")
    process.wait(20)
    row = store.crawl("c")
    assert (row.state, row.pid, row.exit_code, row.ended, row.message) == (
        CrawlState.STARTING, process.pid, None, None, "",
    )  # fmt: skip
    assert row.options == {"args": {"a": "1"}}


def test_last_words_are_the_last_error_else_the_end(tmp_path: Path) -> None:
    assert producer_process.last_words(tmp_path, "c") == ""
    folder = producer_process.crawl_folder(tmp_path, "c")
    folder.mkdir(parents=True)
    log = folder / "producer.log"
    log.write_text("".join(f"line {at}\n\n" for at in range(50)))
    assert producer_process.last_words(tmp_path, "c").splitlines() == [f"line {at}" for at in range(38, 50)]
    log.write_text("2026 [x] ERROR: first\nmore\n2026 [x] ERROR: second\nwhy\n2026 [x] INFO: closed\n")
    assert producer_process.last_words(tmp_path, "c").splitlines()[:2] == ["2026 [x] ERROR: second", "why"]


def test_begin_writes_the_crawl_down_and_starts_a_process_of_its_own_session(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In place of Python: a program that shows what it was started with.
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@" "$SDIST_STORE"\nps -o sid= -o pid= -p $$\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    order = CrawlOrder(spider="easy", settings={"DISTRIBUTED_SHARDS": 3}, spider_settings={"A": "b"}, args={"c": "d"})
    crawl, process = producer_process.begin(tmp_path, store, order, None)
    process.wait(20)
    log = producer_process.crawl_folder(tmp_path, crawl.id) / "producer.log"
    said, ids = wait_for(lambda: log.read_text().splitlines()[:2], 5, "what the program said")
    assert said == f"-m scrapyd_dist.middlewares.producer.process {crawl.id} {tmp_path / '.sdist' / 'store.db'}"
    session, pid = map(int, ids.split())
    assert session == pid == process.pid
    row = store.crawl(crawl.id)
    assert (row.state, row.spider, row.pid) == (CrawlState.STARTING, "easy", process.pid)
    assert row.options == {
        "settings": {"DISTRIBUTED_SHARDS": 3}, "spider_settings": {"A": "b"}, "args": {"c": "d"}, "cwd": str(tmp_path),
            "own_outputs": True,
    }  # fmt: skip
    assert (tmp_path / ".sdist").stat().st_mode & 0o077 == 0


def test_a_name_that_is_taken_in_the_same_moment_is_left_to_the_other(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scrapy.cfg").write_text("", "utf-8")
    monkeypatch.setattr(producer_process, "spawn", lambda *_: None)
    order = CrawlOrder(spider="easy", settings={}, spider_settings={}, args={})
    first, _ = producer_process.begin(tmp_path, store, order, None)
    names = iter([first.id, "another"])
    monkeypatch.setattr(producer_process, "crawl_name", lambda *_: next(names))
    second, _ = producer_process.begin(tmp_path, store, order, None)
    assert second.id == "another"
