"""What is particular to the Redis store: its clock, its keys, its memory, wrong servers and wrong addresses."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from rig.badpeer import BadPeer
from rig.crawls import assert_one_paragraph
from rig.fixtures import MakeProject
from rig.redis import PASSWORD, RedisServer
from rig.stores import CRAWL, LESSEE, add, attempt, fail, lease, seal
from rig.strategies import ALL, apply, cut, event, heads, hold, link
from rig.tls import Authority
from scrapyd_dist.cli import main
from scrapyd_dist.cli.commands import CODES

from scrapyd_dist.errors import ConfigError, StoreBarred, StoreError
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.store import Store, open_store


@pytest.fixture
def at(redis_server: RedisServer) -> Iterator[Callable[..., Store]]:
    """Opens the store whose keys begin with a prefix; `at("shop:")`."""
    with contextlib.ExitStack() as stack:
        yield lambda prefix, **options: stack.enter_context(
            contextlib.closing(open_store(f"{redis_server.url}?prefix={prefix}", **options))
        )


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with contextlib.closing(redis.Redis.from_url(redis_server.url)) as one:
        yield one


@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs the program faketime")
def test_a_clock_that_is_wrong_by_an_hour_takes_no_lease_away(
    redis_server: RedisServer, at: Callable[..., Store]
) -> None:
    script = """
