"""Peers that break the rules, and certificates: each is its own error, which says whether the job may be accepted."""

import base64
import json
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from rig.badpeer import BadPeer, Connection, Play
from rig.calls import JOB, PASSWORD, SHORT, failure, node_at, says, steps
from rig.memory import peak_memory
from rig.tls import Authority
from urllib3.exceptions import InsecureRequestWarning

from scrapyd_dist.errors import (
    ApiRefused,
    AuthRefused,
    CallRefused,
    ConnectionLost,
    ConnectionRefused,
    ConnectTimeout,
    CutReply,
    HostNotFound,
    NodeError,
    NoReply,
    NotFound,
    NotJson,
    ServerFailed,
    TlsRefused,
)
from scrapyd_dist.nodes import Node
from scrapyd_dist.payload import BATCH_MAX_BYTES
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


def endless(begin: bytes, again: bytes, pause: float = 0.0) -> Play:
    """A play: a reply that is never over."""

    def play(connection: Connection, _: bytes) -> None:
        connection.say(begin)
        while not connection.over:
            connection.say(again)
            connection.pause(pause)

    return play


#: replies in which something other than the body has no end
ENDLESS: dict[str, Play] = {
    "a head that drips": endless(b"HTTP/1.1 200 OK\r\nX: ", b"a", 0.2),
    "100 Continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: " + b"a" * 9000 + b"\r\n"),
    "the size of a chunk": endless(CHUNKED, b"0", 0.2),
    "trailers": endless(CHUNKED + b"1\r\na\r\n0\r\n", b"X: y\r\n" * 1000),
    "trailers that drip": endless(CHUNKED + b"1\r\na\r\n0\r\n", b"X: y\r\n", 0.2),
    "the extension of a chunk": endless(CHUNKED + b"1;", b"x" * 1000),
}
BEGIN, SIZE = (
    b'{"status": "ok", "node_name": "", "pending": 1, "running": 1, "projects": [',
    31 * 1024 * 1024,
)
#: replies that take many times their bytes when they are parsed
HUGE: dict[str, bytes] = {
    "objects": BEGIN + b"{}," * (SIZE // 3),
    "lists": BEGIN + b"[" * 500 + b"]," * (SIZE // 2),
    "texts": BEGIN + b'"a",' * (SIZE // 4),
    "wide characters": BEGIN + b'"' + b"a" * SIZE + "\U0001f600".encode() + b'"]}',
    "one text": BEGIN + b'"' + b"a" * SIZE + b'"]}',
    "no JSON": b"<" * SIZE,
    "more than is taken": BEGIN + b'"' + b"a" * 2 * SIZE,
}
#: what the peer does once the request is there, the error, whether the job may have been accepted
BREAKAGES: dict[str, tuple[Play, type[NodeError], bool]] = {
    "reset": (lambda c, _: c.reset(), ConnectionLost, True),
    "closed without a word": (lambda c, _: None, ConnectionLost, True),
    "hangs": (lambda c, _: c.hang(), NoReply, True),
    "hangs in the head": (
        steps(lambda c: c.say(b"HTTP/1.1 200 OK\r\nContent-Le"), Connection.hang),
        NoReply,
        True,
    ),
    "stalls in the body": (
        steps(lambda c: c.answer(200, b"{", length=99), Connection.hang),
        NoReply,
        True,
    ),
    "stalls before the body": (
        steps(lambda c: c.answer(200, b"", length=99), Connection.hang),
        NoReply,
        True,
    ),
    "cut": (lambda c, _: c.answer(200, b'{"status": "ok"', length=99), CutReply, True),
    "reset in the body": (
        steps(lambda c: c.answer(200, b"{", length=99), lambda c: c.pause(0.3), Connection.reset),
        CutReply,
        True,
    ),
    "cut chunks": (
        lambda c, _: c.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"),
        CutReply,
        True,
    ),
    "no HTTP": (lambda c, _: c.say(b"SSH-2.0-OpenSSH_9.6\r\n" * 9), NotJson, True),
    "HTML": (lambda c, _: c.answer(200, b"<html>Log in", "Content-Type: text/html"), NotJson, True),
    "nothing": (lambda c, _: c.answer(200, b""), NotJson, True),
    "JSON without the field": (says(status="ok"), NotJson, True),
    "redirect": (lambda c, _: c.answer(302, b"", "Location: /elsewhere"), NotJson, True),
    "accepted for later": (says(202, status="ok", jobid="x"), NotJson, True),
    "status error": (says(status="error", message="project 'p' not found"), ApiRefused, False),
    "401": (lambda c, _: c.answer(401, b"<html>Unauthorized"), AuthRefused, False),
    "403": (lambda c, _: c.answer(403, b"no"), AuthRefused, False),
    "404": (lambda c, _: c.answer(404, b"<html>No Such Resource"), NotFound, False),
    "413": (lambda c, _: c.answer(413, b"too large"), CallRefused, False),
    "500": (lambda c, _: c.answer(500, b"oops"), ServerFailed, True),
}


class TestBadPeers:
    @pytest.mark.parametrize("name", BREAKAGES)
    def test_each_breakage_is_its_own_error(
        self, sender: Sender, peer: Callable[..., BadPeer], name: str
    ) -> None:
        play, kind, maybe_accepted = BREAKAGES[name]
        server = peer(play)
        started = time.monotonic()
        error = failure(sender, node_at(server.port), JOB, SHORT if kind is NoReply else 20)
        assert type(error) is kind
        assert error.maybe_accepted is maybe_accepted
        assert len(server.requests) == 1  # nothing is sent twice
        if kind is NoReply:
            assert SHORT * 0.9 < time.monotonic() - started < SHORT * 2 + 5

    @pytest.mark.full
    @pytest.mark.parametrize("name", ENDLESS)
    def test_no_part_of_a_reply_is_read_for_ever(
        self, sender: Sender, peer: Callable[..., BadPeer], name: str
    ) -> None:
        node = node_at(peer(ENDLESS[name]).port)
        before = peak_memory()
        for call in (JOB, api.fetch("logs/a", sink=lambda _: None)):
            started = time.monotonic()
            with pytest.raises(NodeError):
                sender.send(node, call, timeout=0.3)  # type: ignore[misc]  # calls of two types
            assert time.monotonic() - started < 5
        assert peak_memory() - before < 200

    @pytest.mark.full
    @pytest.mark.parametrize("name", HUGE)
    def test_no_reply_takes_more_than_200_mb(
        self, sender: Sender, peer: Callable[..., BadPeer], name: str
    ) -> None:
        node = node_at(peer(lambda c, _: c.answer(200, HUGE[name])).port)
        peak_memory()
        before = peak_memory()
        with nullcontext() if name == "one text" else pytest.raises(NodeError):
            sender.send(node, api.listprojects(), timeout=30)
        assert peak_memory() - before < 200

    @pytest.mark.full
    def test_150_waiting_jobs_of_the_largest_batches_are_listed(
        self, sender: Sender, peer: Callable[..., BadPeer]
    ) -> None:
        batch = base64.b64encode(bytes(range(256)) * (BATCH_MAX_BYTES * 3 // 4 // 256)).decode()

        def play(connection: Connection, _: bytes) -> None:
            connection.say(
                b'HTTP/1.1 200 OK\r\n\r\n{"status": "ok", "running": [], "finished": [], "pending": ['
            )
            for number in range(150):
                row = {
                    "id": f"c.b{number}.a1",
                    "project": "p",
                    "spider": "s",
                    "settings": {"A": "\u20ac" + batch},
                }
                connection.say(json.dumps(row).encode() + (b"," if number < 149 else b"]}"))

        node = node_at(peer(play).port)
        peak_memory()
        before = peak_memory()
        jobs = sender.send(node, api.listjobs(), timeout=60)
        assert [job.id for job in jobs.pending] == [f"c.b{number}.a1" for number in range(150)]
        assert all(job.settings["A"].startswith("\u20acAAEC") for job in jobs.pending)
        assert peak_memory() - before < 50

    @pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
    def test_a_port_that_is_closed(self, sender: Sender, address: str) -> None:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as bound:
            try:
                bound.bind((address, 0))
            except OSError:
                pytest.skip("this machine has no IPv6 loopback")
            place = f"[{address}]" if ":" in address else address
            error = failure(sender, Node.parse(f"{place}:{bound.getsockname()[1]}"), JOB)
        assert type(error) is ConnectionRefused
        assert not error.maybe_accepted
        assert "connection refused" in str(error)

    def test_nobody_accepts(self, sender: Sender) -> None:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(4):  # the queue of the kernel is full then, and further SYNs are dropped
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(listener.getsockname())
            error = failure(sender, node_at(listener.getsockname()[1]), JOB)
        assert type(error) is ConnectTimeout
        assert not error.maybe_accepted

    def test_no_such_host(self, sender: Sender) -> None:
        error = failure(
            sender, Node.parse("nowhere.invalid:6800", username="me", password=PASSWORD), JOB
        )
        assert type(error) is HostNotFound
        assert not error.maybe_accepted

    def test_drops_do_not_renew_the_time_out(
        self, sender: Sender, peer: Callable[..., BadPeer]
    ) -> None:
        def drip(connection: Connection, _: bytes) -> None:
            connection.answer(200, b"", length=1000)
            for _drop in range(100):
                connection.say(b" ")
                connection.pause(0.2)

        started = time.monotonic()
        error = failure(sender, node_at(peer(drip).port), JOB, SHORT)
        assert type(error) is NoReply
        assert time.monotonic() - started < SHORT * 2 + 5

    def test_what_is_sent(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        server = peer(says(status="ok", jobid="c.b1.a1"))
        call = api.schedule(
            "p",
            "s",
            jobid="c.b1.a1",
            version="r1",
            priority=2,
            settings={"A": "1=2&ü", "B": ""},
            args={"c": "d e"},
        )
        assert sender.send(node_at(server.port), call) == "c.b1.a1"
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {line.split(": ")[0].lower(): line.split(": ")[1] for line in lines[1:]}
        assert lines[0] == "POST /base/schedule.json HTTP/1.1"
        assert headers["accept-encoding"] == "identity"
        assert headers["connection"].lower() == "close"
        assert headers["content-type"] == "application/x-www-form-urlencoded"
        assert headers["authorization"] == node_at(1).authorization()
        assert headers["host"] == f"127.0.0.1:{server.port}"
        assert body == (
            b"project=p&spider=s&jobid=c.b1.a1&_version=r1&priority=2.0&setting=A%3D1%3D2%26%C3%BC&setting=B%3D&c=d+e"
        )

    def test_the_environment_decides_nothing(
        self,
        sender: Sender,
        peer: Callable[..., BadPeer],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login other password other\n", "utf-8")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1/")
        server = peer(says(status="ok", projects=[]))
        assert sender.send(Node.parse(f"127.0.0.1:{server.port}"), api.listprojects()) == ()
        assert b"authorization" not in server.requests[0].lower()


#: a project's own request, in a process of ours
THEIRS = "import sys, requests, scrapyd_dist.transports.requests; requests.get(sys.argv[1], verify=False, timeout=20)"


class TestTls:
    def test_a_ca_file_is_trusted(
        self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path)
        server = peer(says(status="ok", projects=["a"]), authority.context())
        node = node_at(server.port, "https", ca=str(authority.file))
        assert sender.send(node, api.listprojects()) == ("a",)

    def test_a_stranger_is_not(
        self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path
    ) -> None:
        server = peer(says(status="ok", projects=[]), Authority(tmp_path).context())
        error = failure(sender, node_at(server.port, "https"), JOB)
        assert type(error) is TlsRefused
        assert not error.maybe_accepted
        assert error.exit_code == 6
        assert not server.requests

    def test_a_certificate_for_another_host(
        self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path)
        server = peer(says(status="ok", projects=[]), authority.context("127.0.0.2"))
        error = failure(sender, node_at(server.port, "https", ca=str(authority.file)), JOB)
        assert type(error) is TlsRefused
        assert not server.requests

    def test_unless_nothing_is_checked(
        self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path
    ) -> None:
        server = peer(says(status="ok", projects=["a"]), Authority(tmp_path).context("127.0.0.2"))
        assert sender.send(node_at(server.port, "https", verify=False), api.listprojects()) == (
            "a",
        )

    def test_nothing_is_said_of_our_own_and_the_project_is_still_warned(
        self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path
    ) -> None:
        server = peer(says(status="ok", projects=["a"]), Authority(tmp_path).context())
        with warnings.catch_warnings(record=True) as ours:
            warnings.simplefilter("always")
            sender.send(node_at(server.port, "https", verify=False), api.listprojects())
        assert [one for one in ours if one.category is InsecureRequestWarning] == []
        theirs = [sys.executable, "-c", THEIRS, f"https://127.0.0.1:{server.port}/"]
        said = subprocess.run(theirs, capture_output=True, text=True, check=True)
        assert "InsecureRequestWarning" in said.stderr

    def test_a_server_without_tls(self, sender: Sender, peer: Callable[..., BadPeer]) -> None:
        server = peer(lambda c, _: c.answer(400, b"plain HTTP here"), listens=False)
        assert type(failure(sender, node_at(server.port, "https"), JOB)) is TlsRefused

    @pytest.mark.parametrize("content", [None, b"no certificate"])
    def test_a_useless_ca_file(
        self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path, content: bytes | None
    ) -> None:
        file = tmp_path / "ca.pem"
        if content is not None:
            file.write_bytes(content)
        server = peer(says(status="ok", projects=[]), Authority(tmp_path).context())
        assert type(failure(sender, node_at(server.port, "https", ca=str(file)), JOB)) is TlsRefused

    def test_an_address_that_was_looked_up_needs_no_tls(
        self, sender: Sender, peer: Callable[..., BadPeer]
    ) -> None:
        server = peer(says(status="ok", projects=["a"]))
        pool = Node.parse(f"dns+http://pool.example:{server.port}/", name="pool")
        assert sender.send(pool.at("127.0.0.1"), api.listprojects()) == ("a",)

    def test_an_address_that_was_looked_up_is_checked_for_the_name(
        self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path)
        server = peer(says(status="ok", projects=["a"]), authority.context("pool.example"))
        pool = Node.parse(
            f"dns+https://pool.example:{server.port}/", name="pool", ca=str(authority.file)
        )
        assert sender.send(pool.at("127.0.0.1"), api.listprojects()) == ("a",)
        assert f"host: pool.example:{server.port}".encode() in server.requests[-1].lower()
        other = Node.parse(
            f"dns+https://other.example:{server.port}/", name="pool", ca=str(authority.file)
        )
        assert type(failure(sender, other.at("127.0.0.1"), JOB)) is TlsRefused
