"""Watching a row of the store: when the watch ends, and with what."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapyd_dist.cli.commands import load
from scrapyd_dist.cli.crawls import producer_process, watcher
from scrapyd_dist.cli.crawls.live_view import View

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.store import Store, open_store

QUIET = watcher.WatchOptions(no_progress=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(tmp_path / ".sdist" / "store.db")) as opened:
        yield opened


def row(state: CrawlState = CrawlState.STARTING, **fields: Any) -> Crawl:
    values: dict[str, Any] = {"id": "c", "project": "p", "spider": "easy", "created": time.time(), **fields}
    return Crawl(state=state, **values)


def test_an_ended_crawl_is_summed_up_with_its_own_exit_code(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = {"items": 5, "failed_urls": 2, "duration_s": 1}
    store.add_crawl(row(CrawlState.FINISHED, exit_code=3, summary=summary))
    folder = producer_process.crawl_folder(tmp_path, "c")
    folder.mkdir(parents=True)
    (folder / "misses.jsonl").write_text('{"url": "http://w/1", "kind": "failed", "reason": "503"}\ntorn {\n')
    assert watcher.watch(tmp_path, store, "c", QUIET) == 3
    said = capsys.readouterr()
    assert "Crawl c finished after 1 s: 5 items." in said.out
    assert "http://w/1  503" in said.out
    assert said.err == ""


def test_json_is_one_document_and_nothing_else(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add_crawl(row(CrawlState.STOPPED, exit_code=3, summary={"items": 5}, message="Go on with: sdist resume c"))
    assert watcher.watch(tmp_path, store, "c", watcher.WatchOptions(as_json=True, no_progress=True)) == 3
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["schema"], document["state"], document["items"]) == (1, "stopped", 5)
    assert said.err == "sdist: Go on with: sdist resume c\n"


def test_a_refused_crawl_is_one_paragraph_and_without_a_terminal_no_question_comes(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add_crawl(row(CrawlState.REFUSED, exit_code=4, message="There is no spider 'x'."))
    assert watcher.watch(tmp_path, store, "c", QUIET) == 4
    assert capsys.readouterr() == ("", "sdist: There is no spider 'x'.\n")
    assert watcher._wants_stop("c") is False
    assert "sdist watch c" in capsys.readouterr().err


def test_a_crawl_whose_process_is_gone(tmp_path: Path, store: Store) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    store.add_crawl(row(CrawlState.WORKING, pid=ended.pid, beat=time.time()))
    folder = producer_process.crawl_folder(tmp_path, "c")
    folder.mkdir(parents=True)
    (folder / "producer.log").write_text("MemoryError\n")
    for process in (None, ended):
        with pytest.raises(watcher.ProducerDied, match=r"(?s)MemoryError.*sdist resume c") as died:
            watcher.watch(tmp_path, store, "c", QUIET, process)
        assert died.value.exit_code == 1


@pytest.mark.parametrize("command", ["watch", "crawl", "resume", "retry"])
def test_the_time_of_a_watch_is_given_in_seconds_minutes_or_hours(command: str) -> None:
    found: Any = load(command)
    assert found.make_context(command, ["c", "--timeout", "1.5m"]).params["timeout"] == 90
    with pytest.raises(ConfigError, match=r"--timeout 'soon'.*30m"):
        found.make_context(command, ["c", "--timeout", "soon"])


def test_the_watch_ends_after_its_time_and_the_crawl_goes_on(tmp_path: Path, store: Store) -> None:
    store.add_crawl(row(CrawlState.WORKING, pid=os.getpid(), beat=time.time()))
    with pytest.raises(watcher.StillRuns, match="sdist watch c") as ended:
        watcher.watch(tmp_path, store, "c", watcher.WatchOptions(no_progress=True, timeout=0.01))
    assert ended.value.exit_code == 124
    assert store.crawl("c").state is CrawlState.WORKING


def test_a_row_that_comes_to_its_end_is_seen(tmp_path: Path, store: Store) -> None:
    store.add_crawl(row(CrawlState.FINDING, pid=os.getpid(), beat=time.time()))

    class Ending(View):
        def show(self, crawl: Crawl, now: float) -> None:
            # The view is shown each state; after the first one the producer ends.
            if not crawl.state.ended:
                store.update_crawl("c", state=CrawlState.FINISHED, exit_code=0)

    assert watcher.until_ended(tmp_path, store, "c", Ending(), 20.0, None).state is CrawlState.FINISHED


def test_plain_lines_come_at_each_change_and_every_30_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    view, states = watcher.PlainView(), CrawlState
    steps = [
        (-2, states.STARTING, 0), (-1, states.STARTING, 0), (0, states.FINDING, 1), (1, states.FINDING, 0),
        (29.9, states.FINDING, 0), (30, states.FINDING, 1), (31, states.WORKING, 1), (60.9, states.WORKING, 0),
        (61, states.FINISHED, 0),
    ]  # fmt: skip
    for now, state, lines in steps:
        view.show(row(state), now)
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", lines), now


def test_the_log_view_shows_what_was_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "producer.log"
    view = watcher.LogView(log)
    view.show(row(), 0)  # not there yet
    log.write_text("one\n")
    view.show(row(), 1)
    with log.open("a") as file:
        file.write("two\n")
    view.show(row(), 2)
    assert capsys.readouterr().err == "one\ntwo\n"


def test_the_state_in_a_word() -> None:
    assert watcher.alive_state(row(CrawlState.FINISHED, pid=None)) == "finished"
    assert watcher.alive_state(row(CrawlState.WORKING, pid=os.getpid(), beat=time.time())) == "working"
    assert watcher.alive_state(row(CrawlState.WORKING, pid=None)) == "died"
