"""Nodes as values: where a Scrapyd is and how to enter it. Rule: a password never shows in any text made here."""

from __future__ import annotations

import base64
import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: written before a url whose host has several addresses, each of which is a node
LOOKUP = "dns+"
#: Scrapyd's own default port, taken for a bare host name; a url with a scheme keeps the port of its scheme.
SCRAPYD_PORT = 6800

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One Scrapyd server. Two nodes with the same url are one, whatever they are called."""

    #: the target's name in scrapy.cfg, or host:port
    name: str = field(compare=False)
    #: normalised base: lower-case scheme and host, no default port, path prefix without a slash at its end, no user
    url: str
    username: str | None = field(default=None, compare=False)
    password: str | None = field(default=None, compare=False, repr=False)
    #: process slots, where known; None = ask or count
    slots: int | None = field(default=None, compare=False)
    #: whether the TLS certificate is checked
    verify: bool = field(default=True, compare=False)
    #: path of a file with the CA certificates to trust instead of the system's
    ca: str | None = field(default=None, compare=False)
    #: the name that the certificate is for, where the url has an address that a name was looked up to
    tls_name: str | None = field(default=None, compare=False)
    #: the url's host is a name to be looked up, and each of its addresses is a node: see `config.addresses_of`
    lookup: bool = field(default=False, compare=False)
    #: project name on this node, where the target has one of its own
    project: str | None = field(default=None, compare=False)
    #: the target's `version` key: GIT, HG or a literal
    version: str | None = field(default=None, compare=False)
    #: of `username` and `password` those whose whole value is a variable that is not set: key -> the variable's name
    unset: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        name: str | None = None,
        username: str | None = None,
        password: str | None = None,
        slots: int | None = None,
        verify: bool = True,
        ca: str | None = None,
        project: str | None = None,
        version: str | None = None,
    ) -> Node:
        """A node from `host:port`, `host` (port 6800) or a url, which may carry a user, a password and a path prefix.

        With `dns+` before it, a url stands for a node at each address of its host.

        Raises:
            ConfigError: the text names no http(s) server; what it shows holds no password.
        """
        lookup = text.strip().startswith(LOOKUP)
        parts, shown = _split(text.strip().removeprefix(LOOKUP))
        if slots is not None and slots < 1:
            raise ConfigError(f"The node {shown!r} has slots = {slots}. It must be a whole number from 1 up.")
        url = _normalised(parts, shown)
        if username is None and parts.username is not None:
            username, password = unquote(parts.username), unquote(parts.password or "")
        if username is not None and ":" in username:
            raise ConfigError(f"The user name for the node {shown!r} has a colon in it, which HTTP cannot carry.")
        return cls(
            name=name or urlsplit(url).netloc,
            url=url,
            username=username or None,
            password=password if username else None,
            slots=slots,
            verify=verify,
            ca=ca,
            lookup=lookup,
            project=project,
            version=version,
        )

    def with_details(self, *, name: str | None, slots: int | None) -> Node:
        """The same node with this name and these slots, where they are given."""
        return replace(self, name=name or self.name, slots=slots or self.slots)

    def at(self, address: str) -> Node:
        """The node at one address of this one's host; its certificate is still checked for the host's name."""
        parts = urlsplit(self.url)
        place = f"[{address}]" if ":" in address else address
        netloc = place if parts.port is None else f"{place}:{parts.port}"
        url = f"{parts.scheme}://{netloc}{parts.path}"
        return replace(self, name=f"{self.name}/{address}", url=url, tls_name=self.host, lookup=False)

    def __str__(self) -> str:
        return f"node {self.name} ({self.url})"

    @property
    def host(self) -> str:
        """Host name or address, without brackets."""
        return urlsplit(self.url).hostname or ""

    @property
    def host_header(self) -> str:
        """What the Host header says: the name that an address was looked up from, where there is one."""
        parts = urlsplit(self.url)
        if self.tls_name is None:
            return parts.netloc
        return self.tls_name if parts.port is None else f"{self.tls_name}:{parts.port}"

    @property
    def login_hint(self) -> str:
        """What to do when it refuses user name and password; empty where none were given."""
        if self.unset:
            what = "; ".join(f"`{key} = ${name}`" for key, name in self.unset.items())
            names = " and ".join(dict.fromkeys(self.unset.values()))
            are, it = ("is", "it") if len(set(self.unset.values())) == 1 else ("are", "them")
            return f"[deploy:{self.name}] has {what}, and {names} {are} not set in this environment: export {it} first."
        if self.username is None:
            return ""
        return "It was entered with a user name and a password: correct them where they are kept."

    @property
    def redacted(self) -> str:
        """The url, with the user if there is one, and three stars for the password."""
        if self.username is None:
            return self.url
        scheme, rest = self.url.split("://", 1)
        return f"{scheme}://{quote(self.username, safe='')}:***@{rest}"

    def url_of(self, path: str) -> str:
        """The address of a page of this node; `path` is relative to the base and already quoted."""
        return f"{self.url}/{path.lstrip('/')}"

    def authorization(self) -> str | None:
        """The value of the Authorization header (HTTP basic, UTF-8), or None."""
        if self.username is None:
            return None
        pair = f"{self.username}:{self.password or ''}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """What is remembered of a node from one look to the next, and across crawls."""

    name: str  #: the target's
    draining: float | None = None  #: since when it gets no new work, in seconds since the epoch
    start_delay: float = 0.0  #: the longest time from accepted to started that was seen, in seconds
    #: when it was seen with jobs waiting and none running: the looks in a row, newest last
    idle_looks: tuple[float, ...] = ()
    #: where it is, for one that a command added to the fleet; without user and password. "" for those of scrapy.cfg
    url: str = ""


def distinct(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Each node once, in order; of several names for one url the first stays."""
    return tuple(dict.fromkeys(nodes))


