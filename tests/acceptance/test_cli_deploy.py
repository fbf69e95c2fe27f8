"""The commands of a roll-out on real nodes: deploy, versions, spiders, rollback, prune; and the bad days of each."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from rig.commands import Command, Result
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet
from rig.nodes import ScrapydNode, free_port
from rig.projects import Project, wheel
from rig.proxy import Mishap, Proxy
from rig.waiting import wait_for

DOWN = "[deploy:down]\nurl = http://127.0.0.1:1/\nproject = small\n"
SPIDER = "import scrapy\nclass One(scrapy.Spider):\n    name = 'one'\n"
#: runs until it is told to stop
LONG = (
    "import scrapy\nclass Long(scrapy.Spider):\n    name = 'long'\n"
    "    async def start(self):\n        import asyncio\n        await asyncio.sleep(600)\n        yield {}\n"
)


@pytest.fixture(scope="module")
def three(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(3, username="me", password="hush")


@pytest.fixture
def clean(three: list[ScrapydNode]) -> Iterator[list[ScrapydNode]]:
    """The three nodes without any project or job."""
    yield three
    for node in three:
        node.clear()


@pytest.fixture
def small(project: MakeProject, clean: list[ScrapydNode]) -> Project:
    return project(nodes=clean, spiders={"one": SPIDER})


def states(done: Result) -> dict[str, str]:
    return {row["name"]: row["state"] for row in done.json()["nodes"]}


def change(project: Project, name: str) -> None:
    """Other code, with another spider."""
    project.spider("one", SPIDER.replace("one", name))


@pytest.mark.real_start
def test_all_nodes_get_one_version_and_the_second_time_nothing(
    run_cli: RunCommand, project: MakeProject, clean: list[ScrapydNode]
) -> None:
    made, everywhere = project(nodes=clean), ("node1", "node2", "node3")
    first, second = (run_cli(made, "deploy", "--all", "--json", code=0) for _ in range(2))
    version = first.json()["version"]
    assert second.json()["version"] == version
    assert states(first) == dict.fromkeys(everywhere, "uploaded")
    assert states(second) == dict.fromkeys(everywhere, "present")
    for node in clean:
        assert node.api("listversions.json", project="properties")["versions"] == [version]
        assert sorted(node.api("listspiders.json", project="properties")["spiders"]) == [
            "easy",
            "plain",
        ]
    renamed = run_cli(made, "deploy", "--all", "-p", "renamed", code=0)
    assert [tuple(line.split()[:2]) for line in renamed.out.splitlines()[1:]] == [
        *states(first).items()
    ]
    assert all("renamed" in node.api("listprojects.json")["projects"] for node in clean)
    assert "hush" not in first.out + first.err


@pytest.mark.black_box
def test_the_project_is_called_by_its_bot_name_where_nothing_else_is_said(
    run_cli: RunCommand, project: MakeProject, clean: list[ScrapydNode]
) -> None:
    login = "username = me\npassword = hush\n"
    made = project(
        settings={"BOT_NAME": "botname"}, extra=f"[deploy:only]\nurl = {clean[0].url}\n{login}"
    )
    done = run_cli(made, "deploy", "--all", "--json")
    assert (done.code, done.json()["project"]) == (0, "botname"), done.err


@pytest.mark.black_box
def test_settings_that_cannot_be_loaded_here(run_cli: RunCommand, project: MakeProject) -> None:
    made = project(spiders={}, name="broken", extra="[deploy:any]\nurl = http://127.0.0.1:1/\n")
    made.write("broken/settings.py", "import nosuchmodule\n")
    assert run_cli(made, "deploy", "--all").expect(2, "nosuchmodule", "-p").err.count("\n") == 1


def test_deploy_goes_to_the_named_nodes_and_to_no_other(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    assert run_cli(small, "deploy").expect(2, "sdist deploy --all").out == ""
    run_cli(small, "deploy", "node1", "web*").expect(
        4, "'web*'. The targets are: node1, node2, node3"
    )
    assert [node.versions("small") for node in clean] == [[], [], []]
    done = run_cli(small, "deploy", "node1", "*3", "--json")
    assert (done.code, states(done)) == (0, {"node1": "uploaded", "node3": "uploaded"}), done.err
    assert "2 of 2: node" in done.err
    assert [node.versions("small") for node in clean] == [
        [done.json()["version"]],
        [],
        [done.json()["version"]],
    ]
    some = run_cli(small, "deploy", "--all", "--dry-run", "--json")
    assert (some.code, states(some)) == (
        10,
        {"node1": "present", "node2": "missing", "node3": "present"},
    ), some.err
    assert clean[1].versions("small") == []
    assert run_cli(small, "deploy", "node1", "--dry-run").code == 0
    assert "hush" not in done.out + done.err


@pytest.mark.full
@pytest.mark.black_box
def test_two_projects_of_one_folder_go_to_one_node(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    """A target is a url and a project; the project's line in [settings] says the code."""
    node, login = clean[0], "username = me\npassword = hush\n"
    small.write("second/__init__.py", "")
    small.write("second/settings.py", "BOT_NAME = 'second'\nSPIDER_MODULES = ['second.spiders']\n")
    small.write("second/spiders/__init__.py", SPIDER.replace("one", "two"))
    target = f"[deploy:other]\nurl = {node.url}\nproject = second\n{login}"
    small.targets([node], target)
    text = (small.path / "scrapy.cfg").read_text("utf-8")
    (small.path / "scrapy.cfg").write_text(
        text.replace("[settings]", "[settings]\nsecond = second.settings"), "utf-8"
    )
    found = {"small": ["one"], "second": ["two"]}
    assert states(run_cli(small, "deploy", "other", "--json", code=0)) == {"other": "uploaded"}
    assert node.api("listspiders.json", project="second")["spiders"] == ["two"]
    done = run_cli(small, "deploy", "--all", "--json", code=0)
    assert states(done) == {node.name: "uploaded", "other": "present"}
    assert {name: node.api("listspiders.json", project=name)["spiders"] for name in found} == found
    assert (
        run_cli(small, "code", "versions", "--spiders", "--json").json()["spiders"][0]["spider"]
        == "one"
    )
    assert run_cli(small, "code", "versions").code == 0
    job = run_cli(small, "jobs", "schedule", "two", "-p", "second", "--json", code=0).json()[
        "jobs"
    ][0]
    assert job["project"] == "second"


