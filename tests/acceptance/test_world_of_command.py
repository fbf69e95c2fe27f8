"""The world in which a command runs: closed and full streams, files beside scrapy.cfg, settings that change folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rig.crawls import last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode
from rig.processes import private_environment, with_home
from rig.projects import Project
from rig.waiting import wait_for

from scrapyd_dist.python_process import command_of_code

FAULTS = ("Traceback", "has no words for", "Exception ignored")


def shell(it: Project, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in which $SDIST is the command."""
    environment = {**private_environment(it.home), "SDIST": f"{sys.executable} -m scrapyd_dist"}
    it.home.mkdir(exist_ok=True)
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=it.path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.black_box
@pytest.mark.parametrize(
    "words", ["version", "config", "nodes --offline", "crawls", "nodes list --json", "help crawl"]
)
def test_streams_that_are_closed_or_full(project: MakeProject, words: str) -> None:
    it = project()
    usual = shell(it, f"$SDIST {words}")
    for streams in (">&-", "2>&-", "<&-", ">&- 2>&- <&-", "2>/dev/full", ">/dev/null 2>/dev/full"):
        done = shell(it, f"$SDIST {words} {streams}")
        assert [fault for fault in FAULTS if fault in done.stderr] == [], streams
        assert done.returncode == usual.returncode, streams
    if usual.stdout:
        done = shell(it, f"$SDIST {words} >/dev/full")
        assert [fault for fault in FAULTS if fault in done.stderr] == []
        assert "Standard output takes no more: No space left on device." in done.stderr
        assert done.returncode == 1


#: modules of the library and of packages that we use, which would end any process that takes them for these
SHADOWS = (
    "json",
    "typing",
    "queue",
    "requests",
    "twisted",
    "attr",
    "typer",
    "redis",
    "yaml",
    "sqlite3",
    "logging",
)


@pytest.mark.black_box
def test_files_beside_scrapy_cfg_are_not_taken_for_libraries(
    project: MakeProject, run_cli: RunCommand
) -> None:
    it = project()
    for name in SHADOWS:
        it.write(
            f"{name}.py", "raise SystemExit('a file beside scrapy.cfg was taken for a library')\n"
        )
    it.write("tools.py", "VALUE = 'found'\n")
    with (it.package / "settings.py").open("a") as file:
        file.write("\nimport tools\nBOT_NAME = tools.VALUE\n")
    assert run_cli(it, "plan", "easy", "--json", code=0).json()["spider"] == "easy"
    told = run_cli(it, "config", "--json", code=0).json()
    assert "found" in [one["value"] for one in told["options"] if one["section"] == "project"]
    it.targets([], "[deploy:gone]\nurl = http://127.0.0.1:1/\nproject = properties\n")
    assert "gone" in run_cli(it, "crawl", "easy").err


def test_the_project_s_folder_is_looked_into_last(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "mine.py").write_text("NAME = 'mine'\n")
    code = "import json, mine, sys; print(json.dumps([mine.NAME, sys.argv[1:], sys.path[-1]]))"
    done = subprocess.run(
        command_of_code(code, "a"), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["mine", ["a"], str(tmp_path)]


@pytest.mark.black_box
@pytest.mark.parametrize("place", ["/", "other"])
def test_settings_that_change_the_folder_make_no_other_store(
    project: MakeProject, run_cli: RunCommand, run_scrapy: RunCommand, tmp_path: Path, place: str
) -> None:
    it = project()
    target = tmp_path / place  # an absolute one stays as it is
    target.mkdir(exist_ok=True)
    with (it.package / "settings.py").open("a") as file:
        file.write(
            f"\nimport os\nos.chdir({str(target)!r})\nADDONS = {{'scrapyd_dist.Addon': 500}}\n"
        )
    before = {*target.iterdir()}
    it.targets([], "[deploy:gone]\nurl = http://127.0.0.1:1/\nproject = properties\n")
    assert "gone" in run_cli(it, "crawl", "easy").err
    assert "gone" in run_scrapy(it, "crawl", "easy").err
    assert {*target.iterdir()} == before
    assert (it.path / ".sdist" / "store.db").is_file()


@pytest.mark.full
@pytest.mark.black_box
def test_an_output_folder_that_becomes_a_file_costs_no_item(
    project: MakeProject,
    pair: list[ScrapydNode],
    site: StartSite,
    start_cli: StartCommand,
    run_cli: RunCommand,
) -> None:
    there = site(60)
    it = project(nodes=pair, settings={"START_URL": there.start_url})
    command = start_cli(it, "crawl", "easy", "--callback", "parse_item", "-O", "out/items.jl")
    wait_for(lambda: sum(there.hits().values()) > 0, 60, "the first page")
    it.write("out", "a file")
    done = command.wait(120, code=3)
    crawl = last_crawl(it).id
    said = f"{done.out}{done.err}"
    assert "The items cannot be written to" in said
    assert f"sdist resume {crawl}" in said
    (it.path / "out").unlink()
    run_cli(it, "resume", crawl, code=0)
    assert there.differences(it.items("out/items.jl")) == {}


@pytest.mark.black_box
def test_a_name_that_no_project_can_have_is_refused_and_leaves_nothing_running(
    project: MakeProject, run_cli: RunCommand
) -> None:
    it = project()
    with (it.package / "settings.py").open("a") as file:
        file.write("\nBOT_NAME = 'two\\nlines'\n")
    it.write(
        "scrapy.cfg",
        "[settings]\ndefault = properties.settings\n[deploy]\nurl = http://127.0.0.1:1/\n",
    )
    for words in (
        ("crawl", "easy"),
        ("plan", "easy"),
        ("deploy", "--all"),
        ("jobs", "schedule", "easy"),
    ):
        done = run_cli(it, *words)
        done.expect(2, "cannot be the name of a project")
    assert run_cli(it, "crawls", "--json", code=0).json()["crawls"] == []
    assert with_home(it.home) == {}
