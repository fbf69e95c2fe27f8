"""Our eggs on real Scrapyd nodes that know nothing of us: jobs run, and the egg's copy of us is the one they import."""

import json
import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from rig.fixtures import MakeProject, StartFleet
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.waiting import wait_for
from scrapyd_dist.deploy.egg import build
from scrapyd_dist.middlewares.assignment import KEY_FILE

import scrapyd_dist
from scrapyd_dist.scrapyd.versions import version_name

#: an interpreter with the lowest Scrapy and Scrapyd that are supported; without it there is no such row
LOW = "SDIST_LOW_PYTHON"

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
#: stands before the JSON in a log
FACTS = "FACTS: "
#: A spider without requests that logs where things came from.
SPIDER = f"""
import importlib.resources, json, pkgutil, sys
import scrapy

class Facts(scrapy.Spider):
    name = "facts"

    async def start(self):
        import scrapyd_dist, scrapyd_dist.payload
        settings = self.crawler.settings
        facts = {{
            "version": scrapyd_dist.__version__,
            "files": [sys.modules["scrapyd_dist" + name].__file__ for name in ("", ".payload", ".middlewares")],
            "key": importlib.resources.files("scrapyd_dist").joinpath({KEY_FILE!r}).read_text(),
            "settings_module": settings["SETTINGS_MODULE"],
            "word": settings["WORD"],
            "resource": importlib.resources.files("facts").joinpath("data/words.txt").read_text(),
            "pkgutil": pkgutil.get_data("facts", "data/words.txt").decode(),
            "addons": [type(addon).__module__ for addon in self.crawler.addons.addons],
        }}
        self.logger.info({FACTS!r} + json.dumps(facts))
        return
        yield
"""


@pytest.fixture(scope="module")
def plain(module_fleet: StartFleet) -> ScrapydNode:
    return module_fleet(1)[0]


def check(node: ScrapydNode, made: Project, name: str) -> None:
    """Deploy the project under a name, run its spider, and check what the spider logged."""
    made.write("facts/data/words.txt", "a word\n")
    egg = build(made.path, "facts.settings", key=b"k")
    version = version_name(egg.content_hash, NOON, dirty=True)
    assert node.add_version(name, version, egg.data)["status"] == "ok"
    assert node.api("listversions.json", project=name)["versions"] == [version]
    assert node.api("listspiders.json", project=name, _version=version)["spiders"] == ["facts"]
    job = f"job-{name}"
    assert node.api("schedule.json", project=name, spider="facts", jobid=job, _version=version)["jobid"] == job
    wait_for(lambda: node.jobs("finished", name), 60, f"the end of {job}")
    log = node.job_log(job)
    lines = [line for line in log.splitlines() if FACTS in line]
    assert len(lines) == 1, log
    facts = json.loads(lines[0].partition(FACTS)[2])
    assert facts["version"] == scrapyd_dist.__version__
    assert all(".egg/scrapyd_dist/" in file for file in facts["files"]), facts["files"]
    assert (facts["key"], facts["settings_module"], facts["word"]) == ("k", "facts.settings", "told")
    assert facts["resource"] == facts["pkgutil"] == "a word\n"
    assert facts["addons"] == ["scrapyd_dist.middlewares.addon"]


@pytest.fixture
def facts_project(project: MakeProject) -> Callable[..., Project]:
    return lambda **settings: project(spiders={"facts": SPIDER}, name="facts", settings={"WORD": "told", **settings})


@pytest.mark.parametrize("settings", [{}, {"ADDONS": {"scrapyd_dist.Addon": 500}}])
def test_a_project_that_names_the_addon_or_not(
    plain: ScrapydNode, facts_project: MakeProject, settings: dict[str, Any]
) -> None:
    check(plain, facts_project(**settings), f"p{len(settings)}")


def test_an_old_broken_copy_on_the_node(
    scrapyd_node: Callable[..., ScrapydNode], facts_project: MakeProject, tmp_path: Path
) -> None:
    old = tmp_path / "old/scrapyd_dist"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("raise RuntimeError('the old copy')\n", encoding="utf-8")
    node = scrapyd_node(env={"PYTHONPATH": str(old.parent)})
    check(node, facts_project(), "facts")
    # The copy is really in the way: an egg without the boot module finds it.
    made = facts_project()
    made.spider("other", "import scrapyd_dist\n")
    answer = node.add_version("plain", "1", made.plain_egg())
    assert "the old copy" in answer["message"]


if LOW in os.environ:

    def test_the_lowest_versions(scrapyd_node: Callable[..., ScrapydNode], facts_project: MakeProject) -> None:
        check(scrapyd_node(python=Path(os.environ[LOW])), facts_project(), "low")
