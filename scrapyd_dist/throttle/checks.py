"""Validates domains and limits from the command line or a rules file.

Invariant: a domain that would match no request is refused, with a suggestion of the one that was meant.
"""

from __future__ import annotations

import ipaddress
import math
import re

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.slotting import is_public_suffix, site_of
from scrapyd_dist.throttle.values import ALL

#: maximum hits per window
MOST_HITS = 1_000_000
#: bounds of a window in seconds
SHORTEST_WINDOW, LONGEST_WINDOW = 0.001, 31 * 86400.0
#: maximum bytes of an encoded host name
_LONGEST_NAME = 253

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")


def domain_of(text: str) -> str:
    """Return the name under which the store keeps a domain: lower case, IDNA-encoded; `ALL` is returned unchanged.

    Raises:
        ConfigError: no request would ever be counted under this name.
    """
    if text == ALL:
        return ALL
    if "/" in text or "@" in text:
        near = site_of(text if "://" in text else f"http://{text}")
        hint = f": name the domain alone, {near}" if near else ""
        raise ConfigError(f"{text!r} is an address, and no domain{hint}.")
    host = _encoded(text)
    site = site_of(f"http://[{host}]/" if ":" in host else f"http://{host}/")
    if is_public_suffix(host):
        raise ConfigError(
            f"{text} is what domains end in: each one below it, such as example.{host}, has a limit of its own."
        )
    if site != host:
        raise ConfigError(f"{text} belongs to {site}, whose hosts all share one limit: name {site}.")
    return host


def _encoded(text: str) -> str:
    """Return a host name or address in the form that Scrapy's URLs use."""
    bare = text.removeprefix("[").removesuffix("]")
    if ":" in bare:
        return _address(bare, text)
    if text.startswith("*."):
        raise ConfigError(f"{text} has a star too many: a limit is for all hosts of a domain: name {text[2:]}.")
    try:
        host = text.strip().lower().rstrip(".").encode("idna").decode("ascii")
    except UnicodeError:
        host = ""
    if len(host) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise ConfigError(f"{text!r} cannot be the name of a domain.")
    return host


def _address(bare: str, text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(bare))
    except ValueError:
        name = text.rpartition(":")[0]
        raise ConfigError(f"{text!r} is no domain; a limit is for all ports of a host: name {name}.") from None


def check_hits(hits: object) -> int:
    """Return the number of requests allowed per window.

    Raises:
        ConfigError: it is not a whole number from 1 to `MOST_HITS`.
    """
    if isinstance(hits, bool) or not isinstance(hits, int):
        raise ConfigError(f"hits is {_shown(hits)}, and must be a whole number.")
    if not 1 <= hits <= MOST_HITS:
        raise ConfigError(f"hits is {hits}, and must be from 1 to {MOST_HITS:,}; a scale of 0 lets a domain rest.")
    return hits


def check_window(window: object) -> float:
    """Return the length of a window in seconds.

    Raises:
        ConfigError: it is not a number from `SHORTEST_WINDOW` to `LONGEST_WINDOW`.
    """
    seconds = _number("window", window, "seconds")
    if not SHORTEST_WINDOW <= seconds <= LONGEST_WINDOW:
        raise ConfigError(f"window is {seconds:g} s, and must be from {SHORTEST_WINDOW:g} s to 31 days.")
    return seconds


def check_scale(scale: object) -> float:
    """Return the fraction of the hits that may be used.

    Raises:
        ConfigError: it is not a number from 0 to 1.
    """
    part = _number("scale", scale, "a number")
    if not 0 <= part <= 1:
        raise ConfigError(f"scale is {part:g}, and must be from 0 (the domain rests) to 1 (all of its hits).")
    return part


def _number(name: str, value: object, kind: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ConfigError(f"{name} is {_shown(value)}, and must be {kind}.")
    return float(min(value, LONGEST_WINDOW + 1))  # an integer may be too large for a float


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value) if isinstance(value, str) else str(value)
