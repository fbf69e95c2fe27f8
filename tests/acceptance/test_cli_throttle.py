"""`sdist throttle` as a user types it: outside of a project, and with a file that is mistaken, or comes by a pipe."""

import sys
from contextlib import closing
from pathlib import Path

import pytest
from rig.commands import SDIST, Result
from rig.fixtures import MakeProject, RunCommand, StartCommand
from rig.redis import RedisServer

FILE = "blacklist: [example.net]\ndomains:\n  example.com: {hits: 10, window: 60}\n"


@pytest.mark.black_box
def test_outside_of_a_project_the_environment_names_the_store(
    project: MakeProject, start_command: StartCommand, tmp_path: Path
) -> None:
    it = project()
    (it.path / "scrapy.cfg").unlink()

    def sdist(*words: str, env: dict[str, str]) -> Result:
        return start_command(it, (*SDIST, "throttle"), *words, env=env).wait()

    sdist("pause", env={}).expect(2, "no scrapy.cfg")
    with closing(RedisServer(tmp_path / "redis")) as server:
        env = {"SDIST_STORE": server.url}
        assert sdist("set", "127.0.0.1", "--hits", "3", "--window", "0.5", env=env).code == 0
        assert sdist("pause", env=env).code == 0
        shown = sdist("show", "--json", env=env).json()
    assert [(row["domain"], row["state"]) for row in shown["domains"]] == [
        ("*", "paused"),
        ("127.0.0.1", "paused"),
    ]
    assert not (it.path / ".sdist").exists()


@pytest.mark.black_box
def test_a_bad_file_changes_nothing_wherever_it_comes_from(
    project: MakeProject, run_cli: RunCommand, start_command: StartCommand
) -> None:
    it = project()
    bad = it.write("bad.yml", FILE + "  www.example.org: {hits: 1}\n")
    refused = run_cli(it, "throttle", "apply", "bad.yml")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.splitlines()[1:] == [
        "  bad.yml:4: www.example.org belongs to example.org, whose hosts all share one limit: name example.org.",
        "  bad.yml:4: www.example.org: window is missing, and must be seconds.",
    ]
    piped = ("sh", "-c", f'"$0" -m scrapyd_dist throttle apply - < {bad}', sys.executable)
    start_command(it, piped).wait().expect(2, "standard input:4:")
    assert run_cli(it, "throttle", "show", "--json").json()["domains"] == []
    bad.write_text(FILE, "utf-8")
    assert run_cli(it, "throttle", "apply", "bad.yml", "--dry-run").code == 10
    assert run_cli(it, "throttle", "show", "example.com").code == 4
    start_command(it, piped).wait(code=0)
    assert len(run_cli(it, "throttle", "show", "--json").json()["domains"]) == 2
