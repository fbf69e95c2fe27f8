"""What is asked of Scrapyd and how its replies are judged, without a socket."""

import json
import subprocess
import sys
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.errors import ApiRefused, ConfigError, NodeError, NotFound, NotJson, ServerFailed
from scrapyd_dist.nodes import Node
from scrapyd_dist.payload import ARGUMENT_MAX
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.jobs import RESERVED_ARGS
from scrapyd_dist.scrapyd.reply import Reply, shorten_message
from scrapyd_dist.transports.reply_intake import ReplyIntake

WHERE = "node one (http://web1:6800)"


def _reply(body: Any = None, status: int = 200, **headers: str) -> Reply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(where=WHERE, path="x.json", status=status, headers=names, body=content)


def _ok(**values: Any) -> Reply:
    return _reply(
        {"status": "ok", "node_name": "web1", **values}, date="Sun, 06 Nov 1994 08:49:37 GMT"
    )


class TestCalls:
    @pytest.mark.parametrize(
        ("call", "target", "form"),
        [
            (api.daemonstatus(), "daemonstatus.json", None),
            (api.status("j&1", "p"), "status.json?job=j%261&project=p", None),
            (
                api.cancel("p", "j"),
                "cancel.json",
                [("project", "p"), ("job", "j"), ("signal", "INT")],
            ),
            (api.listprojects(), "listprojects.json", None),
            (api.listversions("p ü"), "listversions.json?project=p+%C3%BC", None),
            (api.listspiders("p", "r1"), "listspiders.json?project=p&_version=r1", None),
            (api.listjobs("p"), "listjobs.json?project=p", None),
            (api.delversion("p", "r1"), "delversion.json", [("project", "p"), ("version", "r1")]),
            (api.delproject("p"), "delproject.json", [("project", "p")]),
            (api.fetch("logs/_sdist/a b/c.jl"), "logs/_sdist/a%20b/c.jl", None),
        ],
    )
    def test_what_is_sent(
        self, call: Call[Any], target: str, form: list[tuple[str, str]] | None
    ) -> None:
        assert call.target == target
        assert call.method == ("GET" if form is None else "POST")
        content_type, body = call.body()
        if form is None:
            assert (content_type, body) == (None, None)
        else:
            assert parse_qsl((body or b"").decode(), keep_blank_values=True) == form

    def test_a_job(self) -> None:
        call = api.schedule(
            "p",
            "s",
            jobid="c.b1.a2",
            version="r1",
            priority=1,
            settings={"A": "1=2", "B": "ü\n"},
            args={"batch": ""},
        )
        assert parse_qsl((call.body()[1] or b"").decode(), keep_blank_values=True) == [
            ("project", "p"),
            ("spider", "s"),
            ("jobid", "c.b1.a2"),
            ("_version", "r1"),
            ("priority", "1.0"),
            ("setting", "A=1=2"),
            ("setting", "B=ü\n"),
            ("batch", ""),
        ]

    def test_an_egg(self) -> None:
        kind, body = api.addversion("p", "r1", b"PK\x00\r\n--x").body()
        assert kind is not None
        assert body is not None
        parts = body.split(b"--" + kind.partition("boundary=")[2].encode())
        assert (parts[0], parts[-1]) == (b"", b"--\r\n")
        assert parts[1] == b'\r\nContent-Disposition: form-data; name="project"\r\n\r\np\r\n'
        assert parts[3].endswith(b"application/octet-stream\r\n\r\nPK\x00\r\n--x\r\n")

    @pytest.mark.parametrize(
        ("start", "limit", "wanted"),
        [(None, None, {}), (0, None, {"Range": "bytes=0-"}), (5, None, {"Range": "bytes=5-"}),
         (5, 3, {"Range": "bytes=5-7"}), (None, 3, {"Range": "bytes=0-2"})],
    )  # fmt: skip
    def test_ranges(self, start: int | None, limit: int | None, wanted: dict[str, str]) -> None:
        assert api.fetch("logs/x", start=start, limit=limit).headers == wanted

    def test_the_end_of_a_file_is_asked_for_by_its_place(self) -> None:
        def head(total: int | None) -> api.Chunk:
            return api.Chunk(body=b"x" * min(9, total or 9), start=0, total=total, date=None)

        last = api.tail("logs/x", 9, head(100))
        assert last is not None
        assert last.headers == {"Range": "bytes=91-99"}
        assert [api.tail("logs/x", 9, known) for known in (None, head(9), head(4), head(None))] == [
            None
        ] * 4

    def test_no_secret_of_a_job_is_shown(self) -> None:
        assert "hush" not in repr(
            api.schedule("p", "s", jobid="j", settings={"KEY": "hush"}, args={"a": "hush"})
        )
        assert "hush" not in repr(api.addversion("p", "r", b"hush"))