def _split(text: str) -> tuple[SplitResult, str]:
    """The parts of a node's text, and the text as it may be shown."""
    text = text.strip()
    scheme, sep, rest = text.partition("://")
    # What stands before the last @ may be a password, even where the text is nonsense.
    shown = f"{scheme.rpartition('@')[2]}{sep}{rest.rpartition('@')[2]}" if sep else text.rpartition("@")[2]
    if _UNSAFE.search(text):
        raise ConfigError(_nonsense(shown, "it has a space, a control character or a backslash in it"))
    if not sep:
        scheme, rest = "http", text
        if _is_bare_ipv6(rest):
            rest = f"[{rest}]"
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        port = parts.port
    except ValueError:
        # Not chained: its text quotes what stands where the port should, which may be a password.
        raise ConfigError(_nonsense(shown, "the host or the port cannot be read")) from None
    if parts.netloc.endswith(":") or port == 0:
        raise ConfigError(_nonsense(shown, "the port is missing or zero"))
    if not sep and port is None:
        parts = parts._replace(netloc=f"{parts.netloc}:{SCRAPYD_PORT}")
    return parts, shown


def _normalised(parts: SplitResult, shown: str) -> str:
    if parts.scheme not in _DEFAULT_PORTS:
        raise ConfigError(_nonsense(shown, f"only http and https are known, not {parts.scheme!r}"))
    if parts.query or parts.fragment:
        raise ConfigError(_nonsense(shown, "a base url has neither ? nor #"))
    host = _host(parts.hostname or "", shown)
    port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    if "@" in parts.path:
        raise ConfigError(_nonsense(shown, "a slash in a user name or password is written %2F"))
    path = quote(parts.path, safe="/%:!$&'()*+,;=~-._")
    return f"{parts.scheme}://{host}{port}{path}".rstrip("/")


def _host(host: str, shown: str) -> str:
    """The host as it stands in a url: in brackets if IPv6, in ASCII if it has letters of other alphabets."""
    if not host:
        raise ConfigError(_nonsense(shown, "there is no host"))
    if ":" in host:
        if not _is_bare_ipv6(host):
            raise ConfigError(_nonsense(shown, "the address in brackets is no IPv6 address"))
        return f"[{host}]"
    try:
        plain = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError as e:
        raise ConfigError(_nonsense(shown, "the host name is impossible")) from e
    if "_" in plain:
        # Container networks resolve such names, but Twisted refuses them.
        raise ConfigError(_nonsense(shown, "an underscore is no part of a host name; use an alias or the address"))
    labels = plain.removesuffix(".").split(".")
    if len(plain) > 253 or not all(_HOST_LABEL.match(label) for label in labels):
        raise ConfigError(_nonsense(shown, "the host name is impossible"))
    return plain


def _is_bare_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _nonsense(shown: str, why: str) -> str:
    return (
        f"{shown!r} is not the address of a node: {why}. "
        "Write host:port, as in web1:6800, or a url, as in https://user:password@host:6800/base/."
    )
