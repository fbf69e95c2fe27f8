"""Crawls with their store on a Redis server: its password is seen nowhere, and no other program's word is believed."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from rig.commands import Result
from rig.crawls import ADDON, QUICK
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.processes import with_home
from rig.projects import Project
from rig.redis import PASSWORD, RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.store import open_store
from scrapyd_dist.store.ports import crawl_store

SECRETS = (PASSWORD, "p%3Ass%2Fw%40rd")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with closing(RedisServer(tmp_path / "redis")) as one:
        yield one


def arguments_with_producer(it: Project) -> str:
    """The arguments of all processes of a project's commands, once a producer is among them."""
    shown = "\n".join(word for words in with_home(it.home).values() for word in words)
    return shown if "scrapyd_dist.middlewares.producer.standby" in shown else ""


def assert_told_nowhere(it: Project, *results: Result) -> None:
    files = [
        path for folder in (it.path, it.output) for path in folder.rglob("*") if path.is_file()
    ]
    texts = {str(path): path.read_bytes().decode("utf-8", "replace") for path in files}
    texts |= {
        f"result {number}": f"{result.out}{result.err}" for number, result in enumerate(results)
    }
    assert [name for name, text in texts.items() if any(secret in text for secret in SECRETS)] == []


@pytest.mark.black_box
def test_a_crawl_lives_on_the_server_and_its_password_is_told_nowhere(
    fleet: StartFleet, site: StartSite, project: MakeProject, server: RedisServer, start_cli: StartCommand,
    run_cli: RunCommand,
) -> None:  # fmt: skip
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
        shown = wait_for(lambda: arguments_with_producer(it), 30, "the producer's process")
        assert not any(secret in shown for secret in SECRETS)
        done = command.wait(120, code=0)
        assert store.crawl(row.id).state is CrawlState.FINISHED
    assert len(list(it.items("items.jl"))) == 90
    listed = run_cli(it, "crawls", "--json", env={"SDIST_STORE": server.socket_url})
    assert [crawl["crawl"] for crawl in listed.json()["crawls"]] == [row.id]
    status = run_cli(it, "status", "--json", env=env)
    cleaned = run_cli(it, "crawls", "clean", row.id, "--yes", "--json", env=env)
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
    computed.expect(6, "invalid username-password pair")
    nonsense = run_cli(it, "crawls", env={"SDIST_STORE": "redis://:p%3Ass%2Fw%40rd@host:port/0"})
    nonsense.expect(2, "cannot be understood")
    it.settings(DISTRIBUTED_STORE=server.url)
    literal = run_cli(it, "crawls", "--json", code=0)
    assert literal.json()["crawls"] == []
    it.write(f"{it.name}/settings.py", "import os\nDISTRIBUTED_STORE = os.environ.get('X')\n")
    told = run_cli(it, "crawls").expect(2, "SDIST_STORE")
    unset = run_cli(it, "crawls", env={"SDIST_STORE": ""}, code=2)
    given = run_cli(
        it,
        "crawl",
        "easy",
        "-s",
        f"DISTRIBUTED_STORE={server.url}",
        env={"SDIST_STORE": server.url},
    )
    given.expect(2, "lists the processes")
    (it.path / it.name / "settings.py").unlink()
    assert_told_nowhere(it, computed, nonsense, literal, told, unset, given)


def assert_told(result: Result, *words: str, code: int | None = None) -> None:
    """The command says why it does not do what that program wrote, and it is no fault of ours."""
    result.expect(code, *words)
    assert "Traceback" not in result.err
    assert "has no words for" not in result.err


