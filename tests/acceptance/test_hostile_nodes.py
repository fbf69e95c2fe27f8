"""Whatever nodes answer, commands end in time and in words; nothing steers the terminal, or leaves its place."""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from rig.bad_days import IMPATIENT, assert_exact, begin
from rig.badpeer import BadPeer
from rig.commands import path_of, run_here
from rig.fixtures import MakeProject, StartCommand, StartFleet, StartSite
from rig.hostile import CRAWL, JOB, LIES, PROJECT, SPIDER, Answer, HostileNode, LyingNode, plans
from rig.memory import peak_memory
from rig.projects import Project
from rig.waiting import wait_for
from scrapyd_dist.cli.commands import CODES

from scrapyd_dist.batches import Attempt, Crawl, CrawlState
from scrapyd_dist.fleet import waiting_work
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.keys import state_key
from scrapyd_dist.scheduling import liveness
from scrapyd_dist.store import open_store

#: how many commands the long row types; `make fuzz` sets it
VARIABLE = "SDIST_FUZZ_COMMANDS"
SOON = ("--timeout", "0.5")
LISTED, CODE = ("listjobs", "file"), ("listversions", "listspiders", "listjobs")
#: a command -> the pages that it asks for
COMMANDS: dict[tuple[str, ...], tuple[str, ...]] = {
    **dict.fromkeys(
        [("nodes",), ("nodes", "--json"), ("nodes", "metrics")], ("daemonstatus", "listversions", "listjobs")
    ),
    **dict.fromkeys([("code", "versions"), ("code", "versions", "--json"), ("code", "versions", "--spiders")], CODE),
    ("code", "prune", "--keep", "1", "--yes"): (*CODE, "delversion"),
    **dict.fromkeys(
        [("jobs",), ("jobs", "--json"), ("logs",), ("logs", JOB, CRAWL, "-n", "3"), ("logs", JOB, "--since", "1h"),
         ("jobs", "grep", ".", "-C", "1"), ("jobs", "grep", "a", JOB, "--json"), ("jobs", "stats", JOB, CRAWL),
         ("items", "pull", JOB, CRAWL)],
        LISTED,
    ),
    ("items", "tail", CRAWL): LISTED,
    ("jobs", "cancel", "--all", "--yes", "--wait", "0.1"): ("listjobs", "cancel", "status"),
    ("jobs", "cancel", JOB, "--kill", "--yes", "--wait", "0.1"): ("listjobs", "cancel", "status"),
    ("jobs", "schedule", "*", "--unless-running"): ("daemonstatus", *CODE, "schedule", "status"),
    ("jobs", "schedule", SPIDER, "-p", PROJECT, "--version", "1_9"): ("daemonstatus", *CODE, "schedule", "status"),
    ("status", "--fleet"): ("daemonstatus", *LISTED),
    ("code", "rollback"): (*CODE, "addversion", "delversion"),
    ("deploy", "--all", "--version", "v1"): (*CODE, "addversion", "delversion"),
    ("doctor",): ("daemonstatus", "status", *CODE, "file"),
    ("watch", "--quiet", "--job", JOB): LISTED,
    ("nodes", "api", "bad", "daemonstatus"): ("daemonstatus",),
    ("nodes", "api", "bad", "delproject", "project=x"): ("delproject",),
    ("nodes", "api", "bad", "listprojects"): ("listprojects",),
}  # fmt: skip
CASES = st.sampled_from([*COMMANDS]).flatmap(
    lambda words: st.tuples(st.just(words), plans(COMMANDS[words]))
)
#: as rig.hostile has it in all that it answers; what JSON prints is escaped in its own way
STEERS = re.compile(
    "[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2028\U000e0041]|\x1b(?!\\[)|\x1b\\[666"
)


#: of what lies beside and in the project: what commands write there
MAY_WRITE = r"project0-home|project0/(\.sdist/|items\b|items/(bad|shop-1)\b(/[^/]+)?$)"