def test_versions_and_drift(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    first = run_cli(small, "deploy", "--all", "--json").json()["version"]
    same = run_cli(small, "code", "versions", code=0)
    assert same.out.split() == [
        "VERSION",
        "NODE1",
        "NODE2",
        "NODE3",
        first,
        "default",
        "default",
        "default",
    ]
    change(small, "two")
    second = run_cli(small, "deploy", "node2", "--json").json()["version"]
    drift = run_cli(small, "code", "versions", "--json", code=10)
    document = drift.json()
    assert document["same"] is False
    assert [row["default"] for row in document["nodes"]] == [first, second, first]
    assert [row["versions"] for row in document["nodes"]] == [[first], [first, second], [first]]
    assert drift.err.count("\n") == 1
    assert f"node2 would run {second}, others {first}" in drift.err
    named = run_cli(small, "code", "versions", "-o", "names", code=10)
    assert named.out.split() == [first, second]
    table = run_cli(small, "code", "versions", "--spiders", "--json").json()
    assert table["spiders"] == [
        {"spider": "one", "nodes": ["node1", "node3"], "missing": ["node2"]},
        {"spider": "two", "nodes": ["node2"], "missing": ["node1", "node3"]},
    ]
    assert run_cli(
        small, "code", "versions", "--spiders", "--version", first, "--node", "node2"
    ).out.split()[-3:] == [
        "one",
        "1",
        "-",
    ]


def test_rollback_and_back_again(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    assert run_cli(small, "code", "rollback").code == 4
    old = run_cli(small, "deploy", "--all", "--json").json()["version"]
    change(small, "two")
    new = run_cli(small, "deploy", "--all", "--json").json()["version"]
    back = run_cli(small, "code", "rollback", "--json", code=0)
    current = back.json()["version"]
    assert current > new
    assert current[17:] == old[17:]
    for node in clean:
        assert node.versions("small")[-1] == current
        # A job that names no version runs the old code, on every node.
        assert node.api("listspiders.json", project="small")["spiders"] == ["one"]
    again = f"{current} has the code of {old}."
    assert again in back.err
    assert again in run_cli(small, "code", "versions").expect(0).err
    nothing = run_cli(small, "code", "rollback", old, "--json")
    assert (nothing.code, states(nothing)) == (
        0,
        dict.fromkeys(("node1", "node2", "node3"), "present"),
    )
    assert len(clean[0].versions("small")) == 3
    assert "Would send" in run_cli(small, "code", "rollback", new, "--dry-run").expect(10).err
    assert run_cli(small, "code", "rollback").code == 0
    assert clean[0].api("listspiders.json", project="small")["spiders"] == ["two"]
    assert (
        run_cli(small, "code", "rollback", "1.0")
        .expect(4, "Scrapyd gives no egg back")
        .err.count("\n")
        == 1
    )


@pytest.mark.black_box
def test_prune_asks_and_keeps_what_is_in_use(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    names = []
    for number in range(3):
        small.spider("one", f"{LONG}# {number}\n")
        names.append(run_cli(small, "deploy", "--all", "--json").json()["version"])
    assert run_cli(small, "code", "prune").code == 2
    run_cli(small, "code", "prune", "--keep", "1").expect(
        2, "6 versions from 3 nodes would be deleted"
    )
    assert clean[0].versions("small") == names
    dry = run_cli(small, "code", "prune", "--keep", "2", "--dry-run", "--json")
    assert (dry.code, [row["deleted"] for row in dry.json()["nodes"]]) == (10, [names[:1]] * 3)
    # Of a job that `sdist jobs schedule` has started it is known which version it runs …
    started = run_cli(
        small, "jobs", "schedule", "long", "--on", "node1", "--version", names[1], "--json"
    ).json()["jobs"]
    job = started[0]["job"]
    wait_for(clean[0].job_pids, 30, f"the start of {job}")
    (row,) = run_cli(
        small, "code", "prune", "--keep", "1", "--node", "node1", "--yes", "--json"
    ).json()["nodes"]
    assert (row["deleted"], row["in_use"], row["jobs_of_unknown_version"]) == (
        names[:1],
        {names[1]: [job]},
        [],
    )
    clean[0].kill_jobs()
    clean[0].wait_idle()
    # … and of any other job Scrapyd does not tell.
    clean[0].api("schedule.json", project="small", spider="long", _version=names[1], jobid="x")
    wait_for(clean[0].job_pids, 30, "the start of x")
    done = run_cli(small, "code", "prune", "--keep", "1", "--yes", code=0)
    assert [node.versions("small") for node in clean] == [names[1:], names[2:], names[2:]]
    assert "node1: everything stays, since x runs there" in done.err
    clean[0].kill_jobs()
    clean[0].wait_idle()
    again = run_cli(small, "code", "prune", "--keep", "1", "--yes", "--json")
    assert [row["deleted"] for row in again.json()["nodes"]] == [names[1:2], [], []]
    assert [node.versions("small") for node in clean] == [names[2:]] * 3


@pytest.mark.black_box
def test_a_dead_node_is_named_and_only_missing_finishes_it(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    clean[1].kill()
    try:
        first = run_cli(small, "deploy", "--all", "--json").expect(
            3, "node2 (", "The others have it"
        )
    finally:
        clean[1].restart()
    assert states(first) == {"node1": "uploaded", "node2": "failed", "node3": "uploaded"}
    assert first.err.count("connection refused") == 1
    # The work tree has gone on since.
    change(small, "two")
    second = run_cli(small, "deploy", "--all", "--only-missing", "--json")
    assert (second.code, states(second)) == (
        0,
        {"node1": "present", "node2": "uploaded", "node3": "present"},
    )
    assert [node.versions("small") for node in clean] == [[first.json()["version"]]] * 3
    assert clean[1].api("listspiders.json", project="small")["spiders"] == ["one"]
    # Nothing was ever sent for another project.
    none = run_cli(small, "deploy", "--all", "--only-missing", "-p", "other")
    assert (none.code, none.err.count("\n")) == (4, 1)


@pytest.mark.black_box
def test_all_or_none(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    small.targets(clean, DOWN)
    done = run_cli(small, "deploy", "--all", "--atomic", "--retries", "0", "--json", code=5)
    assert states(done) == {
        "node1": "undone",
        "node2": "undone",
        "node3": "undone",
        "down": "failed",
    }
    assert "Undone, since not every node could have it: node1, node2, node3." in done.err
    assert [node.versions("small") for node in clean] == [[], [], []]


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("older", "newer", "behind"),
    # Names that begin with r go on to stand behind those that begin with a year.
    [("1.9", "1.10", "1_9"), ("r9-main", "r10-main", "r9-main")],
)
def test_names_that_scrapyd_sorts_wrongly(
    run_cli: RunCommand,
    small: Project,
    clean: list[ScrapydNode],
    older: str,
    newer: str,
    behind: str,
) -> None:
    assert run_cli(small, "deploy", "--all", "--version", older).code == 0
    change(small, "two")
    run_cli(small, "deploy", "--all", "--version", newer).expect(
        0, f"Scrapyd sorts {behind} behind this version"
    )
    for node in clean:
        assert node.api("listspiders.json", project="small")["spiders"] == ["one"]
    assert run_cli(small, "code", "versions").code == 10
    # One without a name of its own gets one that sorts last.
    run_cli(small, "deploy", "--all", code=0)
    for node in clean:
        assert node.api("listspiders.json", project="small")["spiders"] == ["two"]
    assert run_cli(small, "code", "versions").code == 0


@pytest.mark.black_box
def test_a_requirement_travels(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    small.write("requirements.txt", f"scrapy\n{wheel(small.path / 'wheels', 'tinydep')}\n")
    small.spider(
        "one", "import scrapy, tinydep\nclass One(scrapy.Spider):\n    name = tinydep.WORD\n"
    )
    run_cli(small, "deploy", "node1").expect(1, "No module named 'tinydep'")
    run_cli(small, "deploy", "node1", "--include-dependencies", env={"PIP_NO_INDEX": "1"}, code=0)
    assert clean[0].api("listspiders.json", project="small")["spiders"] == ["tiny"]


@pytest.mark.black_box
def test_a_setup_py_of_its_own(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    small.write(
        "setup.py",
        """\
        from setuptools import find_packages, setup
        setup(name='other-name', version='3', packages=find_packages(),
              entry_points={'scrapy': ['settings = small.settings']})
        """,
    )
    before = {path.name for path in small.path.iterdir()}
    run_cli(small, "deploy", "node2", "--use-setup-py", "--json", code=0)
    assert clean[1].api("listspiders.json", project="small")["spiders"] == ["one"]
    assert {path.name for path in small.path.iterdir()} == before | {".sdist"}


def test_prune_on_a_node_with_a_space_in_its_name(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    small.targets(
        [],
        f"[deploy:my node]\nurl = {clean[0].url}\nusername = me\npassword = hush\nproject = small\n",
    )
    assert run_cli(small, "deploy", "my node").code == 0
    assert run_cli(small, "deploy", "my*", "--dry-run").code == 0
    done = run_cli(small, "code", "prune", "--keep", "1", "--node", "my node")
    assert done.expect(0, "There is nothing to delete.").out == ""


# Ctrl-C while an egg is on its way: the command ends at once and says what is known; the rest comes later

#: seconds that a command may take to end; on a machine that does nothing else it is a small part of one
AT_ONCE = 2.0


@pytest.fixture
def held(clean: list[ScrapydNode]) -> Iterator[Proxy]:
    """The second node, behind a proxy that can hold its answers."""
    with closing(Proxy(clean[1])) as proxy:
        yield proxy


@pytest.fixture
def behind(small: Project, clean: list[ScrapydNode], held: Proxy) -> Project:
    """The project on two nodes, the second one behind that proxy."""
    small.targets(clean[:1], held.section("small", "held") + "username = me\npassword = hush\n")
    return small


def stopped(command: Command) -> str:
    """What it has written when Ctrl-C has ended it, at once."""
    begun = time.monotonic()
    command.interrupt()
    done = command.wait(30, code=130)
    assert time.monotonic() - begun < AT_ONCE
    return done.err


@pytest.mark.black_box
def test_what_is_known_of_each_node(
    start_cli: StartCommand,
    run_cli: RunCommand,
    behind: Project,
    clean: list[ScrapydNode],
    held: Proxy,
) -> None:
    held.spoil("addversion.json", Mishap(forward=False, hold=60))
    command = start_cli(behind, "deploy", "--all")
    command.wait_text("1 of 2: node1 uploaded")
    (line,) = [line for line in stopped(command).splitlines() if line.startswith("sdist: ")]
    assert "has it: node1; not known yet: held" in line
    (version,) = clean[0].api("listversions.json", project="small")["versions"]
    assert version in line
    # The egg is kept, so that the other one gets the same.
    held.heal()
    rest = run_cli(behind, "deploy", "--all", "--only-missing", "--json", code=0)
    assert states(rest) == {"node1": "present", "held": "uploaded"}
    assert clean[1].api("listversions.json", project="small")["versions"] == [version]


@pytest.mark.black_box
@pytest.mark.parametrize(
    "command",
    [
        "code versions",
        "code versions --spiders",
        "code prune --keep 1",
        "jobs",
        "nodes",
        "code rollback",
        "deploy --all",
    ],
)
def test_a_node_that_does_not_answer_does_not_hold_it(
    start_cli: StartCommand, behind: Project, held: Proxy, command: str
) -> None:
    held.spoil("*", Mishap(forward=False, hold=60), times=9)
    running = start_cli(behind, *command.split())
    wait_for(lambda: held.spoilt["*"], 30, "a question to the node")
    assert "Traceback" not in stopped(running)


@pytest.mark.black_box
def test_a_node_that_is_not_there_does_not_hold_it_either(
    start_cli: StartCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    small.targets(
        clean[:1], f"[deploy:gone]\nurl = http://127.0.0.1:{free_port()}/\nproject = small\n"
    )
    command = start_cli(small, "deploy", "--all", "--retries", "20")
    command.wait_text("1 of 2: node1 uploaded")
    assert "gone" in stopped(command)
