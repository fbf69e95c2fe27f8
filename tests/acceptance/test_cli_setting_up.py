"""From zero: `sdist init`, a node with the configuration it prints, `config`, completion in real shells, `demo`."""

import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from rig.commands import SDIST
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.http import fetch
from rig.nodes import free_port
from rig.processes import end_all, private_environment, with_home
from rig.projects import Project
from rig.waiting import wait_for
from scrapyd_dist.cli.crawls.demo import NEXT

SECRET = "hush-7%&$x"


class ConfiguredNode:
    """A Scrapyd started as the printed configuration says."""

    def __init__(self, python: Path, folder: Path, text: str) -> None:
        folder.mkdir()
        (folder / "scrapyd.conf").write_text(text, "utf-8")
        self.port, self._home = free_port(), folder / "home"
        self._home.mkdir()
        login = {
            "SCRAPYD_USERNAME": "crawler",
            "SCRAPYD_PASSWORD": SECRET,
            "SCRAPYD_HTTP_PORT": str(self.port),
        }
        with (folder / "scrapyd.log").open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "scrapyd", "--pidfile="], cwd=folder, env=private_environment(self._home, login),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_for(lambda: self.status() == 401, 60, "the node with the printed configuration")

    def status(self, **options: Any) -> int:
        return fetch(f"http://127.0.0.1:{self.port}/daemonstatus.json", **options).status

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)
        end_all(self._home)


@pytest.fixture
def configured_node(
    node_python: Path, tmp_path: Path, run_cli: RunCommand, project: MakeProject
) -> Iterator[ConfiguredNode]:
    printed = run_cli(project(), "init", "--node-conf", code=0)
    with closing(ConfiguredNode(node_python, tmp_path / "configured", printed.out)) as node:
        yield node


def test_from_zero_to_nodes_that_answer(
    configured_node: ConfiguredNode, run_cli: RunCommand, project: MakeProject
) -> None:
    made = project(extra="# keep me\n")
    before = (made.path / "scrapy.cfg").read_bytes()
    assert configured_node.status(auth=("crawler", SECRET)) == 200
    env = {"SDIST_NODE1_PASSWORD": SECRET}
    nodes = [
        "--node",
        f"http://crawler@127.0.0.1:{configured_node.port}",
        "--node",
        f"127.0.0.1:{free_port()}",
    ]

    dry = run_cli(
        made, "init", *nodes, "--name", "node1", "--name", "closed", "--dry-run", env=env, code=10
    )
    assert "[deploy:closed]" in dry.out
    assert (made.path / "scrapy.cfg").read_bytes() == before

    done = run_cli(
        made, "init", *nodes, "--name", "node1", "--name", "closed", "--json", env=env, code=0
    )
    states = {row["name"]: row["state"] for row in done.json()["nodes"]}
    assert states == {"node1": "up", "closed": "connection refused"}
    after = (made.path / "scrapy.cfg").read_text("utf-8")
    assert after.startswith(before.decode())
    assert after.removeprefix(before.decode()).startswith(
        "\n[deploy:node1]\nurl = http://127.0.0.1:"
    )
    assert after.count("project = properties") == 2

    again = run_cli(made, "init", *nodes, env=env, code=0)
    assert (made.path / "scrapy.cfg").read_text("utf-8") == after

    listed = run_cli(made, "nodes", "--json", env=env)
    assert {row["name"]: row["state"] for row in listed.json()["nodes"]}["node1"] == "up"
    shown = run_cli(made, "config", "--json", env=env)
    origins = {
        (row["section"], row["name"]): (row["value"], row["origin"])
        for row in shown.json()["options"]
    }
    password = origins["[deploy:node1]", "password"]
    assert password == ("***", "scrapy.cfg [deploy:node1], environment SDIST_NODE1_PASSWORD")
    assert all(SECRET not in text for one in (dry, done, again, listed, shown) for text in one[1:])


