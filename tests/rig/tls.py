"""TLS and base paths before a real node: a certificate authority made on the spot, and a proxy that serves with it."""

import datetime as dt
import ipaddress
import ssl
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .badpeer import reply
from .nodes import ScrapydNode
from .proxy import Proxy

_DAY = dt.timedelta(days=1)
_NOT_FOUND = reply(404, b"<html><h1>Not here</h1></html>", "Content-Type: text/html")


class Authority:
    """A certificate authority that only clients with its `file` trust: its certificate, for the `ca` of a target."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _named("an authority for tests")
        certificate = self._certificate(self._name, self._key.public_key(), [], is_ca=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, *hosts: str) -> ssl.SSLContext:
        """What a server needs that is one of these hosts (addresses or names); default: this machine's loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_alternative(host) for host in hosts or ("127.0.0.1", "::1", "localhost")]
        return self._serve(
            self._certificate(_named("a server"), key.public_key(), names, is_ca=False), key
        )

    def self_signed(self) -> ssl.SSLContext:
        """What a server needs that vouches for itself: it has the authority's name and key, and must not be trusted."""
        names = [_alternative("127.0.0.1")]
        return self._serve(
            self._certificate(self._name, self._key.public_key(), names, is_ca=False), self._key
        )

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        names: list[x509.GeneralName],
        *,
        is_ca: bool,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.timezone.utc)
        number = x509.random_serial_number()
        builder = x509.CertificateBuilder(self._name, subject, key, number, now - _DAY, now + _DAY)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=is_ca, path_length=None), critical=True
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _serve(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> ssl.SSLContext:
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        file = self._folder / f"server{certificate.serial_number}.pem"
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        file.write_bytes(private + certificate.public_bytes(pem))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


class Front(Proxy):
    """A reverse proxy as it is often put before Scrapyd: with TLS, below a base path, or both.

    Pages that are not below the `base`, such as `/scrapyd/one`, are not found; the file `certificates` vouches for the
    TLS context.
    """

    def __init__(
        self,
        node: ScrapydNode,
        context: ssl.SSLContext | None = None,
        base: str = "",
        certificates: Path | None = None,
    ) -> None:
        self._base, self._certificates = base.rstrip("/"), certificates
        super().__init__(node, context)
        self.url = f"{self.url.rstrip('/')}{self._base}/"

    def section(self, project: str, name: str) -> str:
        """Its section of scrapy.cfg, with the node's user name and password."""
        node = self.node
        lines = (
            [f"username = {node.username}", f"password = {node.password}"] if node.username else []
        )
        lines += [f"ca = {self._certificates}"] if self._certificates else []
        return super().section(project, name) + "".join(f"{line}\n" for line in lines)

    def _ask(self, request: bytes) -> bytes:
        method, path, rest = request.split(b" ", 2)
        base = self._base.encode()
        if not path.startswith(base + b"/"):
            return _NOT_FOUND
        return super()._ask(b" ".join((method, path.removeprefix(base), rest)))
