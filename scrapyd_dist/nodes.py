"""Defines a node: address, credentials and options of a Scrapyd server.

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
#: Scrapyd's default port, for a bare host name; a url with a scheme has the scheme's default port
SCRAPYD_PORT = 6800
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")
#: what no name of a project has in it
_NO_PROJECT = re.compile("[/\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: most bytes of a project's name
_NAME_MAX = 200
#: characters of a text that make it an address rather than a name
_ADDRESS_MARKS = frozenset(".:/")
#: characters of a text that make it a pattern, which is no address
_PATTERN_MARKS = frozenset("*?")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A Scrapyd server. Nodes with the same url are equal."""

    name: str = field(compare=False)  #: the target's name in scrapy.cfg, or host:port
    #: normalised base url: lower-case scheme and host, no default port, no user, no final slash
    url: str
    username: str | None = field(default=None, compare=False)
    password: str | None = field(default=None, compare=False, repr=False)
    #: number of process slots; None if unknown
    slots: int | None = field(default=None, compare=False)
    verify: bool = field(default=True, compare=False)  #: whether the TLS certificate is checked
    #: path of a file with CA certificates to trust instead of the system's
    ca: str | None = field(default=None, compare=False)
    #: the host name to check the certificate for, if the url has an address that was looked up
    tls_name: str | None = field(default=None, compare=False)
    #: whether the host is to be looked up, with one node per address: see `config.addresses_of`
    lookup: bool = field(default=False, compare=False)
    #: whether `sdist nodes up` has started it here
    local: bool = field(default=False, compare=False)
    #: project name on this node, if the target sets one
    project: str | None = field(default=None, compare=False)
    #: the target's `version` key: GIT, HG or a literal
    version: str | None = field(default=None, compare=False)
    #: credentials whose value is a variable that is not set: `username` or `password` -> the
    #: variable's name
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
        """Parse `host:port`, `host` (port 6800) or a url, which may have credentials and a path.

        A url with the prefix `dns+` stands for one node per address of its host. `options` are
        further fields.

        Raises:
            ConfigError: the text is not the address of an http(s) server; the message has no
                password.
        """
        lookup = text.strip().startswith(LOOKUP)
        parts, shown = _split(text.strip().removeprefix(LOOKUP))
        url = _normalise(parts, shown)
        if username is None and parts.username is not None:
            username = unquote(parts.username)
            password = unquote(parts.password or "")
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
        """Return the node at one address of this node's host.

        Its certificate is checked for the host's name.
        """
        parts = urlsplit(self.url)
        netloc = f"[{address}]" if ":" in address else address
        if parts.port is not None:
            netloc += f":{parts.port}"
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
        if parts.port is None:
            return self.tls_name
        return f"{self.tls_name}:{parts.port}"

    @property
    def login_hint(self) -> str:
        """What to do if the node refuses its credentials; empty if it has none."""
        if self.unset:
            return self._describe_unset_variables()
        if self.username is None:
            return ""
        return (
            "Its user name or password is wrong: correct them in scrapy.cfg"
            f" ([deploy:{self.name}]), in the variable that stands there, in ~/.netrc, or in the"
            " address that was given."
        )

    def _describe_unset_variables(self) -> str:
        lines = "; ".join(f"`{key} = ${variable}`" for key, variable in self.unset.items())
        variables = list(dict.fromkeys(self.unset.values()))
        verb = "is"
        pronoun = "it"
        if len(variables) > 1:
            verb = "are"
            pronoun = "them"
        return (
            f"[deploy:{self.name}] has {lines}, and {' and '.join(variables)} {verb} not set in"
            f" this environment: export {pronoun} first."
        )

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
    #: when draining began, seconds since the epoch; None if it is not draining
    draining: float | None = None
    start_delay: float = 0.0  #: longest observed time from posting a job to its start, in seconds
    #: times of the latest consecutive looks that found jobs waiting and none running, newest last
    idle_looks: tuple[float, ...] = ()
    #: url, without credentials, of a node that a command added to the fleet; "" for a node of
    #: scrapy.cfg
    url: str = ""
    #: when `url` was set last, seconds since the epoch; grows with each change
    changed: float = 0.0


def check_project(name: str) -> str:
    """Return the name, or raise `ConfigError` if no project can be called so.

    Nodes name folders by it.
    """
    is_too_long = len(name.encode("utf-8", "replace")) > _NAME_MAX
    if name in {"", ".", ".."} or _NO_PROJECT.search(name) or is_too_long:
        raise ConfigError(
            f"{name[:100]!r} cannot be the name of a project: it is a folder's name on the nodes,"
            " so it has no line feed or other control character and no /, and at most"
            f" {_NAME_MAX} bytes. The name is BOT_NAME of the settings, or `project` in [deploy] of"
            " scrapy.cfg."
        )
    return name


def is_address(text: str) -> bool:
    """Return whether a text can be a node's address, such as `web1:6800`.

    A target may be called so all the same.
    """
    if "://" in text or text == "localhost":
        return True
    return not _ADDRESS_MARKS.isdisjoint(text) and _PATTERN_MARKS.isdisjoint(text)