def test_what_is_in_force_is_told_with_its_origin(
    run_cli: RunCommand, project: MakeProject, tmp_path: Path
) -> None:
    made = project(
        settings={
            "DISTRIBUTED_PAGE": 3,
            "DISTRIBUTED_SHARDS": 4,
            "DISTRIBUTED_TARGET_FEED_URL": f"ftp://me:{SECRET}@h/",
        },
        extra=f"""
            [deploy]
            username = me
            [deploy:one]
            url = http://127.0.0.1:1/
            pasword = {SECRET.replace("%", "%%")}
            [deploy:two]
            url = http://127.0.0.1:2/
            username =
            """,
    )
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login other password {SECRET}\n", "utf-8")
    env = {"NETRC": str(netrc), "SDIST_STORE": f"redis://:{SECRET}@127.0.0.1:1/0"}
    done = run_cli(made, "config", "--show-origin", env=env, code=10)
    lines = [re.split(r"  +", line) for line in done.out.splitlines()]
    told = {(line[0], line[1]): line[2:] for line in lines if len(line) > 3}
    assert told["[deploy:one]", "username"] == ["me", "scrapy.cfg [deploy]"]
    assert told["[deploy:two]", "username"] == ["other", str(netrc)]
    assert told["[deploy:two]", "password"] == ["***", str(netrc)]
    assert told["settings", "DISTRIBUTED_SHARDS"] == ["4", "settings module"]
    assert told["settings", "DISTRIBUTED_TARGET_FEED_URL"] == ["ftp://me:***@h/", "settings module"]
    assert told["settings", "DISTRIBUTED_STORE"] == [
        "redis://:***@127.0.0.1:1/0",
        "environment SDIST_STORE",
    ]
    assert (
        "DISTRIBUTED_PAGE is none of scrapyd-dist's, and does nothing. Did you mean DISTRIBUTED_PAGES?"
        in done.err
    )
    assert "'pasword' means nothing here. Did you mean password?" in done.err
    assert SECRET not in done.out + done.err


@pytest.mark.black_box
def test_settings_that_cannot_be_loaded_are_told_and_the_rest_is_shown(
    run_cli: RunCommand, project: MakeProject
) -> None:
    made = project(extra="[deploy:one]\nurl = http://127.0.0.1:1/\n")
    (made.package / "settings.py").write_text("import nothing_of_that_name\n", "utf-8")
    done = run_cli(made, "config", "--json", code=2)
    assert "nothing_of_that_name" in done.json()["problem"]
    assert any(row["section"] == "[deploy:one]" for row in done.json()["options"])


@pytest.mark.black_box
def test_on_a_terminal_it_asks(project: MakeProject) -> None:
    made = project()
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*SDIST, "init", "--timeout", "1", "-p", "shop"],
        cwd=made.path, env=private_environment(made.home), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs,
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        closed = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        os.write(
            ours,
            "\n".join(
                ["http://me:x@127.0.0.1", closed[0], "big one", closed[1], "big", "", ""]
            ).encode(),
        )
        said = b""
        with suppress(OSError):  # the other end is closed
            while piece := os.read(ours, 65536):
                said += piece
        assert process.wait(60) == 0, said
    os.close(ours)
    assert b"Leave the password out" in said
    assert b"cannot name a target" in said
    assert re.findall(
        r"^\[deploy:(.*)\]$", (made.path / "scrapy.cfg").read_text("utf-8"), re.MULTILINE
    ) == ["big"]


