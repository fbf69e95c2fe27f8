"""Bad input: one clear paragraph, the right exit code, and nothing half done left behind; by both ways in."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import scrapy
from _pytest.mark import ParameterSet
from rig.badpeer import BadPeer
from rig.crawls import ADDON, QUICK, assert_nothing_left, assert_one_paragraph, crawls, said
from rig.fixtures import MakeProject, RunCommand, StartFleet
from rig.nodes import ScrapydNode, free_port
from rig.projects import Project

FAST = {**QUICK, "DISTRIBUTED_REQUEST_TIMEOUT": 2, "START_URL": "http://127.0.0.1:1/"}

LEGACY = """
    import scrapy

    class Legacy(scrapy.Spider):
        name = "legacy"
        custom_settings = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse"]}

        def start_requests(self):
            yield scrapy.Request("http://127.0.0.1:1/")
"""
HIDING = """
    from properties.spiders.easy import EasySpider

    class Hiding(EasySpider):
        name = "hiding"
        custom_settings = {"ADDONS": {}, "SPIDER_MIDDLEWARES": {"scrapyd_dist.Distributed": 100}}
"""
FAR = """
    import typer
    from properties.spiders.easy import EasySpider

    class Far(EasySpider):
        name = "far"
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One bad input: settings or arguments, what it ends with, and what the paragraph has to name."""

    code: int
    words: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()  #: of both programs
    spider: str = "easy"
    source: str = ""  #: of that spider
    quick: bool = False


INDEX = "http://127.0.0.1:1/index_%05d.html"
CASES = {
    "rule that does not exist": Case(
        code=2, settings={"DISTRIBUTED_TARGET_RULE": 7}, words=("no rule 7", "rule 1: callback parse_item"), quick=True
    ),
    "rule without a callback": Case(code=2, settings={"DISTRIBUTED_TARGET_RULE": 0}, words=("no callback",)),
    "rule that is no number": Case(
        code=2, settings={"DISTRIBUTED_TARGET_RULE": "one"}, words=("DISTRIBUTED_TARGET_RULE", "'one'")
    ),
    "callback that does not exist": Case(
        code=2, settings={"DISTRIBUTED_TARGET_CALLBACKS": ["prase"]}, words=("no method 'prase'",)
    ),
    "no target": Case(code=2, spider="plain", words=("--callback", "DISTRIBUTED_TARGET_RULE"), quick=True),
    "template without a placeholder": Case(
        code=2, settings={"DISTRIBUTED_INDEX": "http://x/index.html", "DISTRIBUTED_PAGES": 3}, words=("%05d",)
    ),
    "no pages": Case(code=2, settings={"DISTRIBUTED_INDEX": INDEX, "DISTRIBUTED_PAGES": 0}, words=("pages", "0")),
    "no shards": Case(
        code=2,
        settings={"DISTRIBUTED_INDEX": INDEX, "DISTRIBUTED_PAGES": 3, "DISTRIBUTED_SHARDS": 0},
        words=("shards", "0"),
    ),
    "index without its pages": Case(code=2, settings={"DISTRIBUTED_INDEX": INDEX}, words=("--pages",)),
    "shards without an index": Case(code=2, settings={"DISTRIBUTED_SHARDS": 4}, words=("--index",)),
    "batch of nothing": Case(code=2, settings={"DISTRIBUTED_BATCH_SIZE": 0}, words=("DISTRIBUTED_BATCH_SIZE",)),
    "reserved argument of Scrapyd": Case(code=2, args=("-a", "jobid=x"), words=("'jobid'",), quick=True),
    "reserved argument of ours": Case(code=2, args=("-a", "batch=1"), words=("'batch'",)),
    "feed URL that cannot be read": Case(
        code=2, settings={"DISTRIBUTED_TARGET_FEED_URL": "ftp://me:hu/sh@127.0.0.1/x.jl"}, words=("%2F",)
    ),
    "node that is no target": Case(code=2, settings={"DISTRIBUTED_NODES": ["nowhere"]}, words=("[deploy:nowhere]",)),
    "add-on hidden by the spider": Case(code=2, spider="hiding", source=HIDING, words=("custom_settings", "ADDONS")),
    "scheduler that keeps requests elsewhere": Case(
        code=2,
        settings={"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "REDIS_URL": "redis://127.0.0.1:1/0"},
        words=("SCHEDULER", "scrapy_redis.scheduler.Scheduler", "Take SCHEDULER out"),
    ),
    "filter of duplicates on a server": Case(
        code=2,
        settings={"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
        words=("DUPEFILTER_CLASS", "scrapy_redis.dupefilter.RFPDupeFilter", "Take DUPEFILTER_CLASS out"),
    ),
    "spider that nodes cannot import": Case(
        code=2,
        spider="far",
        source=FAR,
        words=("No module named 'typer'", "on the node"),
    ),
}
if not hasattr(scrapy.Spider, "start_requests"):  # before Scrapy 2.16 such a spider runs
    CASES["legacy spider"] = Case(code=2, spider="legacy", source=LEGACY, words=("start_requests()", "async def start"))

PROGRAMS = ("scrapy", "sdist")


def ways() -> Iterator[ParameterSet]:
    """A quick case is typed as either program; the others take turns, since both come to the same producer."""
    for number, (name, case) in enumerate(CASES.items()):
        for program in PROGRAMS if case.quick else PROGRAMS[number % 2 :][:1]:
            marks = () if case.quick and program == "sdist" else pytest.mark.black_box
            yield pytest.param(case, program, id=f"{name} ({program})", marks=marks)


@pytest.fixture(scope="module")
def node(module_fleet: StartFleet) -> ScrapydNode:
    """One good node, which asks for a password."""
    nodes: list[ScrapydNode] = module_fleet(1, username="me", password="right")
    return nodes[0]


@pytest.fixture
def refused(run_scrapy: RunCommand, run_cli: RunCommand) -> Callable[..., str]:
    """`refused(project, program, spider, …, code=2)`: runs it, checks how it ends, and gives the paragraph."""

    def run(it: Project, program: str, spider: str, *args: str, code: int) -> str:
        if program == "scrapy":
            it.settings(ADDONS=ADDON)
            done = run_scrapy(it, "crawl", spider, *args)
            told = "\n".join(line for line in done.err.splitlines() if " ERROR: " in line)
        else:
            done = run_cli(it, "crawl", spider, *args, "-q")
            told = done.err
        assert done.code == code, said(done)
        assert "Traceback" not in done.err, done.err
        assert_one_paragraph(told)
        return told

    return run


@pytest.mark.parametrize(("case", "program"), list(ways()))
def test_bad_configuration(
    case: Case, program: str, project: MakeProject, refused: Callable[..., str], node: ScrapydNode
) -> None:
    it = project(nodes=[node], settings={**FAST, **case.settings})
    if case.source:
        it.spider(case.spider, case.source)
    told = refused(it, program, case.spider, *case.args, code=case.code)
    assert [word for word in case.words if word not in told] == [], told
    assert "me:hu" not in told, "half of a password"
    assert_nothing_left(it, [node])
    assert all(row.message and row.exit_code == case.code for row in crawls(it))
    assert node.api("listversions.json", project=it.name).get("versions", []) == []


@pytest.mark.parametrize("program", ["scrapy", pytest.param("sdist", marks=pytest.mark.black_box)])
def test_all_nodes_down(program: str, project: MakeProject, refused: Callable[..., str]) -> None:
    port = free_port()
    it = project(settings={**FAST, "DISTRIBUTED_TARGET_HOSTS": [f"127.0.0.1:{port}"]})
    told = refused(it, program, "easy", code=5)
    assert f"127.0.0.1:{port}" in told
    assert "connection refused" in told
    assert_nothing_left(it)


@pytest.mark.black_box
@pytest.mark.parametrize("program", ["scrapy", "sdist"])
def test_a_node_that_hangs(program: str, project: MakeProject, refused: Callable[..., str], node: ScrapydNode) -> None:
    it = project(nodes=[node], settings=FAST)
    node.pause()
    try:
        told = refused(it, program, "easy", code=5)
    finally:
        node.go_on()
    assert "within the time-out" in told
    assert_nothing_left(it, [node])


@pytest.mark.parametrize("program", ["scrapy", pytest.param("sdist", marks=pytest.mark.black_box)])
def test_a_wrong_password(program: str, project: MakeProject, refused: Callable[..., str], node: ScrapydNode) -> None:
    wrong = f"[deploy:one]\nurl = {node.url}\nproject = properties\nusername = me\npassword = not-this\n"
    it = project(settings=FAST, extra=wrong)
    told = refused(it, program, "easy", code=6)
    assert "password" in told
    assert "not-this" not in told
    assert_nothing_left(it, [node])


@pytest.mark.black_box
@pytest.mark.parametrize("program", ["scrapy", "sdist"])
def test_a_node_that_answers_html(program: str, project: MakeProject, refused: Callable[..., str]) -> None:
    peer = BadPeer(lambda connection, _: connection.answer(200, b"<html><h1>It works!</h1></html>"))
    try:
        it = project(settings={**FAST, "DISTRIBUTED_TARGET_HOSTS": [f"127.0.0.1:{peer.port}"]})
        told = refused(it, program, "easy", code=5)
    finally:
        peer.close()
    assert "not Scrapyd's" in told
    assert not any(b"POST" in request[:5] for request in peer.requests), "nothing was sent to it"
    assert_nothing_left(it)


def test_no_project_here(project: MakeProject, run_cli: RunCommand) -> None:
    it = project(settings=FAST)
    (it.path / "scrapy.cfg").unlink()
    done = run_cli(it, "crawl", "easy")
    assert done.code == 2, said(done)
    assert_one_paragraph(done.err)
    assert "scrapy.cfg" in done.err
    assert not (it.path / ".sdist").exists()


@pytest.mark.black_box
def test_settings_without_scrapy_cfg(project: MakeProject, run_scrapy: RunCommand, node: ScrapydNode) -> None:
    it = project(settings={**FAST, "ADDONS": ADDON, "DISTRIBUTED_TARGET_HOSTS": [f"me:right@127.0.0.1:{node.port}"]})
    (it.path / "scrapy.cfg").unlink()
    env = {"SCRAPY_SETTINGS_MODULE": "properties.settings", "PYTHONPATH": str(it.path)}
    done = run_scrapy(it, "crawl", "easy", env=env)
    assert done.code == 2, said(done)
    assert "There is no scrapy.cfg here" in done.err
    assert "Traceback" not in done.err
    assert_nothing_left(it, [node])


@pytest.mark.parametrize("command", ["crawl", pytest.param("plan", marks=pytest.mark.black_box)])
def test_unknown_spider(command: str, project: MakeProject, run_cli: RunCommand, node: ScrapydNode) -> None:
    it = project(nodes=[node], settings=FAST)
    done = run_cli(it, command, "eazy", *(["-q"] if command == "crawl" else []))
    assert done.code == 4, said(done)
    assert_one_paragraph(done.err)
    assert "easy, plain" in done.err
    assert_nothing_left(it, [node])


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("command", "source"),
    [("crawl", "import no_such_module_here"), ("plan", "def broken(:\n    pass"), ("crawl", "1 / 0")],
)
def test_a_spider_module_that_fails_to_import(
    source: str, command: str, project: MakeProject, run_cli: RunCommand, node: ScrapydNode
) -> None:
    it = project(nodes=[node], settings=FAST)
    it.spider("broken", source)
    done = run_cli(it, command, "easy", *(["-q"] if command == "crawl" else []))
    assert done.code == 2, said(done)
    assert_one_paragraph(done.err)
    assert "broken.py" in done.err or "no_such_module_here" in done.err, done.err
    assert_nothing_left(it, [node])


@pytest.mark.black_box
def test_a_good_crawl_follows_a_refused_one(
    project: MakeProject, refused: Callable[..., str], run_cli: RunCommand, node: ScrapydNode, site: Callable[..., Any]
) -> None:
    there = site(30)
    it = project(nodes=[node], settings={**FAST, "START_URL": there.start_url})
    refused(it, "sdist", "easy", "--rule", "9", code=2)
    done = run_cli(it, "crawl", "easy", "-o", "items.jl", "--json")
    assert done.code == 0, said(done)
    assert there.differences(it.items("items.jl")) == {}
