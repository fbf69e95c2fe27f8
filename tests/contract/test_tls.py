"""Certificates: trusted, strange, of another host, not looked at."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from rig.calls import JOB, failure, node_at, says

from scrapyd_dist import api
from scrapyd_dist.errors import TlsRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rig.badpeer import BadPeer

    from scrapyd_dist.transports import Sender


class _Authority:
    """A self-signed certificate for one address, its own CA."""

    def __init__(self, folder: Path, address: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
        now = dt.datetime.now(dt.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(7).not_valid_before(now - dt.timedelta(days=1))
        builder = builder.not_valid_after(now + dt.timedelta(days=1))
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        builder = builder.add_extension(names, critical=False)
        certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = folder / "ca.pem"
        self.file.write_bytes(certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private = folder / "key.pem"
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.file, private)


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
class TestTls:
    def test_a_ca_file_is_trusted(self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path) -> None:
        authority = _Authority(tmp_path, "127.0.0.1")
        server = peer(says(status="ok", projects=["a"]), authority.context)
        node = node_at(server.port, "https", ca=str(authority.file))
        assert sender.send(node, api.listprojects()) == ("a",)

    def test_a_stranger_is_not(self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path) -> None:
        server = peer(says(status="ok", projects=[]), _Authority(tmp_path, "127.0.0.1").context)
        error = failure(sender, node_at(server.port, "https"), JOB)
        assert type(error) is TlsRefused
        assert not error.maybe_accepted
        assert error.exit_code == 6
        assert not server.requests

    def test_a_certificate_for_another_host(self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path) -> None:
        authority = _Authority(tmp_path, "127.0.0.2")
        server = peer(says(status="ok", projects=[]), authority.context)
        error = failure(sender, node_at(server.port, "https", ca=str(authority.file)), JOB)
        assert type(error) is TlsRefused
        assert not server.requests

    def test_unless_nothing_is_checked(self, sender: Sender, peer: Callable[..., BadPeer], tmp_path: Path) -> None:
        server = peer(says(status="ok", projects=["a"]), _Authority(tmp_path, "127.0.0.2").context)
        assert sender.send(node_at(server.port, "https", verify=False), api.listprojects()) == ("a",)

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
        server = peer(says(status="ok", projects=[]), _Authority(tmp_path / "..", "127.0.0.1").context)
        if content is None:
            (tmp_path / "ca.pem").unlink(missing_ok=True)
        assert type(failure(sender, node_at(server.port, "https", ca=str(file)), JOB)) is TlsRefused
