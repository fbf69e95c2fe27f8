"""What goes wrong on other people's Scrapyd fleets, and does not here: many shards, killed jobs, many URLs."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from rig.bad_days import IMPATIENT, arguments, assert_exact, attempts, batches, begin, busy_workers
from rig.crawls import QUICK, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.waiting import wait_for

#: 25,000 detail URLs from twenty index pages; nothing but Scrapy costs time here
MANY = """
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
            yield scrapy.Request(f"data:,{'x' * 60}-{number}", callback=self.parse_detail)

    def parse_detail(self, response):
        yield {"number": int(response.text.rpartition("-")[2])}
"""


@pytest.mark.black_box
def test_twenty_shards_on_four_nodes_that_keep_five_logs(
    project: MakeProject, fleet: StartFleet, site: StartSite, run_cli: RunCommand
) -> None:
    nodes, pages = fleet(4), site(400, per_page=20)
    it = project(nodes=nodes, settings={**QUICK, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 10})
    line = ["crawl", "easy", *arguments("sdist", pages, shards=20)[2:]]
    planned = run_cli(it, "plan", *line[1:], "-s", "DISTRIBUTED_SHARD=3").json()
    assert len(planned["shards"]) == 20
    for said in ("jobs_to_keep", "Did you mean DISTRIBUTED_SHARDS?"):
        assert any(said in warning for warning in planned["warnings"]), said
    done = run_cli(it, *line, timeout=200)
    assert done.code == 0, done.err
    assert_exact(it, pages)
    ran = sum(len(node.jobs("finished")) for node in nodes)
    kept = sum(len(list(node.logs_dir.glob("properties/easy/*.log"))) for node in nodes)
    assert kept < ran, "Scrapyd removed no log, so that this has shown nothing"


@pytest.mark.black_box
def test_a_killed_job_is_seen_and_its_batch_alone_is_done_again(
    project: MakeProject,
    fleet: StartFleet,
    site: StartSite,
    start_scrapy: StartCommand,
    start_cli: StartCommand,
    run_cli: RunCommand,
) -> None:
    nodes, pages = fleet(2, jobs_to_keep="1000"), site(400, "--latency=0.4", per_page=100)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url})
    command = begin("sdist", it, pages, scrapy=start_scrapy, cli=start_cli)
    pid, job = wait_for(lambda: [*busy_workers(nodes[0]).items(), *busy_workers(nodes[1]).items()], 60, "a worker")[0]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: job not in [row["id"] for node in nodes for row in node.jobs("running")], 30, "a poll of Scrapyd")
    row = next(row for row in run_cli(it, "jobs", "--json").json()["jobs"] if row["job"] == job)
    assert row["state"] == "died", row
    done = command.wait(180)
    assert done.code == 0, done.err
    assert_exact(it, pages)
    again = [batch for batch, tries in Counter(attempt.batch for attempt in attempts(it)).items() if tries > 1]
    assert again == [attempt.batch for attempt in attempts(it) if attempt.job == job]


def _memory(pid: int, field: str = "VmHWM") -> int:
    """Resident memory of a process, the most that it ever had or that of now (VmRSS), in KiB; 0 when it is over."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)


@pytest.mark.black_box
@pytest.mark.timeout(500)
def test_memory_and_job_lists_stay_small_with_many_urls(
    project: MakeProject, fleet: StartFleet, start_scrapy: StartCommand
) -> None:
    nodes = fleet(2)
    settings = {
        "ADDONS": {"scrapyd_dist.Addon": 500}, "DISTRIBUTED_TARGET_CALLBACKS": ["parse_detail"],
        "DISTRIBUTED_BATCH_SIZE": 2000, "DISTRIBUTED_POLL_INTERVAL": 0.5, "LOG_LEVEL": "INFO",
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
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
    assert sum(batch.size for batch in batches(it)) == 25_000
    assert (peaks["producer"] - early[0]) / 20_000 < 2, (peaks, early)  # KiB for each more URL
    assert peaks["worker"] < 200 * 1024, peaks
    assert peaks["node"] < 200 * 1024, peaks
    assert peaks["bytes of a job list"] < 1 << 20, peaks
    print(dict(peaks))