class TestJobsThatWouldBeLost:
    @pytest.mark.parametrize(
        "jobid", ["", "a/b", "..", "a..b", ".hidden", "a b", "a\n", "ü", "x" * 201]
    )
    def test_an_id_that_is_no_file_name(self, jobid: str) -> None:
        with pytest.raises(ConfigError, match="job id"):
            api.schedule("p", "s", jobid=jobid)

    @pytest.mark.parametrize("name", sorted(RESERVED_ARGS))
    def test_an_argument_of_scrapyds_own(self, name: str) -> None:
        with pytest.raises(ConfigError, match=name):
            api.schedule("p", "s", jobid="j", args={name: "1"})

    @pytest.mark.parametrize("spider", ["", "shop/books", "..", "a\0", "-v", "ü" * 128])
    def test_a_spider_whose_log_has_no_folder_or_that_is_no_word(self, spider: str) -> None:
        with pytest.raises(ConfigError, match="cannot start the spider"):
            api.schedule("p", spider, jobid="j")

    @pytest.mark.parametrize(
        "values",
        [{"": "1"}, {"a=b": "1"}, {"-dash": "x"}, {"a": "\0"}, {"a\0": ""}, {"a": "\ud800"}],
    )
    def test_what_no_process_can_be_given(self, values: dict[str, str]) -> None:
        with pytest.raises(ConfigError):
            api.schedule("p", "s", jobid="j", settings=values)
        with pytest.raises(ConfigError):
            api.schedule("p", "s", jobid="j", args=values)

    def test_the_limit_is_exact_and_in_bytes(self) -> None:
        longest = "ü" * ((ARGUMENT_MAX - 2) // 2) + "x"
        assert len(f"A={longest}".encode()) == ARGUMENT_MAX
        api.schedule("p", "s", jobid="j", settings={"A": longest})
        with pytest.raises(ConfigError, match="bytes") as caught:
            api.schedule("p", "s", jobid="j", settings={"A": longest + "x"})
        assert longest[:50] not in str(caught.value)

    def test_all_arguments_together_have_a_limit(self) -> None:
        many = {f"A{number}": "x" * 100_000 for number in range(18)}
        api.schedule("p", "s", jobid="j", settings=many)
        with pytest.raises(ConfigError, match="together"):
            api.schedule("p", "s", jobid="j", settings=many, args={"b": "x" * 100_000})


class TestReplies:
    def test_load(self) -> None:
        date = datetime(1994, 11, 6, 8, 49, 37, tzinfo=timezone.utc)
        load = api.daemonstatus().read(_ok(pending=1, running=2, finished=3))
        assert load == api.Load(pending=1, running=2, finished=3, node_name="web1", date=date)

    @pytest.mark.parametrize("date", ["", "yesterday", "Sun, 99 Nov 1994 08:49:37 GMT"])
    def test_a_clock_that_makes_no_sense_is_no_clock(self, date: str) -> None:
        assert _reply({}, date=date).date is None

    @pytest.mark.parametrize(("word", "state"), [("pending", api.JobState.PENDING), (None, None)])
    def test_states(self, word: str | None, state: api.JobState | None) -> None:
        assert api.status("j").read(_ok(currstate=word)) is state
        assert api.cancel("p", "j").read(_ok(prevstate=word)) is state

    def test_the_job_list(self) -> None:
        ids = {"project": "p", "spider": "s"}
        jobs = api.listjobs().read(
            _ok(
                pending=[{"id": "a", "version": None, "settings": {"X": "1"}, "args": {"n": 2}, **ids}],
                running=[{"id": "b", "pid": 7, "start_time": "2026-01-02 03:04:05", "log_url": None, **ids}],
                finished=[
                    {"id": "c", "start_time": "2026-01-02 03:04:05.500000", "end_time": "2026-01-02 03:04:06",
                     "log_url": "/logs/p/s/c.log", **ids}
                ],
            )
        )  # fmt: skip
        (pending,), (running,), (finished,) = jobs.pending, jobs.running, jobs.finished
        assert (pending.id, pending.version, pending.settings, pending.args) == (
            "a",
            None,
            {"X": "1"},
            {"n": "2"},
        )
        # Scrapyd tells no zone
        assert (running.id, running.pid, running.start_time) == (
            "b",
            7,
            datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - nodes name none
        )
        assert (finished.state, finished.log_url) == (api.JobState.FINISHED, "/logs/p/s/c.log")
        assert finished.start_time == datetime(2026, 1, 2, 3, 4, 5, 500_000)  # noqa: DTZ001 - local, as Scrapyd has it

    @pytest.mark.parametrize(
        ("call", "values"),
        [
            (api.daemonstatus(), {"pending": True, "running": 0, "finished": 0}),
            (api.daemonstatus(), {"pending": "1", "running": 0, "finished": 0}),
            (api.status("j"), {}),
            (api.status("j"), {"currstate": "confused"}),
            (api.status("j"), {"currstate": 1}),
            (api.listversions("p"), {"versions": "r1"}),
            (api.listversions("p"), {"versions": [1]}),
            (api.listjobs(), {"pending": [], "running": [], "finished": [7]}),
            (api.listjobs(), {"pending": [], "finished": [], "running": [{"id": "a", "project": "p", "spider": "s"}]}),
            (api.listjobs(), {"pending": [], "finished": [],
                              "running": [{"id": "a", "project": "p", "spider": "s", "start_time": "now"}]}),
        ],
    )  # fmt: skip
    def test_the_wrong_shape_is_no_reply_of_scrapyd(
        self, call: Call[Any], values: dict[str, Any]
    ) -> None:
        with pytest.raises(NotJson, match="is missing or of the wrong kind"):
            call.read(_ok(**values))

    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (_reply({"status": "error"}), ApiRefused),
            (_reply({"status": "fine"}), NotJson),
            (_reply([1]), NotJson),
            (_reply(b"\xff\xfe"), NotJson),
            (_reply(b"[" * 100_000), NotJson),
            (_reply({"status": "error", "message": "no"}, 404), NotFound),
            (_reply(b"", 504), ServerFailed),
        ],
    )
    def test_one_door(self, reply: Reply, kind: type[NodeError]) -> None:
        with pytest.raises(kind, match=r"^node one") as caught:
            api.delproject("p").read(reply)
        assert type(caught.value) is kind
        assert "x.json" in str(caught.value)

    def test_a_node_in_debug_mode_refuses_by_traceback(self) -> None:
        text = b"Traceback (most recent call last):\n  File\ntwisted.web.error.Error: 200 project 'p' not found\n"
        with pytest.raises(ApiRefused) as caught:
            api.listspiders("p").read(_reply(text))
        assert caught.value.scrapyd_message == "twisted.web.error.Error: 200 project 'p' not found"

    @given(st.binary(max_size=300), st.integers(100, 599))
    def test_nothing_gets_through_the_door_but_our_errors(self, body: bytes, status: int) -> None:
        for call in (api.daemonstatus(), api.listjobs(), api.delproject("p")):
            with pytest.raises(NodeError):
                call.read(_reply(body, status))

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))  # fmt: skip
    def test_nor_with_json(self, value: Any) -> None:
        for call in (api.daemonstatus(), api.listjobs(), api.listspiders("p"), api.status("j")):
            with pytest.raises(NodeError):
                call.read(_ok(pending=value, running=value, spiders=[value, 1], currstate=[value]))


