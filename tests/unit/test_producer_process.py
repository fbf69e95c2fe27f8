"""The producer's process from outside: names, signs of life, last words, what is resumed; and the watch of its row."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import typer
from rig.commands import Result
from rig.waiting import wait_for
from scrapy.settings import Settings
from scrapyd_dist.cli.commands import load, walk
from scrapyd_dist.cli.context import Context
from scrapyd_dist.cli.crawls import producer_process, stored_crawls, watcher
from scrapyd_dist.cli.crawls.crawl_options import CrawlOrder
from scrapyd_dist.middlewares.addon import Addon
from scrapyd_dist.middlewares.producer import crawl_code
from scrapyd_dist.middlewares.producer.process import (
    _write_failure,
    describe_broken,
    project_settings,
    refuse_disabled,
)

from scrapyd_dist.batches import CRAWL_NAME, Crawl, CrawlState, Miss, WorkerEntry, crawl_name
from scrapyd_dist.errors import ConfigError, CrawlFailed, StillRuns
from scrapyd_dist.fleet.crawl_files import crawl_folder
from scrapyd_dist.fleet.live_crawls import alive_state, lives
from scrapyd_dist.fleet.project_store import project_store
from scrapyd_dist.store import Store

Captured = pytest.CaptureFixture[str]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
QUIET = watcher.WatchOptions(no_progress=True)


def a_crawl(state: CrawlState = CrawlState.STARTING, **fields: Any) -> Crawl:
    values: dict[str, Any] = {
        "id": "c",
        "project": "p",
        "spider": "easy",
        "created": time.time(),
        **fields,
    }
    return Crawl(state=state, **values)


def that_runs(state: CrawlState = CrawlState.WORKING) -> Crawl:
    """One that this process works on."""
    return a_crawl(state, pid=os.getpid(), beat=time.time())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(project_store(tmp_path)) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of the crawl."""
    made = crawl_folder(tmp_path, "c")
    made.mkdir(parents=True)
    return made


