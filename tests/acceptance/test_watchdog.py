"""The watchdog of a job's process: what it ends and how, and what it leaves alone. Plain Scrapy processes, no nodes."""

from collections.abc import Callable
from typing import Any

import pytest
from rig.crawls import ADDON

from scrapyd_dist.job_record import Outcome
from scrapyd_dist.joblogs.joblog import BLOCKED, LogReader
from scrapyd_dist.joblogs.log_reads import LogExcerpt
from scrapyd_dist.joblogs.verdict import by_log
from scrapyd_dist.scrapyd.api import JobState

#: one page after the other; `deed` says what becomes of the third one
SPIDER = """
import asyncio
import re
import time

import scrapy


class Deeds(scrapy.Spider):
    name = "deeds"

    async def start(self):
        for number in range(1, 4):
            yield scrapy.Request(self.base.format(number))
        if self.deed == "never starts":
            await asyncio.sleep(3600)

    async def log_in(self):
        await asyncio.sleep(3600)
        yield

    async def parse(self, response):
        yield {"url": response.url}
        if not response.url.endswith((",3", "000003.html")):
            return
        if self.deed == "hangs":
            await asyncio.sleep(3600)
        if self.deed == "blocks":
            time.sleep(3600)
        if self.deed == "keeps the interpreter":
            re.match("(a+)+b", 40 * "a")
"""
#: the usual graces are for people's jobs
SHORT = "from scrapyd_dist.middlewares import watchdog\nwatchdog.GRACE, watchdog.AFTER = {}, 0.5\n"
STALLED = "stalled: no page and no item for more than 1 s; it has not ended, and gets "


class Job:
    """A process that passes for a job on a node."""

    def __init__(
        self,
        project: Any,
        start: Callable[..., Any],
        deed: str,
        base: str = "data:,{}",
        **settings: Any,
    ):
        self._log = project.path / "job.log"
        with (project.package / "settings.py").open("a") as file:
            file.write(
                SHORT.format(20 if deed == "never starts" else 0.5)
            )  # that one can end in order
        project.settings(
            **{
                "ADDONS": ADDON,
                "DISTRIBUTED_ENABLED": False,
                "LOG_FILE": str(self._log),
                **settings,
            }
        )
        self.command = start(
            project, "crawl", "deeds", "-a", "_job=j", "-a", f"deed={deed}", "-a", f"base={base}"
        )

    def ends(self) -> tuple[Outcome, str]:
        """How `sdist jobs` tells of it."""
        self.command.wait(60)
        reader = LogReader()
        reader.feed(self._log.read_bytes())
        excerpt = LogExcerpt(
            facts=reader.facts(),
            says_info=True,
            would_tell_end=True,
            total=0,
            silent=None,
            offset=None,
        )
        verdict = by_log(JobState.FINISHED, excerpt)
        return verdict.outcome, verdict.reason


@pytest.fixture
def job(project: Any, start_scrapy: Callable[..., Any]) -> Callable[..., Job]:
    return lambda *arguments, **settings: Job(
        project(spiders={"deeds": SPIDER}), start_scrapy, *arguments, **settings
    )


#: with Scrapy 2.13 there is always one
NO_REACTOR = {"TWISTED_REACTOR_ENABLED": False}
STALL = {"DISTRIBUTED_STALL_TIMEOUT": 1}


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("deed", "settings", "outcome", "reason"),
    [
        ("never starts", {}, Outcome.FAILED, "stalled"),
        ("never starts", NO_REACTOR, Outcome.FAILED, "stalled"),
        ("hangs", {}, Outcome.DIED, STALLED + "SIGINT"),
        ("hangs", NO_REACTOR, Outcome.DIED, STALLED + "SIGINT"),
        ("blocks", {}, Outcome.DIED, STALLED + "SIGKILL"),
        ("keeps the interpreter", {}, Outcome.DIED, BLOCKED),
    ],
    ids=["starts", "starts-asyncio", "hangs", "hangs-asyncio", "blocks", "regex"],
)
def test_a_job_that_stands_still_is_ended(
    deed: str, settings: dict[str, Any], outcome: Outcome, reason: str, job: Callable[..., Job]
) -> None:
    assert job(deed, **STALL, **settings).ends() == (outcome, reason)