@pytest.fixture
def shop(
    project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Project, HostileNode]]:
    """A project with a crawl of which jobs are out on a hostile node."""
    # The doctor waits between its looks at a node on which work waits.
    monkeypatch.setattr(waiting_work, "EVERY", 0.0)
    monkeypatch.setattr(liveness, "POLL", 0.0)
    it, node = (
        project(spiders={"shop": "import scrapy\nclass S(scrapy.Spider):\n    name = 'shop'\n"}),
        HostileNode(),
    )
    with closing(BadPeer(node.play)) as peer:
        url = f"http://127.0.0.1:{peer.port}"
        it.targets([], f"[deploy:bad]\nurl = {url}/\nproject = {PROJECT}\n")
        state = it.path / ".sdist"
        state.mkdir()
        with closing(open_store(state / "store.db", key=state_key(state))) as store:
            store.add_crawl(
                Crawl(
                    id=CRAWL,
                    project=PROJECT,
                    spider=SPIDER,
                    created=time.time(),
                    state=CrawlState.STOPPED,
                )
            )
            for number in (1, 2):
                store.seal(
                    CRAWL,
                    NewBatch(payload={"A": "1"}, size=2, sealed_at=1.0),
                    fingerprints=(),
                    counts={},
                )
                job = f"{CRAWL}.b{number}.a1"
                store.open_attempt(
                    CRAWL,
                    Attempt(batch=number, number=1, job=job, node="bad", url=url, sent_at=1.0),
                )
                store.sent(CRAWL, number, 1)
        yield it, node


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def check(it: Project, words: tuple[str, ...]) -> None:
    peak_memory()
    before, began = peak_memory(), time.monotonic()
    done = run_here([*words, *(() if "--fleet" in words else SOON)], cwd=it.path, home=it.home)
    took, grown = time.monotonic() - began, peak_memory() - before
    said = done.out + done.err
    note(f"{words}\n{said}")
    assert "something went wrong" not in said
    assert "  File " not in done.err
    assert STEERS.search(said) is None
    assert done.code in CODES[path_of(words)]
    assert took < 30
    assert grown < 200
    if "--json" in words and done.out:
        json.loads(done.out)


def fuzz(shop: tuple[Project, HostileNode], commands: int) -> None:
    it, node = shop
    outside = files_below(it.path.parent)

    @settings(max_examples=commands)
    @given(CASES)
    def run(case: tuple[tuple[str, ...], dict[str, list[Answer]]]) -> None:
        words, node.plan = case
        check(it, words)
        assert {
            name for name in files_below(it.path.parent) - outside if not re.match(MAY_WRITE, name)
        } == set()

    run()


def test_some_answers(shop: tuple[Project, HostileNode]) -> None:
    fuzz(shop, 60)


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.timeout(900)  # on a busy machine its many examples take long
def test_many_answers(shop: tuple[Project, HostileNode]) -> None:
    commands = int(os.environ.get(VARIABLE, "600"))
    fuzz(shop, commands)
    assert shop[1].answered.total() > commands


@pytest.mark.black_box
def test_a_node_that_lies_costs_a_crawl_nothing(
    project: MakeProject,
    fleet: StartFleet,
    site: StartSite,
    start_cli: StartCommand,
    start_scrapy: StartCommand,
) -> None:
    pages, good, liar = site(400, per_page=20), fleet(1, max_proc=1), LyingNode()
    it = project(settings={**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 20,
                           "DISTRIBUTED_MAX_ATTEMPTS": 9})  # fmt: skip
    with closing(BadPeer(liar.play)) as peer:
        it.targets(
            good, f"[deploy:liar]\nurl = http://127.0.0.1:{peer.port}/\nproject = {it.name}\n"
        )
        command = begin("scrapy", it, pages, scrapy=start_scrapy, cli=start_cli)
        last_index = pages.site.index_path(pages.site.pages - 1)
        wait_for(lambda: last_index in pages.hits(), 60, "the end of the index")
        # Until the liar has lied in each way, the good node stands still: it is not done before.
        with pages.paused():
            wait_for(lambda: set(liar.jobs.values()) == set(LIES[1:]), 60, "every lie")
        done = command.wait(120)
    assert done.code == 0
    assert_exact(it, pages)
    assert not STEERS.search(done.out + done.err)
