"""Rows that another program has written: each kind is read, and nothing comes of it but words of ours."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rig.stores import LESSEE, add, attempt, lease_next, seal
from rig.strategies import ALL, apply, batch_of, event, heads, hold, link, names
from scrapyd_dist.cli import main
from scrapyd_dist.cli.crawls import producer_process

from scrapyd_dist.batches import Crawl, CrawlState, Miss, Shard, ShardState, WorkerEntry
from scrapyd_dist.errors import DistError, ForeignRow, StoreError
from scrapyd_dist.fleet.crawl_files import crawl_folder
from scrapyd_dist.fleet.live_crawls import lives
from scrapyd_dist.fleet.project_store import key_of
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.pidfile import note_pid
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.node_memory import up_to_date
from scrapyd_dist.store.ports.address_text import shown
from scrapyd_dist.store.redis.redis_address import tagged, without_prefix
from scrapyd_dist.strategy.links import LinkMove, States
from scrapyd_dist.throttle.permits import Limit, PermitRequest, Rule

KEY = b"a key of this project"
OPTIONS = {
    "settings": {"DISTRIBUTED_ON_FINISH": "true"},
    "args": {"a": "ü"},
    "spider_settings": {},
    "cwd": "/",
}
WORKER = WorkerEntry(number=1, job="c.w1.a1", url="http://one:6800", pool="", since=1.0)
MINE = Crawl(
    id="c", project="p", spider="s", state=CrawlState.STOPPED, created=1.5, options=OPTIONS
)
PAYLOAD = {"DISTRIBUTED_START_URLS": '["http://a/1"]'}


@pytest.fixture
def mine(where: str) -> Iterator[Store]:
    """A store that this project writes."""
    with closing(open_store(where, key=KEY)) as store:
        yield store


def theirs(where: str, key: bytes | None = None) -> Any:
    """The same store, as another program writes it: with no key of this project."""
    return closing(open_store(where, key=key))


def test_what_this_project_wrote_is_read_back_by_whoever_has_its_key(
    where: str, mine: Store
) -> None:
    mine.add_crawl(MINE)
    mine.update_crawl("c", version="v1", state=CrawlState.WORKING, summary={"items": 3})
    mine.update_crawl("c", options={**OPTIONS, "labels": ["a"]}, pid=9)
    with theirs(where, KEY) as again:
        row = again.own_crawl("c")
        assert (row.version, row.pid, row.options["labels"], row.foreign) == ("v1", 9, ["a"], "")
        assert "signature" not in row.options
        assert again.crawls() == [row]


@pytest.mark.parametrize(
    "changes", [{"options": {"settings": {}}}, {"spider": "x"}, {"version": "x"}, {"project": "x"}]
)
def test_what_another_key_has_signed_is_shown_and_not_believed(
    where: str, mine: Store, changes: dict[str, Any]
) -> None:
    mine.add_crawl(MINE)
    with theirs(where, b"another key") as other:
        with pytest.raises(ForeignRow, match="sdist crawls clean c"):
            other.own_crawl("c")
        with pytest.raises(ForeignRow):
            other.update_crawl("c", **changes)
        assert [(row.id, row.options, "another key" in row.foreign) for row in other.crawls()] == [
            ("c", {}, True)
        ]
        other.update_crawl("c", state=CrawlState.FINISHED)
        other.want("c", "pause")
        other.forget("c")
        assert other.crawls() == []


def test_a_row_that_is_not_whole_hides_no_other(where: str, mine: Store) -> None:
    mine.add_crawl(MINE)
    mine.add_crawl(replace(MINE, id="d"))
    if not Raw(where).drop_spider("d"):
        pytest.skip("a table has all columns")
    assert [row.id for row in mine.crawls()] == ["c"]
    with pytest.raises(ForeignRow):
        mine.own_crawl("d")


def test_rows_cannot_be_swapped(where: str, mine: Store) -> None:
    mine.add_crawl(MINE)
    mine.add_crawl(replace(MINE, id="d", options={"settings": {"DISTRIBUTED_OUTPUTS": []}}))
    add(mine, "1", "2", slot="p")
    mine.add_batches("d", [])
    raw = Raw(where)
    raw.swap_options("c", "d")
    for name in "cd":
        assert "it was changed" in mine.crawl(name).foreign
    assert mine.payload("c", 1) == {"A": "1,2"}
    raw.set_batch("size", "7")
    with pytest.raises(ForeignRow, match="it was changed"):
        mine.payload("c", 1)
    (leased,) = lease_next(mine, "c", LESSEE, seconds=9.0)
    assert (leased.payload, "it was changed" in leased.fault) == ({}, True)


@pytest.mark.parametrize("key", [b"another", None])
def test_links_and_events_that_the_project_did_not_sign_lead_to_no_request(
    where: str, mine: Store, key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_store(where, key=key)) as other:
        mine.add_crawl(MINE)
        hold(mine)
        apply(other, link("x1"), link("x2", 0.5), events=[event("y"), event("z", slot="b")])
        apply(mine, link("l", 0.1), events=[event("m")])
    assert names(heads(mine)) == "l"
    assert [one.fingerprint for one in mine.events("c", ALL, 2)][-1:] == [b"m"]
    backlog = mine.strategy_backlog("c")
    assert "not believed" in caplog.text
    assert (backlog.queued, backlog.events, backlog.dead) == (1, 1, 2)
    assert backlog.states == {States.QUEUED: 1, States.ERROR: 2}
    log = [
        (one.fingerprint, one.at, one.after)
        for one in mine.changes("c")
        if "not believed" in one.reason
    ]
    assert sorted(log) == [(b"x1", 1_000.0, States.ERROR), (b"x2", 1_000.0, States.ERROR)]
    assert mine.dead_events("c") == []


def test_a_link_s_request_is_believed_for_that_link_only(where: str, mine: Store) -> None:
    mine.add_crawl(MINE)
    hold(mine)
    apply(mine, link("x1"), link("x2", 0.5))
    Raw(where).swap_requests()
    assert heads(mine) == []


def test_a_number_of_attempts_without_end_holds_no_store_up(where: str, mine: Store) -> None:
    mine.add_crawl(MINE)
    add(mine, "1", slot="p")
    Raw(where).set_batch("attempts", "1e999")
    with pytest.raises(StoreError, match=r"attempts of .* is no count|attempts is no whole number"):
        mine.drop_batch("c", 1, forget=True)
    assert [crawl.id for crawl in mine.crawls()] == ["c"]


def test_rows_without_a_signature_are_not_believed(where: str) -> None:
    with theirs(where) as other:  # which signs nothing
        other.add_crawl(MINE)
        number = other.seal("c", NewBatch(payload=PAYLOAD, size=1), (b"1",), {}).number
        other.add_shards("c", [Shard(number=0, url="http://a/")])
        other.add_workers("c", [WORKER], last=1)
        other.update_node("spare", url="http://spare:6800")
    with theirs(where, KEY) as mine:
        row = mine.crawl("c")
        assert (row.options, "it has no signature" in row.foreign) == ({}, True)
        with pytest.raises(ForeignRow, match="it has no signature"):
            mine.payload("c", number)
        assert [node.url for node in mine.nodes()] == [""]
        assert len(mine.shards("c")) == len(mine.workers("c")[0]) == 0
        mine.update_node("spare", url="http://spare:6800")
        assert [node.url for node in mine.nodes()] == ["http://spare:6800"]


@pytest.mark.parametrize(
    ("table", "change"),
    [("shards", "url = 'http://evil/'"), ("shards", "last_page = 7"), ("workers", "url = 'http://evil:6800'"),
     ("workers", "job = 'c.w2.a1'"), ("workers", "project = 'x'"), ("nodes", "url = 'http://evil:6800'"),
     ("nodes", "name = 'other'"), ("nodes", "changed = changed + 1")],
)  # fmt: skip
def test_a_column_of_a_file_that_was_changed_is_not_believed(
    tmp_path: Path, table: str, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    with closing(open_store(path, key=KEY)) as mine:
        mine.add_crawl(MINE)
        mine.add_shards("c", [Shard(number=0, url="http://a/{}", first_page=0, last_page=3)])
        mine.add_workers("c", [WORKER], last=1)
        mine.update_node("spare", url="http://spare:6800")
        assert (len(mine.shards("c")), len(mine.workers("c")[0])) == (1, 1)
        assert [node.url for node in mine.nodes()] == ["http://spare:6800"]
        mine.finish_shards("c", [0])
        assert mine.shards("c")[0].state is ShardState.FINISHED
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute(f"UPDATE {table} SET {change}")  # noqa: S608 - own names
        found: dict[str, Any] = {"shards": mine.shards("c"), "workers": mine.workers("c")[0]}
        found["nodes"] = [node for node in mine.nodes() if node.url]
        assert found[table] == []
    assert "its signature does not fit it: it was changed" in caplog.text


def test_a_removed_node_that_is_put_back_is_not_believed_where_its_removal_was_heard(
    where: str, mine: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    state.mkdir()

    def urls(heard: Path = state) -> list[str]:
        return [node.url for node in up_to_date(mine.nodes(), where, heard)]

    mine.update_node("spare", url="http://spare:6800")
    raw = Raw(where)
    old = raw.node("spare")
    assert urls() == ["http://spare:6800"]
    mine.update_node("spare", url="")
    assert urls() == [""]
    raw.put_node("spare", old)
    assert [node.url for node in mine.nodes()] == ["http://spare:6800"], "it is signed"
    assert urls() == [""]
    assert "as it did before that node was removed or changed" in caplog.text
    raw.put_node("spare", None)
    assert urls() == []
    raw.put_node("spare", old)
    assert urls() == [""]
    # Another address is a word as well, and added again, it is used again.
    mine.update_node("spare", url="http://spare:6900")
    assert urls() == ["http://spare:6900"]
    raw.put_node("spare", old)
    assert urls() == [""]
    mine.update_node("spare", url="http://spare:6800")
    assert urls() == ["http://spare:6800"]


@pytest.mark.parametrize(
    "said", [b"", b"[]", b"5", b"{", b'{"x": 5}', b"\xff", b'{"STORE": {"spare": "x"}}']
)
def test_what_was_heard_may_be_damaged(
    where: str, mine: Store, tmp_path: Path, said: bytes
) -> None:
    (tmp_path / "nodes-heard.json").write_bytes(said.replace(b"STORE", shown(where).encode()))
    mine.update_node("spare", url="http://spare:6800")
    assert [node.url for node in up_to_date(mine.nodes(), where, tmp_path)] == ["http://spare:6800"]


def test_a_process_is_interrupted_only_if_this_machine_knows_it_as_the_crawl_s(
    tmp_path: Path, mine: Store, sleeper: "subprocess.Popen[bytes]"
) -> None:
    mine.add_crawl(replace(MINE, pid=sleeper.pid, host=gethostname(), beat=time.time() + 60))
    folder = crawl_folder(tmp_path, "c")
    folder.mkdir(parents=True)
    producer_process.interrupt(tmp_path, mine.crawl("c"))
    assert lives(mine.crawl("c"))
    note_pid(folder, sleeper.pid)
    producer_process.interrupt(tmp_path, mine.crawl("c"))
    sleeper.wait(20)


@pytest.fixture
def sleeper() -> "Iterator[subprocess.Popen[bytes]]":
    # A signal that came between two steps of a sleeping Python would wait for the end of its sleep.
    program = (
        "import signal; ends = {signal.SIGINT}; signal.pthread_sigmask(signal.SIG_BLOCK, ends);"
        " print(flush=True); signal.sigwait(ends)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as one:
        assert one.stdout
        one.stdout.readline()  # from now on no signal is lost
        yield one
        one.kill()


class Raw:
    """The rows as they lie there, by what they are called in either engine."""

    def __init__(self, where: str) -> None:
        self._file = where.removeprefix("sqlite://") if where.startswith("sqlite") else None
        if self._file is None:
            url, prefix = without_prefix(where)
            self._prefix = tagged(prefix or "")
            self._client: Any = redis.Redis.from_url(url)

    def _run(self, statement: str, *values: Any) -> list[Any]:
        """What the file answers."""
        assert self._file
        with closing(sqlite3.connect(self._file)) as db, db:
            return db.execute(statement, values).fetchall()

    def swap_options(self, one: str, other: str) -> None:
        if self._file:
            rows = dict(self._run("SELECT id, options FROM crawls"))
            for name, text in ((one, rows[other]), (other, rows[one])):
                self._run("UPDATE crawls SET options = ? WHERE id = ?", text, name)
            return
        keys = [f"{self._prefix}c:{name}:crawl" for name in (one, other)]
        texts = [self._client.hget(key, "options") for key in keys]
        for key, text in zip(keys, reversed(texts), strict=True):
            self._client.hset(key, "options", text)

    def drop_spider(self, crawl: str) -> bool:
        """Take the spider's name out of a crawl's row; False where that cannot be."""
        if self._file:
            return False
        return bool(self._client.hdel(f"{self._prefix}c:{crawl}:crawl", "spider"))

    def swap_requests(self) -> None:
        """Give the links x1 and x2 the requests of one another."""
        if self._file:
            rows = dict(self._run("SELECT fingerprint, request FROM link_queue"))
            for name, other in ((b"x1", b"x2"), (b"x2", b"x1")):
                self._run(
                    "UPDATE link_queue SET request = ? WHERE fingerprint = ?", rows[other], name
                )
            return
        key = f"{self._prefix}c:c:s:requests"
        one, two = self._client.hmget(key, "x1", "x2")
        self._client.hset(key, mapping={"x1": one[:12] + two[12:], "x2": two[:12] + one[12:]})

    def set_batch(self, field: str, value: str) -> None:
        """Give batch 1 another value of this field."""
        if self._file:
            self._run(f"UPDATE batches SET {field} = ? WHERE number = 1", value)  # noqa: S608 - the store's own names
        else:
            self._client.hset(f"{self._prefix}c:c:b:1", field, value)

    def node(self, name: str) -> Any:
        """All that is kept of a node, as `put_node` takes it."""
        if self._file:
            return self._run("SELECT * FROM nodes WHERE name = ?", name)[0]
        signature = self._client.hget(f"{self._prefix}nodes:signed", name)
        return self._client.hgetall(f"{self._prefix}node:{name}"), signature

    def put_node(self, name: str, kept: Any) -> None:
        """Put it back as it was; None: take it away."""
        if self._file:
            self._run("DELETE FROM nodes WHERE name = ?", name)
            if kept is not None:
                self._run(f"INSERT INTO nodes VALUES ({', '.join('?' * len(kept))})", *kept)  # noqa: S608 - only marks
            return
        self._client.delete(f"{self._prefix}node:{name}")
        self._client.srem(f"{self._prefix}nodes", name)
        self._client.hdel(f"{self._prefix}nodes:signed", name)
        if kept is not None:
            row, signature = kept
            self._client.hset(f"{self._prefix}node:{name}", mapping=row)
            self._client.sadd(f"{self._prefix}nodes", name)
            self._client.hset(f"{self._prefix}nodes:signed", name, signature)

    def clear(self) -> None:
        """The next example begins with an empty store."""
        if self._file:
            for ending in ("", "-wal", "-shm"):
                Path(self._file + ending).unlink(missing_ok=True)
        else:
            for key in self._client.scan_iter(f"{self._prefix}*"):
                self._client.delete(key)

    def places(self) -> list[tuple[Any, ...]]:
        """All that can be written over."""
        if self._file:
            tables = [
                name for (name,) in self._run("SELECT name FROM sqlite_master WHERE type = 'table'")
                if name not in {"seen", "leases"} and not name.startswith("sqlite")
            ]  # fmt: skip
            return [
                (table, row[1])
                for table in sorted(tables)
                for row in self._run(f"PRAGMA table_info({table})")
            ]
        found: list[tuple[Any, ...]] = []
        for key in sorted(self._client.scan_iter(f"{self._prefix}[^o]*")):
            kind = self._client.type(key).decode()
            fields = sorted(self._client.hkeys(key)) if kind == "hash" else [b""]
            found += [(kind, key, field) for field in fields]
        return found

    def spoil(self, place: tuple[Any, ...], value: Any) -> None:
        if self._file:
            table, column = place
            with (
                closing(sqlite3.connect(self._file)) as db,
                suppress(sqlite3.Error, OverflowError),
                db,
            ):
                db.execute("PRAGMA foreign_keys = OFF")
                db.execute(f"UPDATE {table} SET {column} = ?", (value,))  # noqa: S608 - the store's own names
            return
        kind, key, field = place
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        with suppress(redis.ResponseError):
            if kind == "hash":
                self._client.hset(key, field, text)
            elif kind == "list":
                self._client.rpush(key, text)
            elif kind == "set":
                self._client.sadd(key, text)
            elif kind == "zset":
                self._client.zadd(key, {text: 1.0})
            else:
                self._client.set(key, text)


#: what a field may be replaced by: other types, huge, deep, long, leading out of a folder, orders to a terminal
HOSTILE: list[Any] = [
    None, -1, 0, 1 << 62, 1e308, "", "null", "true", "[]", "{}", '""', "-7", "1e999", "NaN", '"../../../x"',
    "../../../x", "/etc/passwd", '"\\u001b[2J\\u0000"', "\x1b[2J\n\r", "9" * 5_000, '{"a":' * 3_000 + "1" + "}" * 3_000,
    "[" * 100_000, '"' + "x" * 200_000 + '"', "x" * 200_000, '{"settings": {"DISTRIBUTED_ON_FINISH": "touch ran"}}',
    '{"settings": 3, "signature": 4}', '{"items": "many", "nodes": [3], "batches": {"done": "x"}}',
    '{"nodes": [{"name": 3, "running": "x"}], "outlook": 1}', '["http://a"]', '[{"url": "file:///etc/passwd"}]',
    '{"DISTRIBUTED_START_URLS": "[\\"file:///etc/passwd\\"]", "LOG_FILE": "ran"}', b"\xff\xfe", '"\\ud800"', "acked",
    '"running"', '"frontier"', '[1, {"a": {"b": [1, 2, 3]}}]', '{"hits": -1, "window": 0}', "1e11", "nan",
]  # fmt: skip
WORDS = [
    ["crawls"], ["crawls", "--json"], ["status", "c"], ["status", "c", "--json"], ["report", "c", "-o", "page.html"],
    ["crawls", "show", "c", "--misses"], ["crawls", "show", "c", "--batches"], ["crawls", "show", "c", "--batches", "--urls"],
    ["crawls", "clean", "c", "--dry-run"],
    ["crawls", "clean", "--older-than", "1d", "--dry-run"], ["items", "merge", "c", "-o", "all.jl", "--dry-run"],
    ["frontier", "count", "c"], ["frontier", "list"], ["throttle", "show"], ["watch", "--quiet", "c", "--timeout", "0.1"],
]  # fmt: skip


def fill(store: Store) -> None:
    """A row of each kind."""
    store.add_crawl(MINE)
    seal(store)
    store.open_attempt("c", attempt())
    store.accept("c", 1, 1, report={"items": 2, "stats": {}}, part="c.b1.a1.jl", misses=[], now=2.0)
    add(store, "1", "2", slot="p")
    add(store, "3", slot="q")
    (leased,) = lease_next(store, "c", LESSEE, slots=["p"], seconds=0.0)
    store.ack("c", leased.batch.number, leased.attempt, LESSEE.job, report={"items": 1}, now=2.0)
    lease_next(store, "c", LESSEE, slots=["q"], seconds=0.0)
    add(store, "4", slot="p")
    store.add_misses("c", [Miss(url="http://a/", kind="failed", reason="HTTP 500", batch=1)])
    store.add_misses("c", [Miss(url="http://b/", kind="index", reason="HTTP 500")])
    store.add_shards("c", [Shard(number=0, url="http://a/{}", first_page=0, last_page=3)])
    store.add_workers("c", [WORKER], last=1)
    store.add_sample("c", 3.0, {"done": 1})
    store.count("c", {"sealed": 3, "offsite": 1})
    store.register_producer("c", "filler", 60.0)
    summary = {
        "items": 1,
        "batches": {"done": 1, "total": 2},
        "nodes": [{"name": "one", "running": 1, "per_s": {}}],
    }
    store.update_crawl("c", summary=summary, version="v", beat=2.0, ended=3.0)
    store.update_node("spare", url="http://spare:6800", draining=1.0)
    store.change_rules({"a.com": Rule(hits=1, window=1.0)})
    store.take_permits(
        [PermitRequest(key="a.com", domain="a.com", limit=Limit(hits=1, window=1.0))]
    )
    fill_strategy(store)


def fill_strategy(store: Store) -> None:
    hold(store)
    told = [event("e1", "f1"), event("e2", slot="b"), event("e3")]
    apply(
        store,
        link("l1"),
        link("l2", slot="b", due=9_000.0),
        link("l3"),
        domains={"a": {"n": 1}},
        events=told,
    )
    first, *_ = store.events("c", ALL, 1)
    apply(
        store, dead={first.number: "ValueError"}, new=[batch_of([link("l3")])], counts={"found": 1}
    )
    heads(store, ahead=0)


LOOKS: list[Callable[[Store], object]] = [
    lambda store: store.crawls(), lambda store: store.crawl("c"), lambda store: store.own_crawl("c"),
    lambda store: store.nodes(), lambda store: store.batches("c"), lambda store: store.batch("c", 1),
    lambda store: store.payload("c", 2), lambda store: store.attempts("c"), lambda store: store.expired("c"),
    lambda store: store.misses("c"), lambda store: store.shards("c"), lambda store: store.samples("c"),
    lambda store: store.counts("c"), lambda store: store.backlog("c"),
    lambda store: store.peek("c", "p", 5), lambda store: list(store.fingerprints("c")),
    lambda store: store.rules(), lambda store: store.domain_states(),
    lambda store: lease_next(store, "c", LESSEE, slots=["p"], seconds=9.0, limit=3),
    lambda store: store.take_permits([PermitRequest(key="a.com", domain="a.com", limit=Limit(hits=1, window=1.0))]),
    lambda store: store.update_crawl("c", version="w"), lambda store: store.requeue("c", [1]),
    lambda store: store.batch_fingerprints("c", 2),
    lambda store: store.workers("c"), lambda store: store.sent("c", 3, 1),
    lambda store: store.events("c", ALL, 9), lambda store: store.dead_events("c"), lambda store: store.changes("c"),
    lambda store: store.links("c", [b"l1", b"l2", b"l3"]), lambda store: store.domains("c", ["a"]),
    lambda store: heads(store, now=9_999.0), lambda store: store.strategy_backlog("c"),
    lambda store: hold(store, "you"), heads, lambda store: store.replay("c"),
    lambda store: apply(store, link("l1", 0.1), link("l4"), moved={b"l2": LinkMove(score=0.3)}),
    lambda store: store.events("c", ALL, 9),
    lambda store: store.open_attempt("c", attempt(1, 4)), lambda store: store.drop_batch("c", 4, forget=False),
]  # fmt: skip


QUIET = settings(suppress_health_check=list(HealthCheck), phases=[Phase.generate])


@pytest.mark.timeout(900)  # on a busy machine its many examples take long
@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.full)])
def test_nonsense_in_any_field_of_any_row_is_told_and_does_nothing(
    examples: int,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "scrapy.cfg").write_text(
        "[settings]\ndefault = scrapy.settings.default_settings\n", "utf-8"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SDIST_STORE", where)
    raw = Raw(where)

    @settings(QUIET, max_examples=examples)
    @given(
        spoilt=st.lists(
            st.tuples(st.integers(0, 9_999), st.integers(0, len(HOSTILE) - 1)),
            min_size=1,
            max_size=3,
        ),
        commands=st.lists(st.sampled_from(WORDS), min_size=3, max_size=3),
    )
    def check(spoilt: list[tuple[int, int]], commands: list[list[str]]) -> None:
        raw.clear()
        with closing(open_store(where, key=key_of(folder))) as store:
            fill(store)
            places = raw.places()
            for at, number in spoilt:
                raw.spoil(places[at % len(places)], HOSTILE[number])
            for look in LOOKS:
                with suppress(DistError):
                    look(store)
            for words in commands:
                main._run(words, debug=False)
                said = capsys.readouterr()
                assert "Traceback" not in said.err, words
                assert "has no words for" not in said.err, words
        assert {path.name for path in tmp_path.iterdir()} <= {"project", "folder"}
        assert {path.name for path in folder.iterdir()} <= {
            "scrapy.cfg",
            ".sdist",
            "page.html",
            "all.jl",
        }

    check()


def test_the_longest_address_that_travels_is_read_back_with_any_reason(mine: Store) -> None:
    url, reason = f"http://a/{'x' * 150_000}", f"ValueError: {'y' * 150_000}"
    mine.add_crawl(MINE)
    mine.add_shards("c", [Shard(number=0, url=url)])
    seal(mine)
    mine.open_attempt("c", attempt())
    mine.fail("c", 1, 1, reason=reason, now=2.0, max_attempts=1)
    mine.add_misses("c", [Miss(url=url, kind="failed", reason=reason)])
    assert [miss.url for miss in mine.misses("c")] == [url]
    assert [shard.url for shard in mine.shards("c")] == [url]
    told = [mine.misses("c")[0].reason, mine.batch("c", 1).reason, mine.attempts("c")[0].reason]
    assert [text[:30] for text in told] == [reason[:30]] * 3


@pytest.mark.parametrize("field", ["project", "spider", "version"])
@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "x" * 1000])
def test_a_crawl_with_a_name_that_nobody_could_read_is_not_kept(
    mine: Store, field: str, name: str
) -> None:
    fields: dict[str, Any] = {field: name}
    with pytest.raises(StoreError, match="cannot be kept in the store"):
        mine.add_crawl(replace(MINE, **fields))
    assert mine.crawls() == []
    mine.add_crawl(MINE)
    with pytest.raises(StoreError, match="cannot be kept in the store"):
        mine.update_crawl("c", **fields)
    assert [crawl.foreign for crawl in mine.crawls()] == [""]