@pytest.fixture
def ended() -> subprocess.Popen[bytes]:
    """A process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process


@pytest.mark.parametrize(
    "spider", ["easy", "books.example.com", "ümlaut und leer", "x" * 200, "..."]
)
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
    sayings = {
        "mine": "sdist resume mine",
        "over": "sdist crawls clean over",
        "shop": "There is a frontier shop already",
    }
    for name, said in {**sayings, "not a name": "cannot name a crawl"}.items():
        with pytest.raises(ConfigError, match=said):
            producer_process.begin(tmp_path, store, CrawlOrder(spider="easy"), name)
    assert not (tmp_path / ".sdist" / "crawls").exists()


def test_the_name_of_a_refused_crawl_whose_workers_were_posted_is_free_again(
    tmp_path: Path, store: Store
) -> None:
    log = crawl_folder(tmp_path, "c") / "producer.log"
    reasons = {"No node can be reached.": True, f"The traceback is in {log}.": False}
    for message, is_free in reasons.items():
        store.add_crawl(a_crawl(state=CrawlState.REFUSED, exit_code=2, message=message))
        worker = WorkerEntry(number=1, job="c.0.w1.a1", url="http://a", pool="", since=1.0)
        store.add_workers("c", [worker], last=1)
        producer_process.forget_refused(tmp_path, store, "c")
        assert store.crawl("c").message == message, "its worker may ask for it"
        if is_free:
            added = producer_process._add_crawl(tmp_path, store, "easy", "c", time.time(), {})
            assert added.created == store.crawl("c").created
            # The worker of the refused one is none of it.
            assert (store.crawl("c").message, store.workers("c")) == ("", ([], 0))
            store.forget("c")
        else:
            with pytest.raises(ConfigError, match="sdist resume c"):
                producer_process._add_crawl(tmp_path, store, "easy", "c", time.time(), {})


def test_what_a_process_says_of_its_refusal_is_true_of_workers_that_were_posted(
    store: Store,
) -> None:
    error = CrawlFailed("It cannot be started. Nothing was started.", 2)
    for name, workers in (("none", 0), ("some", 2)):
        store.add_crawl(a_crawl(id=name, options={"settings": {}}))
        for number in range(1, workers + 1):
            entry = WorkerEntry(number=number, job=f"{number}", url="", pool="", since=1.0)
            store.add_workers(name, [entry], last=number)
        _write_failure(store, store.own_crawl(name), name, error)
    assert store.crawl("none").message == str(error)
    assert store.crawl("some").message == (
        "It cannot be started. No request was made; the workers that were posted before end"
        " without one."
    )


def test_a_process_lives_that_is_the_one_which_gave_the_last_sign_of_life(
    ended: subprocess.Popen[bytes],
) -> None:
    assert lives(that_runs())
    assert not lives(a_crawl(pid=ended.pid, beat=time.time()))
    assert not lives(a_crawl(pid=None))
    # one that was started after it is another process
    assert not lives(a_crawl(pid=os.getpid(), created=1.0, beat=1.0))
    assert not lives(a_crawl(pid=os.getpid(), created=1.0))


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


def test_the_page_of_a_report_may_go_to_standard_output(
    sdist: Callable[..., Result], root: Path
) -> None:
    with closing(Context(root)) as context:
        context.new_store.add_crawl(a_crawl(id="c"))
    assert sdist("report", "c", "-o", "-").expect(0).out.strip().startswith("<!doctype")
    assert not (root / "-").exists()
    sdist("report", "c", "-o", "-", "--json").expect(2, "leave one of the two out")


@pytest.mark.parametrize("code", [0, 3])
def test_to_resume_what_is_finished_ends_as_it_did(
    sdist: Callable[..., Result], root: Path, code: int
) -> None:
    """A task of a pipeline may be run again."""
    with closing(Context(root)) as context:
        context.new_store.add_crawl(a_crawl(id="c"))
        context.new_store.update_crawl("c", state=CrawlState.FINISHED, exit_code=code, ended=5.0)
    assert "nothing to resume" in sdist("resume", "c", "--quiet").expect(code).err
    assert sdist("resume", "c", "--json").expect(code).json()["crawl"] == "c"


@pytest.mark.parametrize("state", [CrawlState.STOPPED, CrawlState.REFUSED, CrawlState.WORKING])
def test_resume_starts_a_process_for_the_same_crawl(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, state: CrawlState
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    store.add_crawl(
        a_crawl(state=state, message="why", exit_code=3, ended=5.0, options={"args": {"a": "1"}})
    )
    _, process = producer_process.begin_again(tmp_path, store, "c")
    process.wait(20)
    row = store.crawl("c")
    assert (row.state, row.pid, row.exit_code, row.ended, row.message) == (
        CrawlState.STARTING, process.pid, None, None, "",
    )  # fmt: skip
    assert row.options == {"args": {"a": "1"}}


def test_last_words_are_the_last_error_else_the_end(tmp_path: Path, folder: Path) -> None:
    assert producer_process.last_words(tmp_path, "c") == ""
    log = folder / "producer.log"
    log.write_text("".join(f"line {at}\n\n" for at in range(50)))
    assert producer_process.last_words(tmp_path, "c").splitlines() == [
        f"line {at}" for at in range(38, 50)
    ]
    log.write_text(
        "2026 [x] ERROR: first\nmore\n2026 [x] ERROR: second\nwhy\n2026 [x] INFO: closed\n"
    )
    assert producer_process.last_words(tmp_path, "c").splitlines()[:2] == [
        "2026 [x] ERROR: second",
        "why",
    ]


def test_begin_writes_the_crawl_down_and_starts_a_process_of_its_own_session(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In place of Python: a program that shows what it was started with.
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@" "$SDIST_STORE"\nps -o sid= -o pid= -p $$\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    order = CrawlOrder(
        spider="easy",
        settings={"DISTRIBUTED_SHARDS": 3},
        spider_settings={"A": "b"},
        args={"c": "d"},
    )
    crawl, process = producer_process.begin(tmp_path, store, order, None)
    process.wait(20)
    log = crawl_folder(tmp_path, crawl.id) / "producer.log"
    said, ids = wait_for(lambda: log.read_text().splitlines()[:2], 5, "what the program said")
    assert "run_module('scrapyd_dist.middlewares.producer.process'" in said
    assert said.endswith(f" {crawl.id} {tmp_path / '.sdist' / 'store.db'}")
    session, pid = map(int, ids.split())
    assert session == pid == process.pid
    row = store.crawl(crawl.id)
    assert (row.state, row.spider, row.pid) == (CrawlState.STARTING, "easy", process.pid)
    assert row.options == {
        "settings": {"DISTRIBUTED_SHARDS": 3}, "spider_settings": {"A": "b"}, "args": {"c": "d"}, "cwd": str(tmp_path),
    }  # fmt: skip
    assert (tmp_path / ".sdist").stat().st_mode & 0o077 == 0


def test_a_name_that_is_taken_in_the_same_moment_is_left_to_the_other(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scrapy.cfg").write_text("", "utf-8")
    monkeypatch.setattr(producer_process, "spawn", lambda *_: None)
    order = CrawlOrder(spider="easy")
    first, _ = producer_process.begin(tmp_path, store, order, None)
    names = iter([first.id, "another"])
    monkeypatch.setattr(producer_process, "crawl_name", lambda *_: next(names))
    second, _ = producer_process.begin(tmp_path, store, order, None)
    assert second.id == "another"


def test_an_ended_crawl_is_summed_up_with_its_own_exit_code(
    tmp_path: Path, store: Store, capsys: Captured
) -> None:
    summary = {"items": 5, "failed_urls": 2, "duration_s": 1}
    store.add_crawl(a_crawl(CrawlState.FINISHED, exit_code=3, summary=summary))
    store.add_misses("c", [Miss(url="http://w/1", kind="failed", reason="503")])
    assert watcher.watch(tmp_path, store, "c", QUIET) == 3
    said = capsys.readouterr()
    assert "Crawl c finished after 1 s, 2 failed: 5 items." in said.out
    assert "http://w/1  503" in said.out
    assert said.err == ""


def test_json_is_one_document_and_nothing_else(
    tmp_path: Path, store: Store, capsys: Captured
) -> None:
    store.add_crawl(
        a_crawl(
            CrawlState.STOPPED,
            exit_code=3,
            summary={"items": 5},
            message="Go on with: sdist resume c",
        )
    )
    assert (
        watcher.watch(tmp_path, store, "c", watcher.WatchOptions(as_json=True, no_progress=True))
        == 3
    )
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["schema"], document["state"], document["items"]) == (1, "stopped", 5)
    assert said.err == "sdist: Go on with: sdist resume c\n"


def test_a_refused_crawl_is_one_paragraph_and_without_a_terminal_no_question_comes(
    tmp_path: Path, store: Store, capsys: Captured
) -> None:
    store.add_crawl(a_crawl(CrawlState.REFUSED, exit_code=4, message="There is no spider 'x'."))
    assert watcher.watch(tmp_path, store, "c", QUIET) == 4
    assert capsys.readouterr() == ("", "sdist: There is no spider 'x'.\n")
    assert watcher._wants_stop("c") is False
    assert "sdist watch c" in capsys.readouterr().err


def test_a_crawl_whose_process_is_gone(
    tmp_path: Path, store: Store, folder: Path, ended: subprocess.Popen[bytes]
) -> None:
    store.add_crawl(a_crawl(CrawlState.WORKING, pid=ended.pid, beat=time.time()))
    (folder / "producer.log").write_text("MemoryError\n")
    for process in (None, ended):
        with pytest.raises(watcher.ProducerDied, match=r"(?s)MemoryError.*sdist resume c") as died:
            watcher.watch(tmp_path, store, "c", QUIET, process)
        assert died.value.exit_code == 1


@pytest.mark.parametrize("command", ["watch", "crawl", "resume", "retry"])
def test_the_time_of_a_watch_is_given_in_seconds_minutes_or_hours(command: str) -> None:
    found: Any = dict(walk())[command]
    assert found.make_context(command, ["c", "--timeout", "1.5m"]).params["timeout"] == 90
    with pytest.raises(typer.BadParameter, match=r"'soon'.*30m"):
        found.make_context(command, ["c", "--timeout", "soon"])


def test_a_limit_of_time_may_be_0_and_no_other_span() -> None:
    found: Any = load("crawl")
    for name in ("--max-time", "--job-timeout", "--stall-timeout"):
        assert found.make_context("crawl", ["c", name, "0"]).params[name[2:].replace("-", "_")] == 0
    with pytest.raises(typer.BadParameter, match="more than 0 seconds"):
        found.make_context("crawl", ["c", "--timeout", "0"])


def test_the_watch_ends_after_its_time_and_the_crawl_goes_on(tmp_path: Path, store: Store) -> None:
    store.add_crawl(that_runs())
    with pytest.raises(StillRuns, match="sdist watch c") as ended:
        watcher.watch(tmp_path, store, "c", watcher.WatchOptions(no_progress=True, timeout=0.01))
    assert ended.value.exit_code == 124
    assert store.crawl("c").state is CrawlState.WORKING


def test_a_row_that_comes_to_its_end_is_seen(tmp_path: Path, store: Store) -> None:
    store.add_crawl(that_runs(CrawlState.FINDING))

    def show(crawl: Crawl, _now: float) -> None:
        # Each state is shown; after the first one the producer ends.
        if not crawl.state.ended:
            store.update_crawl("c", state=CrawlState.FINISHED, exit_code=0)

    row = watcher.until_ended(tmp_path, store, "c", nullcontext(show), 20.0, None)
    assert row.state is CrawlState.FINISHED


def test_plain_lines_come_at_each_change_and_every_30_seconds(capsys: Captured) -> None:
    view, states = watcher.PlainView(), CrawlState
    steps = [
        (-2, states.STARTING, 0), (-1, states.STARTING, 0), (0, states.FINDING, 1), (1, states.FINDING, 0),
        (29.9, states.FINDING, 0), (30, states.FINDING, 1), (31, states.WORKING, 1), (60.9, states.WORKING, 0),
        (61, states.FINISHED, 0),
    ]  # fmt: skip
    for now, state, lines in steps:
        view.show(a_crawl(state), now)
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", lines), now


def test_what_differs_from_scrapy_crawl_is_said_once_when_a_crawl_begins(capsys: Captured) -> None:
    row = {"name": "JOBDIR", "meaning": "told", "found": ["JOBDIR"], "sentence": "It is not used."}
    begun, view = a_crawl(CrawlState.FINDING, summary={"differences": [row]}), watcher.PlainView()
    for now in (0, 1, 2):
        view.show(begun, now)
    assert capsys.readouterr().err.count("JOBDIR: It is not used.") == 1


def test_the_log_view_shows_what_was_added(tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "producer.log"
    view = watcher.LogView(log)
    view.show(a_crawl(), 0)  # not there yet
    log.write_text("one\n")
    view.show(a_crawl(), 1)
    with log.open("a") as file:
        file.write("two\n")
    view.show(a_crawl(), 2)
    assert capsys.readouterr().err == "one\ntwo\n"


def test_the_state_in_a_word() -> None:
    assert alive_state(a_crawl(CrawlState.FINISHED, pid=None)) == "finished"
    assert alive_state(that_runs()) == "working"
    assert alive_state(a_crawl(CrawlState.WORKING, pid=None)) == "died"


def test_a_pause_tells_of_jobs_that_cannot_wait(
    store: Store, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = p.settings\n")
    store.add_crawl(that_runs())
    store.update_crawl(
        "c", summary={"paused": True, "nodes": [{"unleased": 2}, {"unleased": 0}, {}]}
    )
    with closing(Context(tmp_path)) as context:
        stored_crawls.pause(context, "c")
    assert store.wanted("c") == "pause"
    said = capsys.readouterr().err
    assert "sdist resume c" in said
    assert "Of its jobs, 2 cannot reach the store, and go on to their end." in said


def test_a_package_in_src_is_answered_with_how_it_is_made_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = ModuleNotFoundError("No module named 'shop'", name="shop.settings")
    assert "pip install -e ." not in describe_broken(missing)
    (tmp_path / "src" / "shop").mkdir(parents=True)
    assert "pip install -e ." in describe_broken(missing)


def test_the_way_to_the_nodes_does_not_fill_a_debug_log(monkeypatch: pytest.MonkeyPatch) -> None:
    urllib3 = logging.getLogger("urllib3.connectionpool")
    monkeypatch.setattr(urllib3, "level", logging.NOTSET)
    Addon().update_settings(Settings())
    assert not urllib3.isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize(
    ("reason", "is_other_code", "refused"),
    [
        ("ValueError in the callback: no price", True, True),
        ("ValueError in the callback: no price", False, False),
        ("HTTP 500", True, False),
    ],
)
def test_code_that_has_raised_is_not_tried_again_unasked_where_there_is_other_code(
    tmp_path: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    is_other_code: bool,
    refused: bool,
) -> None:
    row = a_crawl(CrawlState.FINISHED)
    store.add_crawl(row)
    store.add_misses("c", [Miss(url="http://w/1", kind="failed", reason=reason, batch=1)])
    monkeypatch.setattr(crawl_code, "has_other_code_here", lambda *_: is_other_code)
    expected = pytest.raises(ConfigError, match=r"1 URL.*--new-code.*--old-code")
    with expected if refused else nullcontext():
        stored_crawls._check_code(store, tmp_path, row, {"failed"}, ())


def test_settings_of_the_project_do_not_keep_sdist_from_spreading_a_crawl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local_settings.py").write_text("DISTRIBUTED_ENABLED = False\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "local_settings")
    settings = project_settings({})
    assert settings.getbool("DISTRIBUTED_ENABLED")
    settings.set("DISTRIBUTED_ENABLED", False, priority="spider")
    assert settings.getbool("DISTRIBUTED_ENABLED")


@pytest.mark.parametrize("value", ["0", "False", False])
def test_a_crawl_that_is_not_to_be_spread_is_refused(value: object) -> None:
    refuse_disabled({}, {"DISTRIBUTED_ENABLED": "1"})
    with pytest.raises(ConfigError, match="scrapy crawl SPIDER -O FILE"):
        refuse_disabled({}, {"DISTRIBUTED_ENABLED": value})
