"""Addresses of every kind work, and one that cannot be used is one clear line, whatever the command."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rig.badpeer import BadPeer
from rig.calls import says
from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.tls import Authority, Front

LOGIN = "username = me\npassword = hush\nproject = properties\n"

TARGETS: dict[str, tuple[str, str, int]] = {
    "wrong password": ("[deploy:locked]\nurl = {url}\nusername = me\npassword = wrong-one\n",
                       "user name or password refused", 6),
    "no page there": ("[deploy:behind]\nurl = {url}base/path\n" + LOGIN, "page not found", 5),
    "nobody on IPv6": ("[deploy:six]\nurl = http://[::1]:1/\n", "[::1]:1", 5),
    "self-signed": ("[deploy:self signed]\nurl = https://127.0.0.1:{tls}/\n", "certificate verify failed", 6),
    "nobody, with a space": ("[deploy:my node]\nurl = http://127.0.0.1:1\n", "my node", 5),
    "no such host": ("[deploy:web]\nurl = http://nosuchhost.invalid:6800\n", "nosuchhost.invalid", 5),
    "something else": ("[deploy:other]\nurl = http://127.0.0.1:{html}/\n", "not Scrapyd's", 5),
}  # fmt: skip
COMMANDS = [
    ("jobs",), ("logs",), ("grep", "x"), ("schedule", "easy"), ("cancel", "--all", "-y"), ("nodes",), ("rollback",),
    ("prune", "--keep", "1", "-y"), ("versions", "--check"), ("stats", "x"),
]  # fmt: skip


@pytest.fixture(scope="module")
def node(module_fleet: StartFleet) -> ScrapydNode:
    nodes: list[ScrapydNode] = module_fleet(1, username="me", password="hush")
    return nodes[0]


@pytest.fixture
def self_signed(tmp_path: Path) -> Iterator[int]:
    with closing(BadPeer(says(status="ok"), Authority(tmp_path).self_signed())) as server:
        yield server.port


@pytest.fixture
def html() -> Iterator[int]:
    with closing(BadPeer(lambda c, _: c.answer(200, b"<html><h1>It works!</h1></html>"))) as server:
        yield server.port


@pytest.fixture
def assert_clear_line(project: MakeProject, node: ScrapydNode, self_signed: int, html: int) -> Callable[..., None]:
    """`assert_clear_line(run, target, *command)`: what the command says of a project with this target alone."""

    def check(run: RunCommand, target: str, *command: str) -> None:
        section, said, code = TARGETS[target]
        extra = section.format(url=node.url, tls=self_signed, html=html) + "[deploy]\nproject = properties\n"
        done = run(project(settings={**QUICK, "START_URL": "http://127.0.0.1:1/"}, extra=extra), *command)
        told = [line for line in done.err.splitlines() if line.startswith("sdist: ")]
        assert (done.code, len(told)) == (code, 1), done.out + done.err
        assert said in done.err
        assert ".." not in done.err.replace("...", "")
        assert not any(word in done.out + done.err for word in ("wrong-one", "hush", "Traceback"))

    return check


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("target", TARGETS)
def test_an_address_that_cannot_be_used_is_one_clear_line(
    assert_clear_line: Callable[..., None], run_sdist_here: RunCommand, command: tuple[str, ...], target: str
) -> None:
    assert_clear_line(run_sdist_here, target, *command)


@pytest.mark.black_box
@pytest.mark.parametrize("target", TARGETS)
def test_a_crawl_has_the_same_line(assert_clear_line: Callable[..., None], run_cli: RunCommand, target: str) -> None:
    assert_clear_line(run_cli, target, "crawl", "easy", "-q")


@pytest.mark.black_box
@pytest.mark.parametrize("kind", ["IPv6", "base path", "base path without a slash", "name with spaces"])
def test_addresses_of_every_kind_from_end_to_end(
    kind: str, run_cli: RunCommand, project: MakeProject, site: StartSite,
    scrapyd_node: Callable[..., ScrapydNode]
) -> None:  # fmt: skip
    options = {"bind_address": "::1"} if kind == "IPv6" else {}
    here, pages = scrapyd_node(username="me", password="hush", **options), site(30)
    with closing(Front(here, base="/api/scrapyd")) as front:
        url = {
            "IPv6": here.url,
            "base path": front.url,
            "base path without a slash": front.url.rstrip("/"),
            "name with spaces": here.url,
        }[kind]
        name = "my own node" if "spaces" in kind else "web"
        made = project(settings={**QUICK, "START_URL": pages.start_url}, extra=f"[deploy:{name}]\nurl = {url}\n{LOGIN}")
        assert run_cli(made, "deploy", name).code == 0
        crawl = run_cli(made, "crawl", "easy", "-o", "items.jl", "--json")
        assert crawl.code == 0, crawl.err
        assert pages.differences(made.items("items.jl")) == {}
        (row,) = run_cli(made, "schedule", "easy", "--on", name, "-s", "CLOSESPIDER_ITEMCOUNT=3", "--json").json()[
            "jobs"
        ]
        here.wait_idle()
        found = next(job for job in run_cli(made, "jobs", "--json").json()["jobs"] if job["job"] == row["job"])
        assert (found["node"], found["reason"]) == (name, "closespider_itemcount")
        lines = run_cli(made, "logs", row["job"], "-n", "2").out.splitlines()
        assert all(line.startswith(name) for line in lines)
        assert "Spider closed" in lines[-1]
        assert run_cli(made, "nodes", "--json").json()["nodes"][0]["name"] == name
