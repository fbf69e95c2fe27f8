"""Batches that the book's transport loses: 2,000 long URLs in each, whole on real nodes, in little memory."""

from collections import Counter
from pathlib import Path

import pytest
from rig.bad_days import attempts, batches
from rig.crawls import ADDON, last_crawl
from rig.fixtures import MakeProject, StartCommand, StartFleet
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

#: 25,000 detail URLs from twenty index pages, each of 140 characters that hardly can be packed; nothing but Scrapy
#: costs time here
MANY = """
import hashlib

import scrapy

PAGES, LINKS = 20, 1250


class Many(scrapy.Spider):
    name = "many"

    async def start(self):
        for page in range(PAGES):
            yield scrapy.Request(f"data:,index-{page}", callback=self.parse_index)

    def parse_index(self, response):
        page = int(response.text.rpartition("-")[2])
        for number in range(page * LINKS, (page + 1) * LINKS):
            name = hashlib.sha512(str(number).encode()).hexdigest()
            yield scrapy.Request(f"data:,{name}-{number}", callback=self.parse_detail)

    def parse_detail(self, response):
        yield {"number": int(response.text.rpartition("-")[2])}
"""


def _memory(pid: int, field: str = "VmHWM") -> int:
    """Resident memory of a process, the most that it ever had or that of now (VmRSS), in KiB; 0 when it is over."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)


@pytest.mark.black_box
@pytest.mark.timeout(500)
@pytest.mark.full
def test_batches_of_2000_long_urls_are_whole_and_memory_and_job_lists_stay_small(
    project: MakeProject, fleet: StartFleet, start_scrapy: StartCommand
) -> None:
    nodes = fleet(2)
    settings = {
        "ADDONS": ADDON, "DISTRIBUTED_TARGET_CALLBACKS": ["parse_detail"],
        "DISTRIBUTED_BATCH_SIZE": 2000, "DISTRIBUTED_BATCH_MAX_AGE": 600, "DISTRIBUTED_POLL_INTERVAL": 0.5,
        "LOG_LEVEL": "INFO", "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    }  # fmt: skip
    it = project(nodes=nodes, spiders={"many": MANY}, settings=settings)
    command = start_scrapy(it, "crawl", "many", "-o", "items.jl")
    peaks: Counter[str] = Counter()
    early: list[int] = []  # the producer's memory when it had sealed a fifth

    def over() -> bool:
        peaks["producer"] = max(peaks["producer"], _memory(command.pid))
        if not early and sum(batch.size for batch in batches(it)) >= 5_000:
            early.append(_memory(command.pid, "VmRSS"))
        for node in nodes:
            peaks["node"] = max(peaks["node"], _memory(node.pid))
            peaks["worker"] = max([peaks["worker"], *map(_memory, node.job_pids())])
            listed = node.request("listjobs.json?project=small")
            peaks["bytes of a job list"] = max(peaks["bytes of a job list"], len(listed.body))
        return not command.running()

    wait_for(over, 400, "the end of the crawl")
    done = command.wait(10)
    assert done.code == 0, done.err[-3000:]
    summary = last_crawl(it).summary
    assert (summary["sealed"], summary["items"]) == (25_000, 25_000)
    assert sorted(item["number"] for item in it.items("items.jl")) == list(range(25_000))
    assert [batch.size for batch in batches(it)] == [*[2000] * 12, 1000]
    assert attempts(it, AttemptState.FAILED) == []
    assert (peaks["producer"] - early[0]) / 20_000 < 2, (peaks, early)  # KiB for each more URL
    assert peaks["worker"] < 200 * 1024, peaks
    assert peaks["node"] < 200 * 1024, peaks
    # One node may have had all batches; as they are, half of these URLs have 1,750,000 bytes.
    assert peaks["bytes of a job list"] < 1_600_000, peaks
    print(dict(peaks))