@pytest.mark.promise(
    "Rows of a store that could run a command, make a request or receive code are used only if the"
    " project's key has signed them"
)
@pytest.mark.black_box
def test_neither_a_command_nor_a_file_comes_of_what_another_program_wrote(
    project: MakeProject,
    server: RedisServer,
    run_cli: RunCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it, env = project(), {"SDIST_STORE": server.url}
    ran, logged = tmp_path / "ran", tmp_path / "logged"
    evil = {
        "settings": {
            "DISTRIBUTED_ON_FINISH": f"touch {ran}",
            "DISTRIBUTED_NODES": [f"cmd:touch {ran}"],
        },
        "spider_settings": {
            "LOG_FILE": str(logged),
            "FEEDS": json.dumps({str(logged): {"format": "jsonlines"}}),
        },
    }
    monkeypatch.setattr(
        crawl_store, "check_names", lambda _: None
    )  # another program writes what it likes
    with closing(open_store(server.url)) as store:
        for name in ("evil", "../../../victim"):
            store.add_crawl(
                Crawl(
                    id=name,
                    project="properties",
                    spider="easy",
                    state=CrawlState.STOPPED,
                    created=2e9,
                    options=evil,
                )
            )
    resumed = run_cli(it, "resume", "evil", env=env, timeout=90)
    assert not ran.exists()
    assert not logged.exists()
    assert_told(resumed, "evil", "is not believed", "sdist crawls clean evil", code=2)
    assert_told(run_cli(it, "retry", "evil", env=env), "is not believed")
    for words in (
        ("report",),
        ("report", "../../../victim"),
        ("crawls", "clean", "../../../victim", "--yes"),
    ):
        assert_told(run_cli(it, *words, env=env), "../../../victim")
    assert list(tmp_path.rglob("victim*")) == list(it.path.parents[2].glob("victim*")) == []
    listed = run_cli(it, "crawls", "--json", env=env)
    assert [one["crawl"] for one in listed.json()["crawls"]] == ["evil"], (
        "which can be looked at, and removed"
    )
    run_cli(it, "crawls", "clean", "evil", "--yes", env=env, code=0)


@pytest.mark.black_box
def test_a_crawl_whose_row_was_changed_is_not_gone_on_with(
    fleet: StartFleet,
    site: StartSite,
    project: MakeProject,
    server: RedisServer,
    run_cli: RunCommand,
    tmp_path: Path,
) -> None:
    pages, env = site(30, per_page=10), {"SDIST_STORE": server.url}
    it = project(nodes=fleet(1), settings={"ADDONS": ADDON, "START_URL": pages.start_url, **QUICK})
    words = ("crawl", "easy", "--index", pages.template, "--pages", "3", "-O", "items.jl", "--pull")
    run_cli(it, *words, env=env, code=0)
    assert len(list(it.items("items.jl"))) == 30
    with closing(open_store(server.url)) as store:
        (row,) = store.crawls()
        settings = {**row.options["settings"], "DISTRIBUTED_ON_FINISH": f"touch {tmp_path / 'ran'}"}
        # As a program without the project's key leaves it: with no signature at all.
        store.update_crawl(
            row.id, options={**row.options, "settings": settings}, state=CrawlState.STOPPED
        )
        payload = {"DISTRIBUTED_START_URLS": '[{"url":"file:///etc/passwd"}]'}
        store.seal(row.id, NewBatch(payload=payload, size=1), (), {})
        last = max(store.batches(row.id), key=lambda batch: batch.number)
    resumed = run_cli(it, "resume", row.id, env=env)
    assert_told(resumed, "is not believed", "it has no signature", f"sdist crawls clean {row.id}")
    assert not (tmp_path / "ran").exists()
    listed = run_cli(
        it, "crawls", "show", row.id, "--batches", "--batch", str(last.number), "--urls", env=env
    )
    assert_told(listed, "is not believed")
    assert "passwd" not in listed.out


@pytest.mark.full
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_store_that_was_emptied_ends_the_crawl_and_says_where_its_items_are(
    fleet: StartFleet,
    site: StartSite,
    project: MakeProject,
    server: RedisServer,
    start_cli: StartCommand,
    mode: str,
) -> None:
    pages = site(90, "--latency=0.3", per_page=30)
    it = project(
        nodes=fleet(1),
        settings={"START_URL": pages.start_url, **QUICK, "DISTRIBUTED_BATCH_SIZE": 10},
        extra="[sdist]\nstore = $THE_STORE\n",
    )
    words = ("--index", pages.template, "--pages", 3, "-O", "items.jl", f"--{mode}")
    command = start_cli(it, "crawl", "easy", *words, env={"THE_STORE": server.url})
    wait_for(lambda: any(pages.item_hits().values()), 60, "a page of the nodes")
    with closing(redis.Redis.from_url(server.url)) as admin:
        admin.flushall()
    done = command.wait(120, code=1)
    assert "The store has lost the crawl" in done.err
    assert "/parts; " in done.err
    assert "Traceback" not in done.err
