"""The end of a job's log: its last lines, and its errors grouped by what they say."""

from dataclasses import replace
from pathlib import Path

import pytest
from rig.fleet_sender import FleetSender, loaded
from rig.web_pages import RECORD, project_at, write_targets

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.joblogs.joblog import LogLines
from scrapyd_dist.jobs.job_list import JobFilter
from scrapyd_dist.jobs.job_log_end import ErrorGroup, group_errors, read_job_log_end
from scrapyd_dist.jobs.job_site import open_site
from scrapyd_dist.scrapyd.api import Chunk, fetch

AT = "2026-11-20 12:00:10 [scrapy.core.scraper]"
LOG = f"""\
{AT} INFO: Spider opened
{AT} ERROR: Spider error processing <GET http://shop/1> (referer: None)
Traceback (most recent call last):
ERROR: no line of its own
{AT} ERROR: Spider error processing <GET http://shop/22> (referer: None)
{AT} CRITICAL: The disk is full
{AT} WARNING: 7 retries
""".encode()


def test_errors_are_alike_but_for_addresses_and_numbers() -> None:
    found = group_errors(LogLines().feed(LOG))
    assert found == [
        ErrorGroup(message="Spider error processing <GET http://shop/22> (referer: None)", count=2),
        ErrorGroup(message="The disk is full", count=1),
    ]


def test_the_last_lines_of_a_job_and_of_one_that_waits(root: Path) -> None:
    write_targets(root, ["web1"])
    path = fetch("logs/p/s/running0.log").path
    chunk = Chunk(body=LOG, start=0, total=len(LOG), date=None, modified=None)
    workspace = project_at(root, FleetSender(web1={**loaded(running=1), path: chunk}))
    waiting = replace(
        RECORD, id="w", node="", url="", posted=None, ended=None, state=Outcome.WAITING
    )
    workspace.new_store.keep_jobs([waiting])
    site = open_site(workspace)
    wanted = JobFilter(nodes=workspace.nodes())
    end = read_job_log_end(site, wanted, "running0", 2)
    assert [line.text[-9:] for line in end.lines] == ["k is full", "7 retries"]
    assert (len(end.errors), end.whole) == (2, True)
    assert read_job_log_end(site, wanted, "w", 2).lines == ()
    with pytest.raises(NothingMatched):
        read_job_log_end(site, wanted, "none", 2)
    workspace.close()
