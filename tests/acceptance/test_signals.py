"""Ctrl-C and SIGTERM to `scrapy crawl`: what was found is kept, the way on is said, and resuming makes it whole."""

import signal
from collections.abc import Callable
from contextlib import closing

import pytest
from rig.bad_days import (
    IMPATIENT,
    arguments,
    assert_exact,
    assert_resumed,
    attempts,
    batches,
    wait_accepted,
    wait_state,
)
from rig.commands import Result
from rig.crawls import crawls
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.proxy import Mishap, Proxy
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState, CrawlState

pytestmark = pytest.mark.black_box

INTERRUPTED = 130


def assert_stopped(done: Result, project: Project) -> str:
    """It ended as interrupted, and said how to go on; the crawl's id."""
    row = crawls(project)[0]
    assert done.code == INTERRUPTED, done.err
    assert row.state is CrawlState.STOPPED
    assert row.exit_code == INTERRUPTED
    assert f"sdist resume {row.id}" in done.err
    assert row.message in done.err
    assert "Traceback" not in done.err
    return row.id


def test_ctrl_c_while_it_finds(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, start_scrapy: StartCommand, run_cli: RunCommand
) -> None:
    # 30 index pages, one after the other, most of them slow: far from its end when the first batch is home. No batch
    # ends with a page.
    pages = site(300, per_page=10)
    pages.behave({pages.site.index_path(page): "slow:3" for page in range(8, 30)})
    it = project(nodes=pair, settings={**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 37})
    command = start_scrapy(it, *arguments("scrapy", pages))
    wait_accepted(it)
    command.signal(signal.SIGINT)
    name = assert_stopped(command.wait(60), it)
    sealed = sum(batch.size for batch in batches(it))
    assert 37 <= sealed < 300, "it was interrupted too late to show anything"
    assert sealed % 37, "what was captured last is not sealed"
    pages.behave({})
    done = run_cli(it, "resume", name, "--json", timeout=180)
    assert_resumed(done, it, pages)
    assert set(pages.item_hits().values()) == {1}


def test_sigterm_while_it_waits(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, start_scrapy: StartCommand, run_cli: RunCommand
) -> None:
    pages = site(250, "--latency=0.3", per_page=125)
    it = project(nodes=pair, settings={**IMPATIENT, "START_URL": pages.start_url})
    command = start_scrapy(it, *arguments("scrapy", pages))
    wait_state(it, CrawlState.WORKING)
    command.signal(signal.SIGTERM)
    name = assert_stopped(command.wait(60), it)
    out = attempts(it, AttemptState.SENT, AttemptState.RUNNING)
    assert out, "it was interrupted too late to show anything"
    assert_resumed(run_cli(it, "resume", name, "--json", timeout=180), it, pages)
    # The jobs that were out went on without a producer, and were found again.
    assert {attempt.job for attempt in out} <= {a.job for a in attempts(it, AttemptState.ACCEPTED)}
    assert set(pages.item_hits().values()) == {1}


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_while_a_post_is_under_way(
    twice: bool,
    project: MakeProject,
    scrapyd_node: Callable[..., ScrapydNode],
    site: StartSite,
    start_scrapy: StartCommand,
    run_cli: RunCommand,
) -> None:
    pages, node = site(100, "--latency=0.05", per_page=50), scrapyd_node()
    with closing(Proxy(node)) as between:
        between.spoil("schedule.json", Mishap(delay=5), times=2)
        settings = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_REQUEST_TIMEOUT": 20}
        it = project(settings=settings, extra=between.section("properties", "behind"))
        command = start_scrapy(it, *arguments("scrapy", pages))
        wait_for(lambda: between.spoilt["schedule.json"] == 2, 60, "two posts under way")
        command.signal(signal.SIGINT)
        if twice:
            command.wait_text("Closing spider")
            command.signal(signal.SIGINT)
            done = command.wait(4.5)
            assert done.code == INTERRUPTED, "a crawl that was cut off must not look like a good one"
            name = crawls(it)[0].id
            assert {attempt.state for attempt in attempts(it)} == {AttemptState.SENDING}
        else:
            name = assert_stopped(command.wait(60), it)
            assert len(attempts(it)) == 2
            assert not attempts(it, AttemptState.SENDING), "it did not wait for its posts"
        assert_resumed(run_cli(it, "resume", name, "--json", timeout=120), it, pages)
        assert set(pages.item_hits().values()) == {1}
        assert_exact(it, pages)
