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
  File "shop.py", line 5, in parse
ERROR: no line of its own
{AT} ERROR: Spider error processing <GET http://shop/22> (referer: None)
Traceback (most recent call last):
  File "shop.py", line 5, in parse
ERROR: no line of its own
{AT} CRITICAL: The disk is full
{AT} WARNING: 7 retries
""".encode()
SPIDER_ERROR = f"{AT} ERROR: Spider error processing <GET http://shop/{{}}> (referer: http://shop/)"
TRACEBACK = """\
Traceback (most recent call last):
  File "shop.py", line 5, in parse
{}
"""


def groups_of(*entries: str) -> list[ErrorGroup]:
    """The groups of the errors in a log of these entries."""
    return group_errors(LogLines().feed("".join(entries).encode()))


def failed_page(number: int, exception: str) -> str:
    """What is logged of an exception that a page has led to."""
    return f"{SPIDER_ERROR.format(number)}\n{TRACEBACK.format(exception)}"


def test_errors_are_told_apart_by_their_exceptions() -> None:
    pages = [failed_page(n, f"ValueError: no price in row {n}") for n in range(10)]
    pages += [failed_page(n, "KeyError: 'name'") for n in range(10, 13)]
    assert groups_of(*pages) == [
        ErrorGroup(name="ValueError: no price in row …", count=10, example="http://shop/9"),
        ErrorGroup(name="KeyError: 'name'", count=3, example="http://shop/12"),
    ]


def test_of_chained_exceptions_the_last_one_counts() -> None:
    first = failed_page(1, "KeyError: 'name'")
    cause = "\nDuring handling of the above exception, another exception occurred:\n\n"
    (group,) = groups_of(first, cause, TRACEBACK.format("\x1b[31mValueError: no name\x1b[0m"))
    assert group == ErrorGroup(name="ValueError: no name", count=1, example="http://shop/1")


def test_an_exception_without_a_page_has_no_example() -> None:
    entry = f"{AT} ERROR: Task exception was never retrieved\nfuture: <Task finished>\n"
    (group,) = groups_of(entry, TRACEBACK.format("OSError: no list"))
    assert group == ErrorGroup(name="OSError: no list", count=1)


@pytest.mark.parametrize(
    ("message", "address"),
    [
        ("Spider error processing <GET data:,2> (referer: http://shop/)", "data:,2"),
        ("Cannot read http://shop/list.txt now", "http://shop/list.txt"),
        ("Error processing {'name': 'a < B c'}", ""),
    ],
)
def test_the_example_of_an_error_is_the_address_of_its_request(message: str, address: str) -> None:
    (group,) = groups_of(f"{AT} ERROR: {message}\n", TRACEBACK.format("OSError: no list"))
    assert group.example == address


def test_errors_without_exception_are_alike_but_for_addresses_and_numbers() -> None:
    entry = f"{AT} ERROR: Error downloading <GET http://{{}}/refused>\n"
    assert groups_of(entry.format("a"), entry.format("b")) == [
        ErrorGroup(name="Error downloading …", count=2, example="http://b/refused")
    ]
    assert groups_of(entry.format("a"), entry.format("a")) == [
        ErrorGroup(name="Error downloading <GET http://a/refused>", count=2)
    ]
    assert groups_of(f"{AT} CRITICAL: The disk is full\n", f"{AT} WARNING: 7 retries\n") == [
        ErrorGroup(name="The disk is full", count=1)
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