class TestSaid:
    @pytest.mark.parametrize(
        ("message", "line"),
        [
            ("project 'p' not found", "project 'p' not found"),
            (
                "RunnerError: Traceback (most recent call last):\n  File\nImportError: x\n\n",
                "RunnerError: ImportError: x",
            ),
            (
                "RunnerError: /a.py:6: UserWarning: old\n  import\nTraceback (most recent call last):\n  X\nE: x",
                "RunnerError: E: x",
            ),
            ("first\nsecond\nthird", "first … third"),
            (" \n ", "no reason given"),
        ],
    )
    def test_it_is_one_line(self, message: str, line: str) -> None:
        assert shorten_message(message) == line

    @given(st.text())
    def test_and_a_short_one(self, message: str) -> None:
        assert len(shorten_message(message)) < 310
        assert len(shorten_message(message).splitlines()) == 1


class TestRawFiles:
    def test_a_file_that_became_shorter(self) -> None:
        chunk = api.fetch("logs/x", start=10).read(_reply(b"", 416, content_range="bytes */4"))
        assert chunk == api.Chunk(body=b"", start=10, total=4, date=None)

    @pytest.mark.parametrize("content_range", ["bytes 9-12/13", "", "lines 10-12/13", "bytes -/-"])
    def test_another_piece(self, content_range: str) -> None:
        with pytest.raises(NotJson):
            api.fetch("logs/x", start=10).read(_reply(b"abc", 206, content_range=content_range))

    @given(st.binary(max_size=60), st.integers(0, 70), st.lists(st.integers(1, 9), max_size=20))
    def test_a_server_without_ranges_gives_the_same(
        self, content: bytes, start: int, cuts: list[int]
    ) -> None:
        got = bytearray()
        headers = [("Content-Length", str(len(content)))]
        intake = ReplyIntake(NODE, api.fetch("logs/x", start=start, sink=got.extend), 200, headers)
        for piece in _cut(content, cuts):
            intake.feed(piece)
        intake.done()
        assert bytes(got) == content[start:]


