"""A plain Scrapy crawl of a generated web fetches exactly what the web says that a crawl may fetch."""

from contextlib import closing
from pathlib import Path

import pytest
from rig.fixtures import RunCommand
from rig.web_server import REDIRECTS, RETRIES, WebProcess, judge_web, web_project

DEPTH = 5


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize("order", ["breadth", "depth"])
def test_a_plain_crawl_gets_exactly_the_expected_set(
    order: str, run_scrapy: RunCommand, tmp_path: Path
) -> None:
    queue = {
        "breadth": "scrapy.squeues.FifoMemoryQueue",
        "depth": "scrapy.squeues.LifoMemoryQueue",
    }[order]
    options = ["-s", f"DEPTH_LIMIT={DEPTH}", "-s", f"SCHEDULER_MEMORY_QUEUE={queue}"]
    it = web_project(tmp_path / "project")
    with closing(WebProcess(tmp_path / "web", sites=30, scale=0.5)) as process:
        run_scrapy(
            it, "crawl", "page", "-a", f"seeds={process.seeds}", "-o", "items.jl", *options, code=0
        )
        allowed = process.web.allowed(max_depth=DEPTH, retries=RETRIES, redirects=REDIRECTS)
        verdict = judge_web(process.hits(), allowed)
    assert verdict.exact, verdict
    assert len(list(it.items("items.jl"))) > 200
