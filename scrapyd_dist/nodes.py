"""Nodes as values: address, credentials and options of a Scrapyd server.

Invariant: no text made here contains a password.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit

from scrapyd_dist.errors import ConfigError

T = TypeVar("T")
#: prefix of a url whose host is looked up, with one node per address
LOOKUP = "dns+"
#: Scrapyd's default port, used for a bare host name; a url with a scheme has the scheme's default port.
SCRAPYD_PORT = 6800

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")

#: what no name of a project has in it, and most bytes of one
_NO_PROJECT = re.compile("[/\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NAME_MAX = 200


@dataclass(frozen=True, kw_only=True)
class Node:
    """A Scrapyd server. Nodes with the same url are equal."""

    name: str = field(compare=False)  #: the target's name in scrapy.cfg, or host:port
    url: str  #: normalised base url: lower-case scheme and host, no default port, no user, no slash at the end
    username: str | None = field(default=None, compare=False)
    password: str | None = field(default=None, compare=False, repr=False)
    slots: int | None = field(
        default=None, compare=False
    )  #: number of process slots; None if unknown
    verify: bool = field(default=True, compare=False)  #: whether the TLS certificate is checked
    #: path of a file with CA certificates to trust instead of the system's
    ca: str | None = field(default=None, compare=False)
    #: the host name to check the certificate for, if the url has an address that it was looked up to
    tls_name: str | None = field(default=None, compare=False)
    #: whether the host is to be looked up, with one node per address: see `config.addresses_of`
    lookup: bool = field(default=False, compare=False)
    project: str | None = field(
        default=None, compare=False
    )  #: project name on this node, if the target sets one
    version: str | None = field(
        default=None, compare=False
    )  #: the target's `version` key: GIT, HG or a literal
    #: credentials whose value is a variable that is not set: `username` or `password` -> the variable's name
    unset: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        name: str | None = None,
        username: str | None = None,
        password: str | None = None,
        **options: Any,
    ) -> Node:
        """Parse `host:port`, `host` (port 6800) or a url, which may have a user, a password and a path prefix.

        A url with the prefix `dns+` stands for one node per address of its host. `options` are further fields.
        ConfigError if the text is not the address of an http(s) server; the message has no password.
        """
        lookup = text.strip().startswith(LOOKUP)
        parts, shown = _split(text.strip().removeprefix(LOOKUP))
        url = _normalised(parts, shown)
        if username is None and parts.username is not None:
            username, password = unquote(parts.username), unquote(parts.password or "")
        if username is not None and ":" in username:
            raise ConfigError(
                f"The user name for the node {shown!r} has a colon in it, which HTTP cannot carry."
            )
        return cls(
            name=name or urlsplit(url).netloc,
            url=url,
            username=username or None,
            password=password if username else None,
            lookup=lookup,
            **options,
        )

    def at(self, address: str) -> Node:
        """Return the node at one address of this node's host; its certificate is checked for the host's name."""
        parts = urlsplit(self.url)
        place = f"[{address}]" if ":" in address else address
        netloc = place if parts.port is None else f"{place}:{parts.port}"
        url = f"{parts.scheme}://{netloc}{parts.path}"
        return replace(
            self, name=f"{self.name}/{address}", url=url, tls_name=self.host, lookup=False
        )

    def __str__(self) -> str:
        return f"node {self.name} ({self.url})"

    @property
    def host(self) -> str:
        """The host name or address, without brackets."""
        return urlsplit(self.url).hostname or ""

    @property
    def host_header(self) -> str:
        """The value of the Host header, with the name that an address was looked up from."""
        parts = urlsplit(self.url)
        if self.tls_name is None:
            return parts.netloc
        return self.tls_name if parts.port is None else f"{self.tls_name}:{parts.port}"

    @property
    def login_hint(self) -> str:
        """What to do if the node refuses its credentials; empty if it has none."""
        if self.unset:
            what = "; ".join(f"`{key} = ${name}`" for key, name in self.unset.items())
            names = " and ".join(dict.fromkeys(self.unset.values()))
            are, it = ("is", "it") if len(set(self.unset.values())) == 1 else ("are", "them")
            return f"[deploy:{self.name}] has {what}, and {names} {are} not set in this environment: export {it} first."
        if self.username is None:
            return ""
        return "It was entered with a user name and a password: correct them where they are kept."

    def url_of(self, path: str) -> str:
        """Return the url of a page; `path` is relative to the base and quoted."""
        return f"{self.url}/{path.lstrip('/')}"

    def authorization(self) -> str | None:
        """Return the value of the Authorization header (HTTP basic, UTF-8), or None."""
        if self.username is None:
            return None
        pair = f"{self.username}:{self.password or ''}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """State of a node that is stored between looks and crawls."""

    name: str  #: the target's name
    draining: float | None = (
        None  #: when draining began, seconds since the epoch; None if it is not draining
    )
    start_delay: float = 0.0  #: longest observed time from posting a job to its start, in seconds
    #: times of the latest consecutive looks that found jobs waiting and none running, newest last
    idle_looks: tuple[float, ...] = ()
    url: str = ""  #: url, without credentials, of a node that a command added to the fleet; "" for a node of scrapy.cfg
    changed: float = (
        0.0  #: when `url` was set last, seconds since the epoch; grows with each change
    )


def check_project(name: str) -> str:
    """Return the name, or raise `ConfigError` if no project can be called so: nodes name folders by it."""
    if (
        not name
        or name in {".", ".."}
        or _NO_PROJECT.search(name)
        or len(name.encode("utf-8", "replace")) > _NAME_MAX
    ):
        raise ConfigError(
            f"{name[:100]!r} cannot be the name of a project: it is a folder's name on the nodes, so it has no line"
            f" feed or other control character and no /, and at most {_NAME_MAX} bytes. The name is BOT_NAME of the"
            " settings, or `project` in [deploy] of scrapy.cfg."
        )
    return name


def is_address(text: str) -> bool:
    """Return whether a text can be a node's address, such as `web1:6800`; a target may be called so all the same."""
    marked = any(mark in text for mark in ".:/") and not any(mark in text for mark in "*?")
    return "://" in text or text == "localhost" or marked


