"""The command's front door: what it imports, what it says to wrong usage, and that every command explains itself."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rig.commands import Result, run_here
from rig.fixtures import MakeProject, RunCommand
from rig.processes import private_environment
from scrapyd_dist.cli.commands import walk

from scrapyd_dist import __version__

#: the words of every command that does something by itself
COMMANDS = [path.split() for path, command in walk() if "Example: " in command.help]

Outside = Callable[..., Result]


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A folder without a project."""
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


@pytest.fixture
def outside(empty: Path) -> Outside:
    """`sdist` there, as a process."""

    def run(*arguments: str, options: tuple[str, ...] = ()) -> Result:
        done = subprocess.run(
            [sys.executable, *options, "-m", "scrapyd_dist", *arguments],
            cwd=empty, env=private_environment(empty), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def imported_by(done: Result) -> set[str]:
    """The modules that a command has imported, as `-X importtime` tells."""
    lines = [line for line in done.err.splitlines() if "|" in line]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("command", [[], ["crawl"], ["nodes"], ["jobs", "list"], ["status"]])
def test_help_imports_no_network_library(outside: Outside, command: list[str]) -> None:
    done = outside(*command, "--help", options=("-X", "importtime")).expect(0)
    imported = {name.partition(".")[0] for name in imported_by(done)}
    assert "scrapyd_dist" in imported
    heavy = {"scrapy", "twisted", "requests", "treq", "cryptography", "redis", "sqlite3", "asyncio"}
    assert not imported & heavy


def test_a_command_that_starts_no_crawl_does_not_load_what_its_start_needs(
    outside: Outside,
) -> None:
    imported = imported_by(outside("--version", options=("-X", "importtime")).expect(0))
    assert "scrapyd_dist.cli.producer_standby" in imported
    assert not imported & {"scrapyd_dist.config", "configparser", "netrc", "tempfile"}


@pytest.mark.parametrize(
    "command", [["crawl"], ["nodes", "up"], ["items", "pull"], ["deploy"]], ids=" ".join
)
def test_a_command_explains_itself_with_an_example(outside: Outside, command: list[str]) -> None:
    done = outside(*command, "--help").expect(0)
    assert f"Example: sdist {' '.join(command)}" in done.out
    assert re.search(r"Exit codes: *(\n +0  all good|0, 1)", done.out)
    assert re.search(r"--help +-h", done.out)
    assert "\x1b" not in done.out
    assert done.err == ""


def test_help_lists_every_command(outside: Outside) -> None:
    listed = re.findall(r"^│ ([a-z][a-z-]*)  ", outside("--help").out, re.MULTILINE)
    assert sorted(listed) == sorted({command[0] for command in COMMANDS})


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_version(outside: Outside, arguments: list[str]) -> None:
    assert outside(*arguments) == (0, f"scrapyd-dist {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["crwl"], "crwl"),
        (["crawl", "easy", "--bogus"], "--bogus"),
        (["crawl", "easy", "--pages", "many"], "'many'"),
        (["nodes", "up", "0"], "'N'"),
        (["nodes", "sideways"], "sideways"),
        (["frontier", "add", "x", "--format", "xml"], "'--format': 'xml' is not one of"),
        (["demo", "--nodes", "0"], "--nodes"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(empty: Path, arguments: list[str], said: str) -> None:
    done = run_here(arguments, cwd=empty, home=empty).expect(2, said, "--help")
    assert (done.out, done.err.startswith("sdist: "), done.err.count("\n")) == ("", True, 1)


@pytest.mark.parametrize(
    "arguments",
    [["crawl", "easy"], ["plan", "easy"], ["resume", "x"], ["watch"], ["status"], ["crawls"], ["nodes"],
     ["nodes", "up"], ["nodes", "down"], ["deploy", "--all"], ["deploy", "x"],
     ["code", "versions"], ["code", "versions", "--spiders"], ["code", "rollback"], ["code", "prune", "--keep", "1"],
     ["init"], ["config"],
     ["jobs", "schedule", "easy"], ["jobs"], ["logs"], ["jobs", "grep", "x"], ["jobs", "stats", "x"],
     ["jobs", "cancel", "x"], ["nodes", "api", "x", "y"], ["nodes", "metrics"],
     ["items", "pull", "x"], ["items", "merge", "x", "-o", "x.jl"], ["items", "tail"]],
    ids=" ".join,
)  # fmt: skip
def test_outside_of_a_project_every_command_says_so(
    empty: Path, tmp_path: Path, arguments: list[str]
) -> None:
    assert (
        run_here(arguments, cwd=empty, home=tmp_path / "home")
        .expect(2, "There is no scrapy.cfg in")
        .out
        == ""
    )
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["crawl", "easy", "-a", "x"], 2, "NAME=VALUE"),
        (["crawl", "easy", "-o", "scrapy.cfg:json"], 2, "nothing can be added to a JSON list"),
        (["crawl", "easy", "--start-urls", "none.txt"], 2, "none.txt"),
        (["crawl", "easy", "--feed", "ftp://me:hush@host/"], 2, "settings.py"),
        (["crawl", "easy", "--name", "a/b"], 2, "cannot name a crawl"),
        (["crawl", "easy", "--timeout", "soon"], 2, "--timeout"),
        (["resume", "unknown"], 4, "no crawls"),
        (["status"], 4, "no crawls"),
        (["watch", "unknown"], 4, "no crawls"),
        (["nodes"], 2, "sdist nodes up"),
        (["deploy", "--all"], 2, "sdist nodes up"),
        (["deploy"], 2, "sdist nodes up"),
        (["deploy", "web1"], 2, "sdist nodes up"),
        (["deploy", "--all", "--use-setup-py"], 2, "sdist nodes up"),
        (["code", "versions"], 2, "sdist nodes up"),
        (["code", "prune", "--keep", "0"], 2, "--keep"),
        (["init"], 2, "--node"),
        (["init", "--node", "me:hush@web1"], 2, "password"),
    ],
)
def test_what_cannot_be_done_is_one_paragraph(
    run_sdist_here: RunCommand, project: MakeProject, arguments: list[str], code: int, said: str
) -> None:
    made = project()
    done = run_sdist_here(made, *arguments).expect(code, said)
    assert (done.out, done.err.startswith("sdist: "), done.err.count("\n")) == ("", True, 1)
    assert "hush" not in done.err
    assert not (made.path / ".sdist" / "crawls").exists()


@pytest.mark.real_start
def test_debug_shows_the_traceback_and_keeps_the_exit_code(
    run_cli: RunCommand, project: MakeProject
) -> None:
    for arguments in (["--debug", "status"], ["status", "--debug"]):
        run_cli(project(), *arguments).expect(4, "Traceback")


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m scrapyd_dist --help | true"],
        cwd=tmp_path, env=private_environment(tmp_path), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
