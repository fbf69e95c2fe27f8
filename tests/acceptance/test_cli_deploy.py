"""The commands of a roll-out on real nodes: deploy, versions, spiders, rollback, prune; and the bad days of each."""

import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.badpeer import BadPeer
from rig.calls import says
from rig.commands import Result
from rig.fixtures import MakeProject, RunCommand, StartFleet
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.tls import Authority
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
        node.kill_jobs()
        node.wait_idle()
        for name in node.api("listprojects.json")["projects"]:
            node.api("delproject.json", project=name)


@pytest.fixture
def small(project: MakeProject, clean: list[ScrapydNode]) -> Project:
    return project(nodes=clean, spiders={"one": SPIDER})


def versions(node: ScrapydNode) -> list[str]:
    found: list[str] = node.api("listversions.json", project="small")["versions"]
    return found


def states(done: Result) -> dict[str, str]:
    return {row["name"]: row["state"] for row in done.json()["nodes"]}


def change(project: Project, name: str) -> None:
    """Other code, with another spider."""
    project.spider("one", SPIDER.replace("one", name))


def test_deploy_goes_to_the_named_nodes_and_to_no_other(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    nothing = run_cli(small, "deploy")
    assert (nothing.code, nothing.out) == (2, "")
    assert "sdist deploy-all" in nothing.err
    unknown = run_cli(small, "deploy", "node1", "web*")
    assert unknown.code == 4
    assert "'web*'. The targets are: node1, node2, node3" in unknown.err
    assert [versions(node) for node in clean] == [[], [], []]
    done = run_cli(small, "deploy", "node1", "*3", "--json")
    assert (done.code, states(done)) == (0, {"node1": "uploaded", "node3": "uploaded"}), done.err
    assert "2 of 2: node" in done.err
    assert [versions(node) for node in clean] == [[done.json()["version"]], [], [done.json()["version"]]]
    assert "hush" not in done.out + done.err


def test_a_dry_run_changes_nothing_and_says_whether_it_would(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    run_cli(small, "deploy", "node1")
    some = run_cli(small, "deploy-all", "--dry-run", "--json")
    assert (some.code, states(some)) == (10, {"node1": "present", "node2": "missing", "node3": "missing"}), some.err
    assert versions(clean[1]) == []
    assert run_cli(small, "deploy", "node1", "--dry-run").code == 0


def test_versions_and_drift(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    first = run_cli(small, "deploy-all", "--json").json()["version"]
    same = run_cli(small, "versions", "--check")
    assert same.code == 0, same.err
    assert same.out.split() == ["VERSION", "NODE1", "NODE2", "NODE3", first, "default", "default", "default"]
    change(small, "two")
    second = run_cli(small, "deploy", "node2", "--json").json()["version"]
    drift = run_cli(small, "versions", "--check", "--json")
    assert drift.code == 10
    document = drift.json()
    assert document["same"] is False
    assert [row["default"] for row in document["nodes"]] == [first, second, first]
    assert [row["versions"] for row in document["nodes"]] == [[first], [first, second], [first]]
    assert drift.err.count("\n") == 1
    assert f"node2 would run {second}, most nodes {first}" in drift.err
    assert run_cli(small, "versions").code == 0
    table = run_cli(small, "spiders", "--json").json()
    assert table["spiders"] == [
        {"spider": "one", "nodes": ["node1", "node3"], "missing": ["node2"]},
        {"spider": "two", "nodes": ["node2"], "missing": ["node1", "node3"]},
    ]
    assert run_cli(small, "spiders", "--version", first, "--node", "node2").out.split()[-3:] == ["one", "1", "-"]


def test_rollback_and_back_again(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    assert run_cli(small, "rollback").code == 4
    old = run_cli(small, "deploy-all", "--json").json()["version"]
    change(small, "two")
    new = run_cli(small, "deploy-all", "--json").json()["version"]
    back = run_cli(small, "rollback", "--json")
    assert back.code == 0, back.err
    current = back.json()["version"]
    assert current > new
    assert current[17:] == old[17:]
    for node in clean:
        assert versions(node)[-1] == current
        # A job that names no version runs the old code, on every node.
        assert node.api("listspiders.json", project="small")["spiders"] == ["one"]
    assert run_cli(small, "versions", "--check").code == 0
    nothing = run_cli(small, "rollback", old, "--json")
    assert (nothing.code, states(nothing)) == (0, dict.fromkeys(("node1", "node2", "node3"), "present"))
    assert len(versions(clean[0])) == 3
    assert run_cli(small, "rollback", new, "--dry-run").code == 10
    assert run_cli(small, "rollback").code == 0
    assert clean[0].api("listspiders.json", project="small")["spiders"] == ["two"]
    unknown = run_cli(small, "rollback", "1.0")
    assert (unknown.code, unknown.err.count("\n")) == (4, 1)
    assert "Scrapyd gives no egg back" in unknown.err


def test_prune_asks_and_keeps_what_is_in_use(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    names = []
    for number in range(3):
        small.spider("one", f"{LONG}# {number}\n")
        names.append(run_cli(small, "deploy-all", "--json").json()["version"])
    assert run_cli(small, "prune").code == 2
    refused = run_cli(small, "prune", "--keep", "1")
    assert refused.code == 2
    assert "6 versions from 3 nodes would be deleted" in refused.err
    assert versions(clean[0]) == names
    dry = run_cli(small, "prune", "--keep", "2", "--dry-run", "--json")
    assert (dry.code, [row["deleted"] for row in dry.json()["nodes"]]) == (10, [names[:1]] * 3)
    # A job runs, and Scrapyd does not tell of which version.
    clean[0].api("schedule.json", project="small", spider="long", _version=names[0], jobid="x")
    wait_for(clean[0].job_pids, 30, "the start of x")
    done = run_cli(small, "prune", "--keep", "1", "--yes")
    assert done.code == 0, done.err
    assert [versions(node) for node in clean] == [names, names[2:], names[2:]]
    assert "node1: everything stays; of x" in done.err
    clean[0].kill_jobs()
    clean[0].wait_idle()
    again = run_cli(small, "prune", "--keep", "1", "--yes", "--json")
    assert [row["deleted"] for row in again.json()["nodes"]] == [names[:2], [], []]
    assert [versions(node) for node in clean] == [names[2:]] * 3


@pytest.mark.black_box
def test_prune_knows_what_scheduled_jobs_run(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    names = []
    for number in range(3):
        small.spider("one", f"{LONG}# {number}\n")
        names.append(run_cli(small, "deploy-all", "--json").json()["version"])
    started = run_cli(small, "schedule", "long", "--on", "node1", "--version", names[1], "--json").json()["jobs"]
    job = started[0]["job"]
    wait_for(clean[0].job_pids, 30, f"the start of {job}")
    done = run_cli(small, "prune", "--keep", "1", "--node", "node1", "--yes", "--json")
    (row,) = done.json()["nodes"]
    assert (row["deleted"], row["in_use"], row["jobs_of_unknown_version"]) == (names[:1], {names[1]: [job]}, [])
    assert versions(clean[0]) == names[1:]


def test_a_dead_node_is_named_and_only_missing_finishes_it(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    clean[1].kill()
    try:
        first = run_cli(small, "deploy-all", "--json")
    finally:
        clean[1].restart()
    assert first.code == 3
    assert states(first) == {"node1": "uploaded", "node2": "failed", "node3": "uploaded"}
    assert first.err.count("connection refused") == 1
    assert "node2 (" in first.err
    # The work tree has gone on since.
    change(small, "two")
    second = run_cli(small, "deploy-all", "--only-missing", "--json")
    assert (second.code, states(second)) == (0, {"node1": "present", "node2": "uploaded", "node3": "present"})
    assert [versions(node) for node in clean] == [[first.json()["version"]]] * 3
    assert clean[1].api("listspiders.json", project="small")["spiders"] == ["one"]
    # Nothing was ever sent for another project.
    none = run_cli(small, "deploy-all", "--only-missing", "-p", "other")
    assert (none.code, none.err.count("\n")) == (4, 1)


@pytest.mark.black_box
def test_all_or_none(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    small.targets(clean, DOWN)
    done = run_cli(small, "deploy-all", "--atomic", "--retries", "0", "--json")
    assert done.code == 5
    assert states(done) == {"node1": "undone", "node2": "undone", "node3": "undone", "down": "failed"}
    assert "Undone, since not every node could have it: node1, node2, node3." in done.err
    assert [versions(node) for node in clean] == [[], [], []]


@pytest.mark.black_box
def test_a_syntax_error_is_said_once_and_leaves_nothing(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    small.spider("one", "def broken(:\n")
    done = run_cli(small, "deploy-all")
    assert done.code == 1
    assert done.err.count("SyntaxError") == 1
    assert "Traceback" not in done.err
    assert [versions(node) for node in clean] == [[], [], []]
    assert run_cli(small, "deploy-all", "--only-missing").code == 4


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("older", "newer", "behind", "default", "check"),
    # Names that begin with r go on to stand behind those that begin with a year.
    [("1.9", "1.10", "1_9", "one", 10), ("r9-main", "r10-main", "r9-main", "one", 10)],
)
def test_names_that_scrapyd_sorts_wrongly(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode], older: str, newer: str, behind: str,
    default: str, check: int
) -> None:  # fmt: skip
    assert run_cli(small, "deploy-all", "--version", older).code == 0
    change(small, "two")
    done = run_cli(small, "deploy-all", "--version", newer)
    assert done.code == 0
    assert f"Scrapyd sorts {behind} behind this version" in done.err
    # What `sdist crawl` and `sdist schedule` pin is the code that is here.
    pinned = run_cli(small, "deploy-all", "--json").json()["version"]
    for node in clean:
        assert node.api("listspiders.json", project="small", _version=pinned)["spiders"] == ["two"]
        assert node.api("listspiders.json", project="small")["spiders"] == [default]
    assert run_cli(small, "versions", "--check").code == check


@pytest.mark.black_box
def test_a_requirement_travels(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    name, info = "tinydep-1.0-py3-none-any.whl", "tinydep-1.0.dist-info"
    small.write("requirements.txt", f"scrapy\n./{name}\n")
    files = {
        "tinydep/__init__.py": "NAME = 'from-the-egg'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tinydep\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(small.path / name, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD")))
    small.spider("one", "import scrapy, tinydep\nclass One(scrapy.Spider):\n    name = tinydep.NAME\n")
    without = run_cli(small, "deploy", "node1")
    assert without.code == 1
    assert "No module named 'tinydep'" in without.err
    done = run_cli(small, "deploy", "node1", "--include-dependencies", env={"PIP_NO_INDEX": "1"})
    assert done.code == 0, done.err
    assert clean[0].api("listspiders.json", project="small")["spiders"] == ["from-the-egg"]


@pytest.mark.black_box
def test_a_setup_py_of_its_own(run_cli: RunCommand, small: Project, clean: list[ScrapydNode]) -> None:
    small.write(
        "setup.py",
        """\
        from setuptools import find_packages, setup
        setup(name='other-name', version='3', packages=find_packages(),
              entry_points={'scrapy': ['settings = small.settings']})
        """,
    )
    before = {path.name for path in small.path.iterdir()}
    done = run_cli(small, "deploy", "node2", "--use-setup-py", "--json")
    assert done.code == 0, done.err
    assert clean[1].api("listspiders.json", project="small")["spiders"] == ["one"]
    assert {path.name for path in small.path.iterdir()} == before | {".sdist"}


@pytest.fixture
def self_signed(tmp_path: Path) -> Iterator[int]:
    """The port of a server that speaks TLS with a certificate that nobody has signed but itself."""
    context = Authority(tmp_path).self_signed()
    with closing(BadPeer(says(status="ok", versions=[]), context)) as server:
        yield server.port


TARGETS: list[tuple[str, str, int]] = [
    ("[deploy:locked]\nurl = {url}\nusername = me\npassword = wrong-one\n", "user name or password refused", 6),
    ("[deploy:behind]\nurl = {url}base/path\nusername = me\npassword = hush\n", "page not found", 5),
    ("[deploy:six]\nurl = http://[::1]:1/\n", "[::1]:1", 5),
    ("[deploy:self signed]\nurl = https://127.0.0.1:{tls}/\n", "certificate verify failed", 6),
    ("[deploy:my node]\nurl = http://127.0.0.1:1\n", "my node", 5),
]


@pytest.mark.black_box
@pytest.mark.parametrize("command", [("deploy-all", "--retries", "0"), ("versions",), ("spiders",)], ids=" ".join)
@pytest.mark.parametrize(("section", "said", "code"), TARGETS)
def test_a_target_that_cannot_be_used_is_one_clear_line(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode], self_signed: int,
    command: tuple[str, ...], section: str, said: str, code: int
) -> None:  # fmt: skip
    small.targets([], section.format(url=clean[0].url, tls=self_signed) + "project = small\n")
    done = run_cli(small, *command)
    assert done.code == code, done.err
    lines = [line for line in done.err.splitlines() if line.startswith("sdist: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert not any(word in done.out + done.err for word in ("wrong-one", "hush", "Traceback"))


def test_prune_on_a_node_with_a_space_in_its_name(
    run_cli: RunCommand, small: Project, clean: list[ScrapydNode]
) -> None:
    login: Any = f"url = {clean[0].url}\nusername = me\npassword = hush\nproject = small\n"
    small.targets([], f"[deploy:my node]\n{login}")
    assert run_cli(small, "deploy", "my node").code == 0
    assert run_cli(small, "deploy", "my*", "--dry-run").code == 0
    done = run_cli(small, "prune", "--keep", "1", "--node", "my node")
    assert (done.code, done.out) == (0, "")
    assert "There is nothing to delete." in done.err
