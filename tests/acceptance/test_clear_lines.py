"""Addresses of every kind work, and one that cannot be used is one clear line, whatever the command."""

from collections.abc import Iterator
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
    ("prune", "--keep", "1", "-y"), ("versions", "--check"), ("stats", "x"), ("spiders",),
    ("deploy-all", "--retries", "0"),
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


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("target", TARGETS)
def test_an_address_that_cannot_be_used_is_one_clear_line(
    run_sdist_here: RunCommand, project: MakeProject, node: ScrapydNode, self_signed: int, html: int,
    command: tuple[str, ...], target: str
) -> None:  # fmt: skip
    section, said, code = TARGETS[target]
    extra = section.format(url=node.url, tls=self_signed, html=html) + "[deploy]\nproject = properties\n"
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
    with closing(Front(based, base="/api/scrapyd")) as front, closing(Front(bare, base="/api")) as other:
        urls = {"six": six.url, "based": front.url, "no-slash": other.url.rstrip("/"), "my own node": spaced.url}
        sections = "".join(f"[deploy:{name}]\nurl = {url}\n{LOGIN}" for name, url in urls.items())
        pages = site(30)
        made = project(settings={**QUICK, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 5}, extra=sections)
        assert run_cli(made, "deploy", *urls).code == 0
        crawl = run_cli(made, "crawl", "easy", "-o", "items.jl", "--json", code=0)
        assert pages.differences(made.items("items.jl")) == {}
        assert {row["name"] for row in crawl.json()["nodes"] if row["jobs"]} == urls.keys()
        rows = run_cli(made, "schedule", "easy", "--all-nodes", "-s", "CLOSESPIDER_ITEMCOUNT=3", "--json").json()[
            "jobs"
        ]
        for real in nodes:
            real.wait_idle()
        found = {row["job"]: row for row in run_cli(made, "jobs", "--json").json()["jobs"]}
        assert {row["node"] for row in rows} == urls.keys()
        for row in rows:
            assert found[row["job"]]["reason"] == "closespider_itemcount"
            lines = run_cli(made, "logs", row["job"], "-n", "2").out.splitlines()
            assert all(line.startswith(row["node"]) for line in lines)
            assert "Spider closed" in lines[-1]
        assert {row["name"] for row in run_cli(made, "nodes", "--json").json()["nodes"]} == urls.keys()
