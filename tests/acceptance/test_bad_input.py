"""Bad input: one clear paragraph, the right exit code, nothing half done left behind; and bad words of a node."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import scrapy
from _pytest.mark import ParameterSet
from rig.badpeer import BadPeer, Connection
from rig.calls import says
from rig.crawls import ADDON, QUICK, assert_nothing_left, assert_one_paragraph, crawls
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode, free_port
from rig.projects import Project
from rig.tls import Authority, Front

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
PICKY = """
    from properties.spiders.easy import EasySpider

    class Picky(EasySpider):
        name = "picky"

        def __init__(self, *args, **kwargs):
            print("I begin")  # what a project prints is no part of a plan
            raise ValueError("no category")
"""
TWO = """
    from properties.spiders.plain import PlainSpider

    class Two(PlainSpider):
        name = "two"

        def parse_agent(self, response):
            yield {"agent": response.url}
"""
FAR = """
    import typer
    from properties.spiders.easy import EasySpider

    class Far(EasySpider):
        name = "far"
"""


@dataclass(frozen=True)
class Case:
    """One bad input, and what the paragraph has to name."""

    words: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    args: tuple[str, ...] = ()  #: of both programs
    spider: str = "easy"
    source: str = ""  #: of that spider
    quick: bool = False
    code: int = 2  #: how it ends


#: the reasons themselves: unit/test_codec, test_options, test_lifecycle and test_api
CASES = {
    "rule that does not exist": Case(
        ("no rule 7", "rule 1: callback parse_item"), {"DISTRIBUTED_TARGET_RULE": 7}, quick=True
    ),
    "no target": Case(
        ("--callback parse_", "DISTRIBUTED_TARGET_CALLBACKS"), spider="two", source=TWO, quick=True
    ),
    "reserved argument of Scrapyd": Case(("'jobid'",), args=("-a", "jobid=x"), quick=True),
    "index without its pages": Case(
        ("--pages",), {"DISTRIBUTED_INDEX": "http://127.0.0.1:1/index_%05d.html"}
    ),
    "feed URL that cannot be read": Case(
        ("%2F",), {"DISTRIBUTED_TARGET_FEED_URL": "ftp://me:hu/sh@127.0.0.1/x.jl"}
    ),
    "node that is no target": Case(
        ("There is no node 'nowhere'",), {"DISTRIBUTED_NODES": ["nowhere"]}, code=4
    ),
    "add-on hidden by the spider": Case(
        ("custom_settings", "ADDONS"), spider="hiding", source=HIDING
    ),
    "scheduler that keeps requests elsewhere": Case(
        ("Take SCHEDULER out", "scrapy_redis.scheduler.Scheduler"),
        {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "REDIS_URL": "redis://127.0.0.1:1/0"},
    ),
    "merged files that are no list": Case(
        ("OUTPUTS is {", "must be a list"), {"DISTRIBUTED_OUTPUTS": {"path": "x.jl"}}
    ),
    "login that the spider lacks": Case(
        ("LOGIN names 'nope'", "no method"),
        {"DISTRIBUTED_LOGIN": "nope", "DISTRIBUTED_MODE": "pull"},
    ),
    "switch that is neither": Case(("must be True or False",), {"DISTRIBUTED_ENABLED": "perhaps"}),
    "list of nodes that names none": Case(("name no node",), {"DISTRIBUTED_NODES": ["cmd:true"]}),
    "spider that nodes cannot import": Case(
        ("No module named 'typer'", "on the node"), spider="far", source=FAR
    ),
}
if not hasattr(scrapy.Spider, "start_requests"):  # before Scrapy 2.16 such a spider runs
    CASES["legacy spider"] = Case(
        ("start_requests()", "async def start"), spider="legacy", source=LEGACY
    )


def ways() -> Iterator[ParameterSet]:
    """The programs take turns, since both come to the same producer; `make test` has the quick ones, as `sdist`."""
    for number, (name, case) in enumerate(CASES.items()):
        program = "sdist" if case.quick or number % 2 else "scrapy"
        yield pytest.param(
            case,
            program,
            id=f"{name} ({program})",
            marks=() if case.quick else pytest.mark.black_box,
        )


@pytest.fixture(scope="module")
def node(module_fleet: StartFleet) -> ScrapydNode:
    """One good node, which asks for a password."""
    nodes: list[ScrapydNode] = module_fleet(1, username="me", password="hush")
    return nodes[0]


@pytest.fixture
def web() -> Iterator[BadPeer]:
    """A server that is no Scrapyd."""
    with closing(
        BadPeer(lambda connection, _: connection.answer(200, b"<html><h1>It works!</h1></html>"))
    ) as server:
        yield server


@pytest.fixture
def refused(run_scrapy: RunCommand, run_cli: RunCommand) -> Callable[..., str]:
    """`refused(project, program, spider, …, code=2)`: runs it, checks how it ends, and gives the paragraph."""

    def run(it: Project, program: str, spider: str, *args: str, code: int) -> str:
        if program == "scrapy":
            it.settings(ADDONS=ADDON)
            done = run_scrapy(it, "crawl", spider, *args, code=code)
            told = "\n".join(line for line in done.err.splitlines() if " ERROR: " in line)
        else:
            done = run_cli(it, "crawl", spider, *args, "-q", code=code)
            told = done.err
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


@pytest.mark.parametrize(
    "line",
    ["crawl easy", "plan easy", "strategy run scrapyd_dist.strategy:BreadthFirst --spider easy"],
)
def test_a_node_that_is_not_there(line: str, project: MakeProject, run_cli: RunCommand) -> None:
    it = project(settings=FAST)
    it.targets([], "[deploy:web1]\nurl = http://127.0.0.1:1/\nproject = properties\n")
    for named in ({"SDIST_NODES": "web2"}, {}):
        done = run_cli(it, *line.split(), *([] if named else ["--node", "web2"]), env=named, code=4)
        assert_one_paragraph(done.err)
        assert (
            "There is no node 'web2'. Did you mean web1? The targets are: web1. An address will do"
            in done.err
        )


@pytest.mark.black_box
@pytest.mark.parametrize("program", ["scrapy", "sdist"])
def test_nodes_that_cannot_be_used(
    program: str, project: MakeProject, refused: Callable[..., str], node: ScrapydNode, web: BadPeer
) -> None:
    """None is there, one hangs, one refuses the password, and one is something else."""
    gone, it = f"127.0.0.1:{free_port()}", project(nodes=[node], settings=FAST)
    node.pause()
    try:
        assert "within the time-out" in refused(it, program, "easy", code=5)
    finally:
        node.go_on()
    it.targets([], f"[deploy:gone]\nurl = http://{gone}/\nproject = properties\n")
    told = refused(it, program, "easy", code=5)
    assert (gone in told, "connection refused" in told) == (True, True)
    it.targets(
        [],
        f"[deploy:one]\nurl = {node.url}\nproject = properties\nusername = me\npassword = not-this\n",
    )
    told = refused(it, program, "easy", code=6)
    assert ("password" in told, "not-this" in told) == (True, False)
    it.targets([], f"[deploy:web]\nurl = http://127.0.0.1:{web.port}/\nproject = properties\n")
    assert "not Scrapyd's" in refused(it, program, "easy", code=5)
    assert not any(b"POST" in request[:5] for request in web.requests), "nothing was sent to it"
    assert_nothing_left(it, [node])


def test_no_project_here(project: MakeProject, run_cli: RunCommand) -> None:
    it = project(settings=FAST)
    (it.path / "scrapy.cfg").unlink()
    done = run_cli(it, "crawl", "easy", code=2)
    assert_one_paragraph(done.err)
    assert "scrapy.cfg" in done.err
    assert not (it.path / ".sdist").exists()


@pytest.mark.black_box
def test_settings_without_scrapy_cfg(
    project: MakeProject, run_scrapy: RunCommand, node: ScrapydNode
) -> None:
    it = project(
        settings={
            **FAST,
            "ADDONS": ADDON,
            "DISTRIBUTED_TARGET_HOSTS": [f"me:hush@127.0.0.1:{node.port}"],
        }
    )
    (it.path / "scrapy.cfg").unlink()
    env = {"SCRAPY_SETTINGS_MODULE": "properties.settings", "PYTHONPATH": str(it.path)}
    done = run_scrapy(it, "crawl", "easy", env=env, code=2)
    assert "There is no scrapy.cfg here" in done.err
    assert "Traceback" not in done.err
    assert_nothing_left(it, [node])


@pytest.mark.parametrize(
    ("command", "spider", "source", "code", "told"),
    [
        ("crawl", "eazy", "", 4, "easy, plain"),
        pytest.param("plan", "eazy", "", 4, "easy, plain", marks=pytest.mark.black_box),
        pytest.param(
            "crawl",
            "easy",
            "import no_such_module_here",
            2,
            "no_such_module_here",
            marks=pytest.mark.black_box,
        ),
        pytest.param(
            "plan", "easy", "def broken(:\n    pass", 2, "broken.py", marks=pytest.mark.black_box
        ),
        pytest.param("crawl", "easy", "1 / 0", 2, "broken.py", marks=pytest.mark.black_box),
    ],
)
def test_a_spider_that_is_unknown_or_fails_to_import(
    command: str, spider: str, source: str, code: int, told: str,
    project: MakeProject, run_cli: RunCommand, node: ScrapydNode
) -> None:  # fmt: skip
    it = project(nodes=[node], settings=FAST)
    it.spider("broken", source)
    done = run_cli(it, command, spider, *(["-q"] if command == "crawl" else []), code=code)
    assert_one_paragraph(done.err)
    assert told in done.err
    assert_nothing_left(it, [node])


@pytest.mark.black_box
def test_a_spider_that_cannot_be_made_is_told_and_its_traceback_is_in_the_log(
    project: MakeProject, run_cli: RunCommand, node: ScrapydNode
) -> None:
    it = project(nodes=[node], settings=FAST)
    it.spider("picky", PICKY)
    done = run_cli(it, "crawl", "picky", "--name", "c", "-q", code=2)
    assert_one_paragraph(done.err)
    log = it.path / ".sdist" / "crawls" / "c" / "producer.log"
    assert (
        f"cannot be started: ValueError: no category. Nothing was started. The whole traceback is in {log}"
        in done.err
    )
    assert "Traceback" in log.read_text()
    for more, shown in ((), False), (("--debug",), True):
        planned = run_cli(it, "plan", "picky", *more, code=2).err
        assert ("ValueError: no category (" in planned, "Traceback" in planned) == (True, shown)


def test_a_name_that_the_terminal_cannot_show_is_shown_by_its_code(
    project: MakeProject, run_cli: RunCommand
) -> None:
    it, poor = (
        project(settings=FAST, extra="[deploy:café]\nurl = http://127.0.0.1:1/\n"),
        {"PYTHONIOENCODING": "ascii"},
    )
    assert "caf\\xe9" in run_cli(it, "config", env=poor, code=0).out
    named = run_cli(it, "config", "--json", env=poor, code=0)
    assert "[deploy:café]" in {row["section"] for row in named.json()["options"]}


# addresses of every kind

LOGIN = "username = me\npassword = hush\nproject = properties\n"

TARGETS: dict[str, tuple[str, str, int]] = {
    "wrong password": ("[deploy:locked]\nurl = {url}\nusername = me\npassword = wrong-one\n",
                       "user name or password refused", 6),
    "no page there": ("[deploy:behind]\nurl = {url}base/path\n" + LOGIN, "page not found", 5),
    "nothing on IPv6": ("[deploy:six]\nurl = http://[::1]:1/\n", "[::1]:1", 5),
    "self-signed": ("[deploy:self signed]\nurl = https://127.0.0.1:{tls}/\n", "certificate verify failed", 6),
    "nothing, and a space": ("[deploy:my node]\nurl = http://127.0.0.1:1\n", "my node", 5),
    "no such host": ("[deploy:web]\nurl = http://nosuchhost.invalid:6800\n", "nosuchhost.invalid", 5),
    "something else": ("[deploy:other]\nurl = http://127.0.0.1:{html}/\n", "not Scrapyd's", 5),
}  # fmt: skip
COMMANDS = [
    ("jobs",), ("logs",), ("jobs", "grep", "x"), ("jobs", "schedule", "easy"), ("jobs", "cancel", "--all", "-y"),
    ("nodes",), ("code", "rollback"), ("code", "prune", "--keep", "1", "-y"), ("code", "versions"),
    ("jobs", "stats", "x"), ("code", "versions", "--spiders"),
    ("deploy", "--all", "--retries", "0"),
]  # fmt: skip


@pytest.fixture
def self_signed(tmp_path: Path) -> Iterator[int]:
    with closing(BadPeer(says(status="ok"), Authority(tmp_path).self_signed())) as server:
        yield server.port


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("target", TARGETS)
def test_an_address_that_cannot_be_used_is_one_clear_line(
    run_sdist_here: RunCommand, project: MakeProject, node: ScrapydNode, self_signed: int, web: BadPeer,
    command: tuple[str, ...], target: str
) -> None:  # fmt: skip
    section, said, code = TARGETS[target]
    extra = (
        section.format(url=node.url, tls=self_signed, html=web.port)
        + "[deploy]\nproject = properties\n"
    )
    done = run_sdist_here(project(settings=QUICK, extra=extra), *command)
    told = [line for line in done.err.splitlines() if line.startswith("sdist: ")]
    assert (done.code, len(told)) == (code, 1), done.out + done.err
    assert said in done.err
    assert ".." not in done.err.replace("...", "")
    assert not any(word in done.out + done.err for word in ("wrong-one", "hush", "Traceback"))


@pytest.mark.black_box
def test_addresses_of_every_kind_from_end_to_end(
    run_cli: RunCommand, project: MakeProject, site: StartSite, fleet: StartFleet
) -> None:
    login = {"username": "me", "password": "hush"}
    six, based, bare, spaced = nodes = [*fleet(1, bind_address="::1", **login), *fleet(3, **login)]
    with (
        closing(Front(based, base="/api/scrapyd")) as front,
        closing(Front(bare, base="/api")) as other,
    ):
        urls = {
            "six": six.url,
            "based": front.url,
            "no-slash": other.url.rstrip("/"),
            "my own node": spaced.url,
        }
        sections = "".join(f"[deploy:{name}]\nurl = {url}\n{LOGIN}" for name, url in urls.items())
        pages = site(30)
        made = project(
            settings={**QUICK, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 5},
            extra=sections,
        )
        assert run_cli(made, "deploy", *urls).code == 0
        crawl = run_cli(made, "crawl", "easy", "-o", "items.jl", "--json", code=0)
        assert pages.differences(made.items("items.jl")) == {}
        assert {row["name"] for row in crawl.json()["nodes"] if row["jobs"]} == urls.keys()
        rows = run_cli(
            made,
            "jobs",
            "schedule",
            "easy",
            "--all-nodes",
            "-s",
            "CLOSESPIDER_ITEMCOUNT=3",
            "--json",
        ).json()["jobs"]
        for real in nodes:
            real.wait_idle()
        found = {row["job"]: row for row in run_cli(made, "jobs", "--json").json()["jobs"]}
        assert {row["node"] for row in rows} == urls.keys()
        for row in rows:
            assert found[row["job"]]["reason"] == "closespider_itemcount"
            lines = run_cli(made, "logs", row["job"], "-n", "2").out.splitlines()
            assert all(line.startswith(row["node"]) for line in lines)
            assert "Spider closed" in lines[-1]
        assert {
            row["name"] for row in run_cli(made, "nodes", "--json").json()["nodes"]
        } == urls.keys()


#: what a node says that it should not
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\u202e\x9b"
JOB = f"job{ESCAPES}"
LOG = f"2026-11-20 20:00:00 [shop] ERROR: \x1b[31mred\x1b[0m {ESCAPES}\n".encode()
ROW = {
    "id": JOB,
    "project": "properties",
    "spider": f"easy{ESCAPES}",
    "start_time": "2026-11-20 20:00:00",
    "pid": 1,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "daemonstatus.json": {"pending": 0, "running": 1, "finished": 0, "node_name": ESCAPES},
    "listjobs.json": {"pending": [], "running": [ROW], "finished": []},
    "listprojects.json": {"projects": ["properties", ESCAPES]},
    "listversions.json": {"versions": [f"r1{ESCAPES}"]},
    "listspiders.json": {"spiders": [f"easy{ESCAPES}"]},
}
SHOWING: tuple[tuple[str, ...], ...] = (
    ("jobs",), ("logs", JOB), ("jobs", "grep", "red"), ("code", "versions"), ("code", "versions", "--spiders"),
    ("jobs", "stats", JOB), ("nodes",), ("watch", "--fleet", "--timeout", "1"),
)  # fmt: skip


def hostile(connection: Connection, request: bytes) -> None:
    page = urlsplit(request.split(b" ", 2)[1].decode()).path.rpartition("/")[2]
    if page.endswith(".json"):
        connection.answer(200, json.dumps({"status": "ok", **ANSWERS[page]}).encode())
    elif page.endswith(".log"):
        connection.answer(200, LOG, "Content-Type: text/plain")
    else:
        connection.answer(404, b"File not found.")


def digits(connection: Connection, _: bytes) -> None:
    body = '{"status": "ok", "pending": @, "running": @, "finished": @, "node_name": "n", "versions": @, "projects": @}'
    connection.answer(200, body.replace("@", "9" * 5000).encode())


@pytest.fixture
def on(project: MakeProject) -> Iterator[MakeProject]:
    with ExitStack() as stack:

        def make(play: Callable[[Connection, bytes], None]) -> Project:
            peer = stack.enter_context(closing(BadPeer(play)))
            return project(
                extra=f"[deploy:bad]\nurl = http://127.0.0.1:{peer.port}/\nproject = properties\n"
            )

        yield make


def test_nothing_steers_the_terminal(run_cli: RunCommand, on: MakeProject) -> None:
    it = on(hostile)
    for arguments in SHOWING:
        name, done = " ".join(arguments), run_cli(it, *arguments)
        said = done.out + done.err
        assert not set(said) & set("\x1b\x07\x9b\u202e"), (name, said)
        assert "no words for" not in said, (name, said)
        if not name.startswith(
            ("jobs stats", "nodes", "watch")
        ):  # those show no name of a job, or none of the node's
            assert SHOWN in said, (name, said)
        assert "red" in said or not name.startswith(("logs", "jobs grep"))
    assert run_cli(it, "jobs", "--json").json()["jobs"][0]["job"] == JOB
    for arguments in (("logs", JOB, "--raw"), ("jobs", "grep", "red", "--raw")):
        assert LOG.decode() in run_cli(it, *arguments).out


def test_numbers_without_an_end_are_a_bad_answer(run_cli: RunCommand, on: MakeProject) -> None:
    it = on(digits)
    for command in ("jobs", "nodes", "doctor"):  # 5,000 digits in each answer make them fail
        done = run_cli(it, command)
        said = done.out + done.err
        assert "no words for" not in said, (command, said)
        assert "itself failed" not in said, (command, said)
        assert "bad" in said
        assert len(said) < 5000
