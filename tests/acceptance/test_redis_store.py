"""Whole crawls with their store on a Redis server: run, killed, resumed, cleaned; and its password seen nowhere."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from rig.commands import Result
from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.projects import Project
from rig.redis import PASSWORD, RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.store import open_store

SECRETS = (PASSWORD, "p%3Ass%2Fw%40rd")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with closing(RedisServer(tmp_path / "redis")) as one:
        yield one


def arguments_with_producer() -> str:
    """The arguments of all processes of this machine, once a producer is among them."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it is over
            lines.append(path.read_bytes().decode("utf-8", "replace"))
    shown = "\n".join(lines)
    return shown if "scrapyd_dist.middlewares.producer.process" in shown else ""


def assert_told_nowhere(it: Project, *results: Result) -> None:
    files = [path for folder in (it.path, it.output) for path in folder.rglob("*") if path.is_file()]
    texts = {str(path): path.read_bytes().decode("utf-8", "replace") for path in files}
    texts |= {f"result {number}": f"{result.out}{result.err}" for number, result in enumerate(results)}
    assert [name for name, text in texts.items() if any(secret in text for secret in SECRETS)] == []


def test_a_crawl_lives_on_the_server_and_its_password_is_told_nowhere(
    fleet: StartFleet,
    site: StartSite,
    project: MakeProject,
    server: RedisServer,
    start_cli: StartCommand,
    run_cli: RunCommand,
) -> None:
    pages = site(90, per_page=30)
    it = project(
        nodes=[*fleet(1), *fleet(1, username="me", password="node-secret")],
        settings={"START_URL": pages.start_url, **QUICK, "DISTRIBUTED_BATCH_SIZE": 30},
        extra="[sdist]\nstore = $THE_STORE\n",
    )
    env = {"THE_STORE": server.url}
    words = ("--index", pages.template, "--pages", 3, "--shards", 3, "-O", "items.jl", "--json")
    command = start_cli(it, "crawl", "easy", *words, env=env)
    with closing(open_store(server.url)) as store:
        row = wait_for(store.crawls, 60, "the crawl on the server")[0]
        shown = wait_for(arguments_with_producer, 30, "the producer's process")
        assert not any(secret in shown for secret in SECRETS)
        done = command.wait(120, code=0)
        assert store.crawl(row.id).state is CrawlState.FINISHED
    assert len(list(it.items("items.jl"))) == 90
    listed = run_cli(it, "crawls", "--json", env={"SDIST_STORE": server.socket_url})
    assert [crawl["crawl"] for crawl in listed.json()["crawls"]] == [row.id]
    status = run_cli(it, "status", "--json", env=env)
    cleaned = run_cli(it, "clean", row.id, "--yes", "--json", env=env)
    assert [line["crawl"] for line in cleaned.json()["removed"]] == [row.id], cleaned.err
    with closing(open_store(server.url)) as store:
        assert store.crawls() == []
    assert not (it.path / ".sdist" / "crawls" / row.id).exists()
    assert not (it.path / ".sdist" / "store.db").exists()
    assert_told_nowhere(it, done, listed, status, cleaned)


def test_what_is_wrong_with_the_store_is_said_without_its_password(
    project: MakeProject, server: RedisServer, run_cli: RunCommand
) -> None:
    it = project()
    computed = run_cli(it, "crawls", env={"SDIST_STORE": server.url.replace("p%3Ass", "p%3ASS")})
    assert (computed.code, "invalid username-password pair" in computed.err) == (6, True), computed.err
    nonsense = run_cli(it, "crawls", env={"SDIST_STORE": "redis://:p%3Ass%2Fw%40rd@host:port/0"})
    assert (nonsense.code, "cannot be understood" in nonsense.err) == (2, True), nonsense.err
    it.settings(DISTRIBUTED_STORE=server.url)
    literal = run_cli(it, "crawls", "--json")
    assert (literal.code, literal.json()["crawls"]) == (0, []), literal.err
    it.write(f"{it.name}/settings.py", "import os\nDISTRIBUTED_STORE = os.environ.get('X')\n")
    told = run_cli(it, "crawls")
    assert (told.code, "SDIST_STORE" in told.err) == (2, True), told.err
    unset = run_cli(it, "crawls", env={"SDIST_STORE": ""})
    assert unset.code == 2
    given = run_cli(it, "crawl", "easy", "-s", f"DISTRIBUTED_STORE={server.url}", env={"SDIST_STORE": server.url})
    assert (given.code, "lists the processes" in given.err) == (2, True), given.err
    (it.path / it.name / "settings.py").unlink()
    assert_told_nowhere(it, computed, nonsense, literal, told, unset, given)