import sys, time
from scrapyd_dist.store import open_store
store = open_store(sys.argv[1])
print(round(time.time()), store.lease("c", 1, 1, "fast", 60), len(store.expired("c")))
"""
    store = at("clock:")
    store.add_crawl(CRAWL)
    seal(store)
    store.open_attempt("c", attempt())
    assert store.lease("c", 1, 1, "me", 60.0)
    line = [
        "faketime",
        "-f",
        "+3600s",
        sys.executable,
        "-c",
        script,
        f"{redis_server.url}?prefix=clock:",
    ]
    told = subprocess.run(
        line, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert told[1:] == ["False", "0"]
    assert store.lease("c", 1, 1, "me", 60.0, again=True)


def test_two_prefixes_are_two_stores(at: Callable[..., Store]) -> None:
    shop, news = at("shop:"), at("news:")
    shop.add_crawl(CRAWL)
    shop.update_node("web1", draining=1.0)
    assert (news.crawls(), news.nodes()) == ([], [])
    news.add_crawl(replace(CRAWL, spider="other"))
    assert shop.crawl("c").spider == "s"


def test_nothing_of_a_forgotten_crawl_is_left_on_the_server(
    at: Callable[..., Store], client: Any
) -> None:
    store = at("forget:")
    store.add_crawl(CRAWL)
    for _ in range(3):
        seal(
            store,
            fingerprints=[f"{n}".encode() for n in range(500)],
            counts={"sealed": 2, "local": 1},
        )
    store.open_attempt("c", attempt())
    store.lease("c", 1, 1, "me", 60.0)
    store.add_sample("c", 1.0, {})
    for slot in ("", "x", "y"):
        add(store, "a" + slot, slot=slot)
    leased = lease(store)
    store.ack("c", leased.batch.number, leased.attempt, LESSEE.job, report={}, now=1.0)
    lease(store)
    store.register_producer("c", "me", 60.0)
    hold(store)
    told = [event("e1"), event("e2", slot="b")]
    apply(
        store,
        *(link(f"{n}", slot=f"s{n % 9}", due=n) for n in range(2_000)),
        domains={"a": {}},
        events=told,
    )
    apply(store, dead={store.events("c", ALL, 1)[0].number: "x"})
    cut(store, limit=9)
    heads(store, ahead=1)
    assert len(client.keys("{forget}:c:*")) > 20
    store.forget("c")
    assert client.keys("{forget}:c:*") == []
    assert not (store.attempts("c") or store.batches("c"))


@pytest.mark.parametrize("forget", [True, False])
def test_nothing_of_a_dropped_batch_is_left_on_the_server(
    at: Callable[..., Store], client: Any, *, forget: bool
) -> None:
    store, prefix = at(f"drop{forget}:"), f"{{drop{forget}}}:"
    store.add_crawl(CRAWL)
    add(store, "a", slot="x")
    lease(store)
    fail(store)
    lease(store)
    store.give_back("c", 1, 2, LESSEE.job, reason="", now=1.0)
    store.drop_batch("c", 1, forget=forget)
    left = {key.decode().removeprefix(f"{prefix}c:c:") for key in client.keys(f"{prefix}c:*")}
    assert left == ({"crawl", "meta"} if forget else {"crawl", "meta", "f:0"})


def test_buckets_of_fingerprints_are_kept_as_plain_lists_of_bytes(
    at: Callable[..., Store], client: Any
) -> None:
    store = at("many:")
    store.add_crawl(CRAWL)
    for batch in range(40):
        prints = [f"the same beginning {batch}.{number}"[-20:].encode() for number in range(500)]
        seal(store, fingerprints=prints)
    assert len(set(store.fingerprints("c"))) == 20_000
    buckets = [key for key in client.keys("{many}:c:c:f:*") if b":f:" in key]
    assert {client.object("encoding", key) for key in buckets} <= {b"listpack", b"ziplist"}
    assert max(client.hlen(key) for key in buckets) < 400  # the limit is 512
    assert 100 < len(buckets) < 400


def test_a_new_store_has_the_first_layout_and_is_opened_again(
    at: Callable[..., Store], client: Any
) -> None:
    at("first:").add_crawl(CRAWL)
    assert client.get("{first}:layout") == b"1"
    assert at("first:").crawls() == [CRAWL]


@pytest.mark.parametrize("layout", ["2", "99", "0", "none"])
def test_a_layout_that_is_not_known_is_refused_and_left_alone(
    at: Callable[..., Store], client: Any, layout: str
) -> None:
    client.set("{newer}:layout", layout)
    with pytest.raises(
        StoreError, match=rf"newer scrapyd-dist \(layout {layout}, this one knows 1\)\. Upgrade"
    ):
        at("newer:")
    assert [(key, client.get(key)) for key in client.keys("{newer}:*")] == [
        (b"{newer}:layout", layout.encode())
    ]


def test_a_server_that_keeps_nothing_is_told_of(tmp_path: Path, redis_server: RedisServer) -> None:
    with contextlib.closing(open_store(redis_server.url)) as safe:
        assert safe.warnings() == []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            contextlib.closing(RedisServer(tmp_path / "redis", appendonly="no"))
        )
        (told,) = stack.enter_context(contextlib.closing(open_store(server.url))).warnings()
    assert "appendonly" in told
    assert PASSWORD not in told


def test_a_server_that_throws_keys_away_is_refused(tmp_path: Path) -> None:
    options = {"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}
    with (
        contextlib.closing(RedisServer(tmp_path / "redis", **options)) as server,
        pytest.raises(StoreError, match="noeviction"),
    ):
        open_store(server.url)


def test_a_server_without_room_says_so_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapyd_dist.store.redis.redis_link.PATIENCE", 1.0)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            contextlib.closing(RedisServer(tmp_path / "redis", None, maxmemory="6mb"))
        )
        store = stack.enter_context(contextlib.closing(open_store(server.url)))
        store.add_crawl(CRAWL)
        sealed = 0
        with pytest.raises(StoreError, match=r"(?i)memory"):
            while True:
                new = NewBatch(payload={"A": "x" * 100_000}, size=1)
                sealed = store.seal("c", new, [b"%d" % sealed], {"sealed": 1}).number
        assert sealed > 5
        assert len(store.batches("c")) == store.counts("c")["sealed"] == sealed
        assert len(list(store.fingerprints("c"))) == sealed


@pytest.mark.parametrize(
    "url", ["redis://:geheim@127.0.0.1:{port}/0", "redis://wrong:geheim@127.0.0.1:{port}/0"]
)
def test_a_wrong_password_is_told_at_once_and_not_shown(
    url: str, redis_server: RedisServer
) -> None:
    with pytest.raises(StoreBarred, match=r"failed: .*password") as caught:
        open_store(url.format(port=redis_server.port))
    assert caught.value.exit_code == 6
    assert "geheim" not in str(caught.value)


def test_a_server_that_is_not_there_is_told_with_where_its_address_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scrapyd_dist.store.redis.redis_link.PATIENCE", 0.0)
    with pytest.raises(
        StoreError, match=r"127\.0\.0\.1:1/0 failed: .*SDIST_STORE or DISTRIBUTED_STORE"
    ) as caught:
        open_store("redis://:geheim@127.0.0.1:1/0")
    assert "geheim" not in str(caught.value)


def test_a_user_who_may_not_and_a_certificate_that_nobody_trusts_are_no_broken_store(
    redis_server: RedisServer, client: Any, tmp_path: Path
) -> None:
    client.acl_setuser("guest", enabled=True, passwords=["+word"], commands=["+ping"])
    with pytest.raises(StoreBarred, match="permission"):
        open_store(f"redis://guest:word@127.0.0.1:{redis_server.port}/0")
    strange = Authority(tmp_path).context()
    with (
        contextlib.closing(
            BadPeer(lambda connection, _: connection.answer(200, b""), strange)
        ) as peer,
        pytest.raises(StoreBarred, match=r"(?i)certificate"),
    ):
        open_store(f"rediss://127.0.0.1:{peer.port}/0")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:geheim@host:geheim/0",
        "redis://:geheim@h/0?nonsense=1",
        "redis://h/0?socket_timeout=geheim",
        "redis://:geheim\uff0f@host/0",  # a letter that an address must not have
    ],
)
def test_an_address_that_makes_no_sense_is_told_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be understood") as caught:
        open_store(url)
    assert "geheim" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'scrapyd-dist\[redis\]'"):
        open_store("redis://127.0.0.1:1/0")


def test_it_is_reached_by_a_socket_too(redis_server: RedisServer, at: Callable[..., Store]) -> None:
    with contextlib.closing(open_store(f"{redis_server.socket_url}&prefix=socket:")) as store:
        store.add_crawl(CRAWL)
    assert at("socket:").crawl("c") == CRAWL


# a store that refuses its password: every command says so, and ends as the table of exit codes says

#: command -> what it wants to know besides its name
WORDS = {
    "crawl": ["easy"],
    "resume": ["c"], "watch": ["c"], "retry": ["c"], "crawls clean": ["c", "--yes"],
    "pause": ["c"], "stop": ["c"], "crawls show": ["c"],
    "items merge": ["c", "-o", "x.jl"], "items tail": ["c"], "items pull": ["c"],
    "frontier consume": ["easy", "shop"],
    "throttle apply": ["limits.yml"], "throttle set": ["a.com", "--hits", "1", "--window", "1"],
    "throttle pause": ["a.com"], "throttle resume": ["a.com"],
    "frontier count": ["shop"], "frontier dump": ["shop", "p0"], "frontier add": ["shop", "urls.txt"],
    "frontier move": ["shop", "p", "q", "2"], "frontier requeue": ["shop"],
    "frontier prioritise": ["shop", "--to", "1"],
    "frontier delete": ["shop", "--all", "--yes"],
    "strategy run": ["scrapyd_dist.strategy:BreadthFirst", "--spider", "easy"],
    "strategy join": ["s"], "strategy add": ["s", "urls.txt"], "strategy status": ["s"], "strategy pause": ["s"],
    "strategy resume": ["s"], "strategy events": ["s"], "strategy replay": ["s"],
    "strategy reset": ["s", "--yes"],
    "nodes drain": ["node1"], "nodes resume": ["node1"], "nodes remove": ["node1"], "nodes add": ["http://h:1/"],
    "jobs schedule": ["easy"], "logs": ["j"], "jobs stats": ["c"], "jobs grep": ["x"],
    "jobs cancel": ["j"], "nodes api": ["node1", "daemonstatus"],
    "deploy": ["node1"], "code prune": ["--keep", "1", "--yes"],
}  # fmt: skip
#: makes its plan without a store, in a process that answers for itself
NOT_OPENED = {"plan"}
#: all that open it: to ask nodes is to read there which nodes were added
BARRED = sorted(path for path, codes in CODES.items() if 6 in codes and path not in NOT_OPENED)


def test_a_store_that_refuses_its_password_ends_every_command_with_6(
    project: MakeProject,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    it = project(extra="[deploy:node1]\nurl = http://127.0.0.1:1/\nproject = properties\n")
    it.write("urls.txt", "http://a.com/\n")
    it.write("limits.yml", "blacklist: [a.com]\n")
    monkeypatch.chdir(it.path)
    monkeypatch.setenv("SDIST_STORE", f"redis://:not-this@127.0.0.1:{redis_server.port}/0")
    ended = {}
    for path in BARRED:
        ended[path] = main._run([*path.split(), *WORDS.get(path, ())], debug=False)
        assert_one_paragraph(said := capsys.readouterr().err)
        assert "invalid username-password pair" in said
    assert ended == dict.fromkeys(BARRED, 6)
