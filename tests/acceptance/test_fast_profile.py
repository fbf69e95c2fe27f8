"""The profiles on real nodes: the same items and the same account as without one, and every job has it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rig.crawls import QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.projects import Project

pytestmark = pytest.mark.black_box
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "worker.py"

#: a page gives items, a further request, an error, and a debug line; the item says what its process is like
VARIED = """
    import gc, logging

    from properties.spiders.easy import EasySpider

    class Varied(EasySpider):
        name = "varied"

        def parse_item(self, response):
            settings = self.crawler.settings
            number = int(response.css("span.number::text").get())
            if number % 7 == 3:
                raise ValueError(number)
            self.logger.debug("a page")
            for part in range(number % 5):
                yield {"number": number, "part": part}
            yield {
                "number": number, "items": settings.getint("CONCURRENT_ITEMS"),
                "debug": self.logger.isEnabledFor(logging.DEBUG), "frozen": gc.get_freeze_count() > 0,
            }
            yield response.follow("?again=1", self.parse_again, cb_kwargs={"number": number})

        def parse_again(self, response, number):
            yield {"number": number, "again": True}
"""
FIGURES = {"page_ms", "page_ratio", "start_s", "start_ratio", "whole_ratio"}
PROCESS = ("items", "debug", "frozen")
ACCOUNT = (
    "urls_found",
    "urls_distinct",
    "pages",
    "items",
    "gone_urls",
    "failed_urls",
    "dead_urls",
    "exit_code",
    "state",
)


def crawled(run_cli: RunCommand, it: Project, *options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    done = run_cli(it, "crawl", "varied", "--max-failed", "100", "--json", "-O", "items.jl", *options)
    assert done.code == 0, said(done)
    return list(it.items("items.jl")), {name: done.json()[name] for name in ACCOUNT}


def plain(items: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps({name: value for name, value in item.items() if name not in PROCESS}) for item in items)


def processes(items: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(item[name] for name in PROCESS) for item in items if "items" in item}


def test_the_profile_changes_no_result(
    project: MakeProject, run_cli: RunCommand, fleet: StartFleet, site: StartSite
) -> None:
    there = site(48)
    it = project(nodes=fleet(2), settings={**QUICK, "START_URL": there.start_url})
    it.spider("varied", VARIED)
    it.settings(LOG_LEVEL="INFO")
    without, account = crawled(run_cli, it, "--profile", "none")
    assert processes(without) == {(100, True, False)}
    assert account["failed_urls"] == 7
    for options, process in ([], (16, True, True)), (["--profile", "fast"], (4, False, True)):
        items, same = crawled(run_cli, it, *options)
        assert (plain(items), same) == (plain(without), account)
        assert processes(items) == {process}
    # What the project or the person has set stays.
    it.settings(DISTRIBUTED_PROFILE="fast", CONCURRENT_ITEMS=9)
    items, same = crawled(run_cli, it, "-s", "LOG_LEVEL=DEBUG")
    assert (plain(items), same) == (plain(without), account)
    assert processes(items) == {(9, True, True)}


def test_the_short_benchmark_of_the_profile(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--short", "--ways", "gc,log,fast", "--json", figures],
        check=False, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert list(found["ways"]) == ["none", "gc", "log", "fast"]
    assert all(set(way) == FIGURES for way in found["ways"].values()), found["ways"]
    assert "| **the profile `fast`** |" in done.stdout