def distinct_nodes(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Return the nodes with distinct urls, in order; the first of several names is kept."""
    return tuple(dict.fromkeys(nodes))


def nodes_by_url(nodes: Iterable[Node]) -> dict[str, Node]:
    """Return the nodes by their base addresses."""
    return {node.url: node for node in nodes}


class PresentNodes:
    """Finds nodes as they are now by what was written down of them.

    A local node keeps its name and its folder, and gets another port whenever it is started.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._by_url: dict[str, Node] = {}
        self._local: dict[str, Node] = {}  #: by name; of several the last
        for node in nodes:
            self._by_url[node.url] = node
            if node.local:
                self._local[node.name] = node

    def find(self, name: str, url: str) -> Node | None:
        """Return the node that was called so and was at this base address; None if it is gone."""
        if name in self._local:
            return self._local[name]
        found = self._by_url.get(url)
        if found is not None and found.local and name:
            return None  # another local node has got the port
        return found


def names_of(nodes: Iterable[Node], separator: str = ", ") -> str:
    """Return their names as a message lists them."""
    return separator.join(_quote_name(node.name) for node in nodes)


def _quote_name(name: str) -> str:
    if " " in name:
        return repr(name)
    return name


def group_names(found: Iterable[tuple[T, Node]]) -> dict[T, tuple[str, ...]]:
    """Return what is found, and the names of the nodes where it is."""
    names: dict[T, tuple[str, ...]] = {}
    for key, node in found:
        names[key] = (*names.get(key, ()), node.name)
    return names


def _split(text: str) -> tuple[SplitResult, str]:
    """Split the text of a node; returns the url parts, and the text without a password."""
    scheme, separator, rest = text.partition("://")
    shown = _hide_credentials(text)
    if _UNSAFE.search(text):
        raise ConfigError(
            _describe_nonsense(shown, "it has a space, a control character or a backslash in it")
        )
    if not separator:
        scheme = "http"
        rest = f"[{text}]" if _is_bare_ipv6(text) else text
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        port = parts.port
    except ValueError:
        # Not chained: its message quotes the text in the port's place, which may be a password.
        raise ConfigError(
            _describe_nonsense(shown, "the host or the port cannot be read")
        ) from None
    if parts.netloc.endswith(":") or port == 0:
        raise ConfigError(_describe_nonsense(shown, "the port is missing or zero"))
    if not separator and port is None:
        parts = parts._replace(netloc=f"{parts.netloc}:{SCRAPYD_PORT}")
    return parts, shown


def _hide_credentials(text: str) -> str:
    # Anything before the last @ may be a password, even in an invalid text.
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text.rpartition("@")[2]
    return f"{scheme.rpartition('@')[2]}{separator}{rest.rpartition('@')[2]}"


def _normalise(parts: SplitResult, shown: str) -> str:
    if parts.scheme not in _DEFAULT_PORTS:
        raise ConfigError(
            _describe_nonsense(shown, f"only http and https are known, not {parts.scheme!r}")
        )
    if parts.query or parts.fragment:
        raise ConfigError(_describe_nonsense(shown, "a base url has neither ? nor #"))
    host = _normalise_host(parts.hostname or "", shown)
    port = ""
    if parts.port not in (None, _DEFAULT_PORTS[parts.scheme]):
        port = f":{parts.port}"
    if "@" in parts.path:
        raise ConfigError(
            _describe_nonsense(shown, "a slash in a user name or password is written %2F")
        )
    path = quote(parts.path, safe="/%:!$&'()*+,;=~-._")
    return f"{parts.scheme}://{host}{port}{path}".rstrip("/")


def _normalise_host(host: str, shown: str) -> str:
    """Return the host as written in a url: IPv6 in brackets, international names IDNA-encoded."""
    if not host:
        raise ConfigError(_describe_nonsense(shown, "there is no host"))
    if ":" in host:
        if not _is_bare_ipv6(host):
            raise ConfigError(
                _describe_nonsense(shown, "the address in brackets is no IPv6 address")
            )
        return f"[{host}]"
    try:
        ascii_host = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError as e:
        raise ConfigError(_describe_nonsense(shown, "the host name is impossible")) from e
    if "_" in ascii_host:
        # Container networks resolve such names, but Twisted rejects them.
        raise ConfigError(
            _describe_nonsense(
                shown, "an underscore is no part of a host name; use an alias or the address"
            )
        )
    labels = ascii_host.removesuffix(".").split(".")
    if len(ascii_host) > 253 or not all(map(_HOST_LABEL.match, labels)):
        raise ConfigError(_describe_nonsense(shown, "the host name is impossible"))
    return ascii_host


def _is_bare_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _describe_nonsense(shown: str, why: str) -> str:
    return (
        f"{shown!r} is not the address of a node: {why}. Write host:port, as in web1:6800, or a"
        " url, as in https://user:password@host:6800/base/."
    )