def in_shell(made: Project, *command: str) -> str:
    env = private_environment(
        made.home, {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    )
    made.home.mkdir(exist_ok=True)
    done = subprocess.run(
        command, cwd=made.path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes(project: MakeProject) -> None:
    made = project(
        extra="[deploy:web1]\nurl = http://127.0.0.1:1/\n[deploy:web2]\nurl = http://127.0.0.1:2/\n"
    )
    script = """
        eval "$(sdist completion bash)"
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sdist_completion sdist; echo "${COMPREPLY[*]}"; }
        try sdist cr
        try sdist deploy ""
        try sdist crawl --node w
        try sdist crawl e
    """
    assert in_shell(made, "bash", "--norc", "-c", script).splitlines() == [
        "crawl crawls", "web1 web2", "web1 web2", "easy",
    ]  # fmt: skip


@pytest.mark.black_box
def test_fish_completes(project: MakeProject) -> None:
    made = project(extra="[deploy:web1]\nurl = http://127.0.0.1:1/\n")
    script = "sdist completion fish | source; complete -C 'sdist deploy '; complete -C 'sdist crawl --node w'"
    lines = in_shell(made, "fish", "--no-config", "-c", script).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["web1", "web1"]


def test_the_demo_works_and_leaves_nothing_running(
    start_command: StartCommand, project: MakeProject
) -> None:
    made = project()
    # A checkout has a folder of this name, which `python -m` takes for the package where it is the working folder.
    for name in ("__init__.py", "examples/__init__.py", "examples/site.py"):
        made.write(f"scrapyd_dist/{name}", "raise SystemExit('not the package that is installed')")
    script = (str(Path(sys.executable).with_name("sdist")),)
    done = start_command(
        made, script, "demo", "--items", "90", "--nodes", "1", "--dir", "shown"
    ).wait(120, code=0)
    assert "The demo worked: 90 items" in done.out
    assert done.out.splitlines()[-1].endswith(NEXT)
    for command in ("sdist nodes up 1", "sdist deploy --all", "sdist crawl easy"):
        assert f"shown$ {command}" in done.err
    assert sum(1 for _ in made.items("shown/items.jl")) == 90
    assert with_home(made.home) == {}


OWN_SPIDER = """
import scrapy


class Own(scrapy.Spider):
    name = "own"

    def parse(self, response):
        yield from response.follow_all(css="a[href*=property_]", callback=self.parse_item)

    def parse_item(self, response):
        yield {"url": response.url}
"""


@pytest.mark.black_box
def test_the_line_that_the_demo_ends_with_works_in_a_project_of_ones_own(
    run_cli: RunCommand, project: MakeProject, site: StartSite
) -> None:
    shop = site(20)
    made = project(spiders={"own": f"{OWN_SPIDER}\n    start_urls = [{shop.index(0)!r}]\n"})
    words = NEXT.replace("SPIDER", "own").split()[1:]
    try:
        run_cli(made, *words, code=0)
        assert len(list(made.items("items.jl"))) == 20
    finally:
        run_cli(made, "nodes", "down")


@pytest.mark.black_box
def test_a_crawl_without_nodes_starts_some_and_says_so(
    run_cli: RunCommand, project: MakeProject, site: StartSite
) -> None:
    made = project()
    try:
        done = run_cli(
            made,
            "crawl",
            "easy",
            "-a",
            f"start={site(20).index(0)}",
            "-O",
            "x.jl",
            "-q",
            "--json",
            code=0,
        )
        assert done.json()["warnings"] == [
            "started 2 nodes on this machine; `sdist nodes down` stops them"
        ]
    finally:
        assert run_cli(made, "nodes", "down").err == "Stopped local1, local2.\n"


@pytest.mark.black_box
def test_ctrl_c_in_the_middle_stops_everything(
    start_cli: StartCommand, project: MakeProject
) -> None:
    made = project()
    command = start_cli(made, "demo", "--items", "3000", "--nodes", "1", "--dir", "shown")
    command.wait_text(": finding", 60)
    command.interrupt()
    done = command.wait(60, code=130)
    assert "Everything that the demo started is stopped." in done.err
    assert f"rm -r {made.path / 'shown'}" in done.err
    assert "The demo worked" not in done.out
    wait_for(lambda: not with_home(made.home), 5, "the end of all that the demo started")


@pytest.mark.black_box
def test_zsh_reads_the_script(project: MakeProject) -> None:
    made = project()
    script = made.write("s.zsh", in_shell(made, "sdist", "completion", "zsh"))
    in_shell(made, "zsh", "-f", "-n", str(script))