@pytest.mark.black_box
def test_a_job_that_takes_too_long_ends_in_order(job: Callable[..., Job]) -> None:
    assert job("never starts", DISTRIBUTED_JOB_TIMEOUT=1).ends() == (Outcome.FAILED, "timeout")


@pytest.mark.black_box
def test_the_middleware_alone_brings_the_watchdog_as_well(job: Callable[..., Job]) -> None:
    alone = {"ADDONS": {}, "SPIDER_MIDDLEWARES": {"scrapyd_dist.Distributed": 100}}
    assert job("never starts", **STALL, **alone).ends() == (Outcome.FAILED, "stalled")


@pytest.mark.black_box
def test_a_request_that_never_ends(job: Callable[..., Job], site: Callable[..., Any]) -> None:
    pages = site(10)
    pages.behave({pages.site.detail_path(3): "hang"})
    base = pages.detail(3).replace("000003", "00000{}")
    assert job("", base, **STALL).ends() == (Outcome.DIED, STALLED + "SIGINT")


@pytest.mark.black_box
@pytest.mark.parametrize(
    "settings",
    [
        {"DOWNLOAD_DELAY": 2, "RANDOMIZE_DOWNLOAD_DELAY": False},
        {"DISTRIBUTED_THROTTLE_HITS": 1, "DISTRIBUTED_THROTTLE_WINDOW": 2},
        {"DISTRIBUTED_THROTTLE_HITS": 1, "DISTRIBUTED_THROTTLE_WINDOW": 2, "ROBOTSTXT_OBEY": True},
    ],
)
def test_a_job_that_waits_for_its_turn_does_not_stall(
    settings: dict[str, Any], job: Callable[..., Job], site: Callable[..., Any]
) -> None:
    pages = site(10)
    base = pages.detail(3).replace("000003", "00000{}")
    assert job("", base, **STALL, **settings).ends() == (Outcome.FINISHED, "")


@pytest.mark.black_box
def test_a_worker_that_waits_for_a_batch_does_not_stall_and_one_that_has_one_does(
    project: Callable[..., Any],
    site: Callable[..., Any],
    frontier: Callable[..., Any],
    start_scrapy: Callable[..., Any],
) -> None:
    pages = site(10)
    place = project(spiders={"deeds": SPIDER})
    place.write(
        "small/settings.py", (place.package / "settings.py").read_text() + SHORT.format(0.5)
    )
    queue = frontier(place, "deeds", standing=True)

    def worked(number: int, deed: str, **settings: Any) -> int:
        line = queue.arguments(number, settings=settings, idle=2.5)
        return int(
            start_scrapy(place, *line, "-a", f"_job={queue.job(number)}", "-a", f"deed={deed}")
            .wait(60)
            .code
        )

    queue.add([pages.detail(1), pages.detail(2)])
    assert worked(1, "", **STALL) == 0
    report = queue.report(1)
    assert (report.finish_reason, report.done) == ("finished", 2)
    queue.add([pages.detail(3), pages.detail(4)])
    assert worked(2, "hangs", **STALL) == 0
    assert (queue.report(2).ended, STALLED in queue.log(2)) == (False, True), queue.log(2)
    queue.add([pages.detail(3)])
    worked(5, "keeps the interpreter", **STALL)
    assert (queue.report(5).ended, "Current thread" in queue.log(5)) == (False, True), queue.log(5)
    assert worked(3, "", DISTRIBUTED_JOB_TIMEOUT=1) == 0
    assert worked(4, "", DISTRIBUTED_JOB_TIMEOUT=1, DISTRIBUTED_LOGIN="log_in") == 0
    waited, hung = queue.report(3), queue.report(4)
    assert (waited.finish_reason, waited.problem) == ("timeout", "")
    assert (hung.finish_reason, hung.problem) == (
        "timeout",
        "timeout: not one of its requests has ended",
    )