NODE = Node.parse("web1:6800", name="one", username="me", password="hush")


def _cut(content: bytes, cuts: list[int]) -> list[bytes]:
    pieces = []
    for size in cuts:
        pieces.append(content[:size])
        content = content[size:]
    return [*pieces, content]


class TestIntake:
    def test_chunked_replies_announce_nothing(self) -> None:
        headers = [("Content-Length", "99"), ("Transfer-Encoding", "chunked")]
        intake = ReplyIntake(NODE, api.listprojects(), 200, headers)
        intake.feed(b'{"status": "ok", "projects": []}')
        assert intake.done() == ()

    def test_an_endless_reply_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("scrapyd_dist.transports.reply_intake.REPLY_BYTES", 10)
        intake = ReplyIntake(NODE, api.listprojects(), 200, [])
        intake.feed(b" " * 10)
        with pytest.raises(NotJson, match="longer than 10 bytes"):
            intake.feed(b" ")


class TestErrors:
    @pytest.mark.parametrize("kind", NodeError.__subclasses__())
    def test_each_has_a_paragraph(self, kind: type[NodeError]) -> None:
        text = str(kind.at(WHERE, "because."))
        assert text.startswith(f"{WHERE}: {kind.short}: because.")
        assert ".." not in text
        assert isinstance(kind.at(WHERE), kind)

    def test_the_safe_ones_are_these(self) -> None:
        assert {kind.__name__ for kind in NodeError.__subclasses__() if not kind.maybe_accepted} == {
            "ConnectionRefused", "HostNotFound", "ConnectTimeout", "TlsRefused",
            "CallRefused", "AuthRefused", "NotFound", "ApiRefused",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("scrapyd_dist.scrapyd.api, scrapyd_dist.config, scrapyd_dist.transports",
         {"requests", "treq", "twisted", "scrapy"}),
        ("scrapyd_dist.transports.requests", {"treq", "twisted", "scrapy"}),
        ("scrapyd_dist.transports.treq", {"requests", "scrapy", "twisted.internet.reactor"}),
    ],
)  # fmt: skip
def test_a_module_loads_no_more_than_it_needs(modules: str, absent: set[str]) -> None:
    code = f"import {modules}, sys, json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not absent & set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("status", "body", "served"),
    [
        (200, b"<html>a listing</html>", True),
        (404, b"<p>File not found.</p>", True),  # the folder is made with the first job
        (
            404,
            b"<p>Sorry. No luck finding that resource.</p>",
            False,
        ),  # Twisted, when there is no such folder
        (404, b"<p>No such child resource.</p>", False),  # and an older one
        (404, b"nginx", False),
    ],
)
def test_whether_a_folder_is_served(status: int, body: bytes, served: bool) -> None:
    for call in (api.serves("logs"), api.serves("items")):
        assert call.read(_reply(body, status, content_type="text/html")) is served
