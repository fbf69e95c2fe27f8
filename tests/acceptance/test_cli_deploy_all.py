"""`sdist deploy-all` on real nodes: all, some, none; what is broken does not stay."""

import pytest
from rig.fixtures import MakeProject, RunCommand, StartFleet
from rig.nodes import ScrapydNode

DOWN = "[deploy:down]\nurl = http://127.0.0.1:1/\nproject = properties\n"


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2, username="me", password="hush")


def test_all_nodes_get_one_version_and_the_second_time_nothing(
    run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]
) -> None:
    made = project(nodes=pair)
    first, second = run_cli(made, "deploy-all", "--json"), run_cli(made, "deploy-all", "--json")
    assert (first.code, second.code) == (0, 0), first.err + second.err
    version = first.json()["version"]
    assert second.json()["version"] == version
    assert [row["state"] for row in first.json()["nodes"]] == ["uploaded", "uploaded"]
    assert [row["state"] for row in second.json()["nodes"]] == ["present", "present"]
    for node in pair:
        assert node.api("listversions.json", project="properties")["versions"] == [version]
        assert sorted(node.api("listspiders.json", project="properties")["spiders"]) == ["easy", "plain"]
    assert "hush" not in first.out + first.err


def test_the_table_and_another_project_name(run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]) -> None:
    done = run_cli(project(nodes=pair), "deploy-all", "-p", "renamed")
    assert done.code == 0, done.err
    assert [line.split()[:2] for line in done.out.splitlines()[1:]] == [[node.name, "uploaded"] for node in pair]
    assert all("renamed" in node.api("listprojects.json")["projects"] for node in pair)


def test_the_project_is_called_by_its_bot_name_where_nothing_else_is_said(
    run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]
) -> None:
    login = "username = me\npassword = hush\n"
    made = project(settings={"BOT_NAME": "botname"}, extra=f"[deploy:only]\nurl = {pair[0].url}\n{login}")
    done = run_cli(made, "deploy-all", "--json")
    assert (done.code, done.json()["project"]) == (0, "botname"), done.err


def test_some_nodes(run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]) -> None:
    done = run_cli(project(nodes=pair, extra=DOWN), "deploy-all")
    assert done.code == 3
    assert "connection refused" in done.err
    assert "The others have it" in done.err


def test_no_node(run_cli: RunCommand, project: MakeProject) -> None:
    done = run_cli(project(extra=DOWN), "deploy-all", "--json")
    assert done.code == 5
    assert done.json()["version"] is None


def test_a_wrong_password(run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]) -> None:
    extra = f"[deploy:locked]\nurl = {pair[0].url}\nproject = p\nusername = me\npassword = wrong\n"
    done = run_cli(project(extra=extra), "deploy-all")
    assert done.code == 6
    assert "user name or password refused" in done.err
    assert "wrong" not in done.out + done.err


def test_code_that_no_node_can_import_is_said_once_and_not_left_there(
    run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]
) -> None:
    made = project(nodes=pair, spiders={}, name="broken")
    made.write("broken/settings.py", "import nosuchmodule\nBOT_NAME = 'broken'\n")
    done = run_cli(made, "deploy-all")
    assert done.code == 1
    assert done.err.count("nosuchmodule") == 1
    assert all(node.api("listversions.json", project="broken")["versions"] == [] for node in pair)


def test_settings_that_cannot_be_loaded_here(run_cli: RunCommand, project: MakeProject) -> None:
    made = project(spiders={}, name="broken", extra="[deploy:any]\nurl = http://127.0.0.1:1/\n")
    made.write("broken/settings.py", "import nosuchmodule\n")
    done = run_cli(made, "deploy-all")
    assert done.code == 2
    assert "nosuchmodule" in done.err
    assert "-p" in done.err
    assert done.err.count("\n") == 1
