"""Certificates: trusted, strange, of another host, not looked at."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from rig.badpeer import BadPeer
from rig.calls import JOB, failure, node_at, says
from rig.tls import Authority
from urllib3.exceptions import InsecureRequestWarning

from scrapyd_dist.errors import TlsRefused
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender

#: a project's own request, in a process of ours
THEIRS = "import sys, requests, scrapyd_dist.transports.requests; requests.get(sys.argv[1], verify=False, timeout=20)"


class TestTls:
    def test_a_ca_file_is_trusted(self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        server = peer(says(status="ok", projects=["a"]), authority.context())
        node = node_at(server.port, "https", ca=str(authority.file))
        assert sender.send(node, api.listprojects()) == ("a",)

    def test_a_stranger_is_not(self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path) -> None:
        server = peer(says(status="ok", projects=[]), Authority(tmp_path).context())
        error = failure(sender, node_at(server.port, "https"), JOB)
        assert type(error) is TlsRefused
        assert not error.maybe_accepted
        assert error.exit_code == 6
        assert not server.requests

    def test_a_certificate_for_another_host(self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        server = peer(says(status="ok", projects=[]), authority.context("127.0.0.2"))
        error = failure(sender, node_at(server.port, "https", ca=str(authority.file)), JOB)
        assert type(error) is TlsRefused
        assert not server.requests

    def test_unless_nothing_is_checked(self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path) -> None:
        server = peer(says(status="ok", projects=["a"]), Authority(tmp_path).context("127.0.0.2"))
        assert sender.send(node_at(server.port, "https", verify=False), api.listprojects()) == ("a",)

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

    def test_an_address_that_was_looked_up_is_checked_for_the_name(
        self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path)
        server = peer(says(status="ok", projects=["a"]), authority.context("pool.example"))
        pool = Node.parse(f"dns+https://pool.example:{server.port}/", name="pool", ca=str(authority.file))
        assert sender.send(pool.at("127.0.0.1"), api.listprojects()) == ("a",)
        assert f"host: pool.example:{server.port}".encode() in server.requests[-1].lower()
        other = Node.parse(f"dns+https://other.example:{server.port}/", name="pool", ca=str(authority.file))
        assert type(failure(sender, other.at("127.0.0.1"), JOB)) is TlsRefused