def distinct(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return the nodes with distinct urls, in order; of several names for a url, the first is kept."""
    return tuple(dict.fromkeys(nodes))


def names_of(nodes: Iterable[Node], separator: str = ", ") -> str:
    """Return their names as a message lists them."""
    return separator.join(repr(node.name) if " " in node.name else node.name for node in nodes)


def names_by(found: Iterable[tuple[T, Node]]) -> dict[T, tuple[str, ...]]:
    """Return what is found, and the names of the nodes where it is."""
    names: dict[T, tuple[str, ...]] = {}
    for key, node in found:
        names[key] = (*names.get(key, ()), node.name)
    return names


def _split(text: str) -> tuple[SplitResult, str]:
    """Split the text of a node; returns the url parts, and the text without a password."""
    scheme, sep, rest = text.partition("://")
    # Anything before the last @ may be a password, even in an invalid text.
    shown = (
        f"{scheme.rpartition('@')[2]}{sep}{rest.rpartition('@')[2]}"
        if sep
        else text.rpartition("@")[2]
    )
    if _UNSAFE.search(text):
        raise ConfigError(
            _nonsense(shown, "it has a space, a control character or a backslash in it")
        )
    if not sep:
        scheme, rest = "http", text
        if _is_bare_ipv6(rest):
            rest = f"[{rest}]"
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        port = parts.port
    except ValueError:
        # Not chained: its message quotes the text in the port's place, which may be a password.
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
    """Return the host as written in a url: IPv6 in brackets, international names IDNA-encoded."""
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
        # Container networks resolve such names, but Twisted rejects them.
        raise ConfigError(
            _nonsense(shown, "an underscore is no part of a host name; use an alias or the address")
        )
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
