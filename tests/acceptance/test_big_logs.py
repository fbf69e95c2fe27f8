"""Logs of any size are read in the same memory: by `sdist logs`, `grep`, `stats`, `jobs`, `watch --fleet` and `status`.

Measured is the peak of a command's own resident memory. A job really runs on the node meanwhile, and its log is the
large one: what it logs is appended to what was there before. A command that kept a thirtieth of the log would show.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from rig.commands import Command, Result
from rig.fixtures import StartFleet
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.waiting import wait_for

MEGABYTE = 1024 * 1024
#: what a command may take more for a log of any size than for one of a megabyte
BOUND = 8 * MEGABYTE
pytestmark = pytest.mark.black_box

SPIDERS = """\
import scrapy


class Slow(scrapy.Spider):
    name = "slow"
    custom_settings = {"DOWNLOAD_DELAY": 0.2, "CONCURRENT_REQUESTS": 1}

    async def start(self):
        for number in range(100000):
            yield scrapy.Request(f"data:,{number}", dont_filter=True)

    def parse(self, response):
        yield {"text": response.text}
"""

#: runs `sdist`, and writes the peak of its resident memory down; not by rusage, which counts the parent's before exec
WRAPPER = """\
import atexit, runpy, sys

def note(path):
    with open("/proc/self/status") as status, open(path, "w") as file:
        file.write(next(line.split()[1] for line in status if line.startswith("VmHWM:")))

atexit.register(note, sys.argv.pop(1))
sys.argv[0] = "sdist"
runpy.run_module("scrapyd_dist", run_name="__main__", alter_sys=True)
"""

_LINES = """\
2026-11-20 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET http://web/properties/{0:06d}.html> (referer: None)
2026-11-20 12:00:00 [scrapy.core.scraper] DEBUG: Scraped from <200 http://web/properties/{0:06d}.html>
{{'title': 'A flat with a view, number {0}', 'price': 334.39, 'address': 'Angel, London', 'images': ['i{0}.jpg']}}
"""
_MINUTE = (
    "2026-11-20 12:00:00 [scrapy.extensions.logstats] INFO: Crawled {0} pages (at 600 pages/min), scraped {0} items"
    " (at 590 items/min)\n"
)
_START = "2026-11-20 12:00:00 [scrapy.utils.log] INFO: Scrapy 2.19.0 started (bot: shop)\n"
_ERROR = "2026-11-20 12:00:00 [shop] ERROR: one needle in {0} bytes\n"


def write_log(path: Path, size: int) -> None:
    """A log of about that many bytes, with an error near its beginning and a word of Scrapy's in each block."""
    block = "".join(_LINES.format(number) for number in range(300)).encode() + _MINUTE.format(300).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write((_START + _ERROR.format(size)).encode())
        for _ in range(size // len(block)):
            file.write(block)


@dataclass(frozen=True, kw_only=True)
class Shop:
    """A project, a node, and the way to run commands whose memory is measured."""

    project: Project
    node: ScrapydNode
    run: Callable[..., tuple[Result, int]]

    def start(self, size: int) -> str:
        """A job that runs, and whose log is that large; its id."""
        job = f"big{size // MEGABYTE}-{os.urandom(3).hex()}"
        write_log(self.node.logs_dir / "shop" / "slow" / f"{job}.log", size)
        answer = self.node.api("schedule.json", project="shop", spider="slow", jobid=job)
        assert answer["status"] == "ok", answer
        wait_for(lambda: job in self.node.job_pids().values(), 60, "the job")
        wait_for(lambda: "<GET data:,3>" in self.end_of(job), 60, "its first pages")
        return job

    def end_of(self, job: str) -> str:
        with (self.node.logs_dir / "shop" / "slow" / f"{job}.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            return file.read().decode()

    def stop(self, job: str) -> None:
        self.node.api("cancel.json", project="shop", job=job)
        self.node.wait_idle()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, module_fleet: StartFleet) -> Iterator[Shop]:
    (node,) = module_fleet(1, max_proc=1, username="me", password="hush", jobs_to_keep="100")
    made = Project.small(tmp_path_factory.mktemp("shop") / "shop", "shop", {"all": SPIDERS}, {})
    made.targets([node])
    peaks = tmp_path_factory.mktemp("peaks")
    with ExitStack() as stack:

        def run(*arguments: object, interrupt: str = "") -> tuple[Result, int]:
            peak = peaks / f"{len(list(peaks.iterdir()))}.txt"
            line = [sys.executable, "-c", WRAPPER, str(peak), *map(str, arguments)]
            command = stack.enter_context(closing(Command(line, cwd=made.path, folder=made.output, home=made.home)))
            if interrupt:
                command.wait_text(interrupt)
                command.interrupt()
            done = command.wait(900)
            return done, int(peak.read_text()) * 1024

        deployed, _ = run("deploy-all", "--json")
        assert deployed.code == 0, deployed.err
        yield Shop(project=made, node=node, run=run)


def the_commands(job: str) -> dict[str, tuple[object, ...]]:
    return {
        "logs": ("logs", job, "-n", 100),
        "logs of a level": ("logs", job, "-n", 100, "--level", "ERROR"),
        "grep": ("grep", "one needle", job, "--json"),
        "stats": ("stats", job, "--json"),
        "jobs": ("jobs", "--json"),
        "status": ("status", "--fleet", "--json"),
        "watch": ("watch", "--fleet", "--timeout", "5", "--json"),
    }


def check(name: str, done: Result, job: str) -> None:
    """That the command did what it is for, and not nothing in little memory."""
    assert "hush" not in done.out + done.err
    assert done.code == (124 if name == "watch" else 0), (name, done.err)
    if name == "logs":
        assert 100 <= len(done.out.splitlines()) < 400  # the job goes on meanwhile
    elif name == "logs of a level":
        assert done.out.count("one needle in ") == 1
    elif name == "grep":
        assert len(done.json()["matches"]) == 1
    elif name == "stats":
        assert done.json()["stats"]["log_count/INFO"]["sum"] > 0
    elif name == "jobs":
        assert job in [row["job"] for row in done.json()["jobs"]]
    else:
        (row,) = [row for node in done.json()["nodes"] for row in node["jobs"]]
        assert (row["job"], row["reason"]) == (job, "")
        assert row["silent_s"] is not None, row


def measured(shop: Shop, size: int) -> dict[str, int]:
    """The peak of each command's memory with a log of that size; bytes."""
    job = shop.start(size)
    try:
        peaks = {}
        for name, line in the_commands(job).items():
            done, peaks[name] = shop.run(*line)
            check(name, done, job)
        return peaks
    finally:
        shop.stop(job)
        (shop.node.logs_dir / "shop" / "slow" / f"{job}.log").unlink()


@pytest.mark.timeout(2400)
def test_a_log_of_256_megabytes_takes_no_more_memory_than_one_of_a_megabyte(
    shop: Shop, record_property: Callable[[str, object], None]
) -> None:
    small, large = (measured(shop, size * MEGABYTE) for size in (1, 256))
    table = {name: (round(small[name] / MEGABYTE), round(large[name] / MEGABYTE)) for name in small}
    print(json.dumps(table))
    record_property("megabytes", json.dumps(table))
    assert {name: sizes for name, sizes in table.items() if (sizes[1] - sizes[0]) * MEGABYTE > BOUND} == {}
