"""Limits of domains as users write them, checked: on the command line, or in a YAML file."""

import ipaddress
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import yaml

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.slots import is_public_suffix, site_of
from scrapyd_dist.near_names import nearest
from scrapyd_dist.settings import LONGEST_WINDOW, MOST_HITS
from scrapyd_dist.throttle.permits import ALL, Rule

#: seconds of a window, at least
SHORTEST_WINDOW = 0.001
#: maximum bytes of an encoded host name
_LONGEST_NAME = 253
#: one label of a host name
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
#: the keys of a file
_TOP = ("domains", "blacklist")
#: maximum number of mistakes reported per file
_MOST_SHOWN = 20
#: the hint for a star without quotes, which YAML takes for an alias
_STAR = f' A domain that is a star, for all domains, is written with quotes: "{ALL}".'
#: what a file is
_FORM = "`domains:` with a limit for each domain, or `blacklist:` with a list of domains"


def domain_of(text: str) -> str:
    """Return the name under which the store keeps a domain: lower case, IDNA-encoded.

    `ALL` is returned unchanged.

    Raises:
        ConfigError: no request would ever be counted under this name.
    """
    if text == ALL:
        return ALL
    if "/" in text or "@" in text:
        address = text if "://" in text else f"http://{text}"
        near = site_of(address)
        hint = f": name the domain alone, {near}" if near else ""
        raise ConfigError(f"{text!r} is an address, and no domain{hint}.")
    host = _encoded(text)
    host_in_url = f"[{host}]" if ":" in host else host
    site = site_of(f"http://{host_in_url}/")
    if is_public_suffix(host):
        raise ConfigError(
            f"{text} is what domains end in: each one below it, such as example.{host}, has a limit"
            " of its own."
        )
    if site != host:
        raise ConfigError(
            f"{text} belongs to {site}, whose hosts all share one limit: name {site}."
        )
    return host


def _encoded(text: str) -> str:
    """Return a host name or address in the form that Scrapy's URLs use."""
    bare = text.removeprefix("[").removesuffix("]")
    if ":" in bare:
        try:
            return str(ipaddress.IPv6Address(bare))
        except ValueError:
            name = text.rpartition(":")[0]
            raise ConfigError(
                f"{text!r} is no domain; a limit is for all ports of a host: name {name}."
            ) from None
    if text.startswith("*."):
        raise ConfigError(
            f"{text} has a star too many: a limit is for all hosts of a domain: name {text[2:]}."
        )
    try:
        host = text.strip().lower().rstrip(".").encode("idna").decode("ascii")
    except UnicodeError:
        host = ""
    if len(host) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise ConfigError(f"{text!r} cannot be the name of a domain.")
    return host


def check_hits(hits: object) -> int:
    """Return the number of requests allowed per window.

    Raises `ConfigError` unless it is a whole number from 1 to `MOST_HITS`.
    """
    if isinstance(hits, bool) or not isinstance(hits, int):
        raise ConfigError(f"hits is {_shown(hits)}, and must be a whole number.")
    if not 1 <= hits <= MOST_HITS:
        raise ConfigError(
            f"hits is {hits}, and must be from 1 to {MOST_HITS:,}; a scale of 0 lets a domain rest."
        )
    return hits


def check_window(window: object) -> float:
    """Return the length of a window in seconds.

    Raises `ConfigError` unless it is from `SHORTEST_WINDOW` to `LONGEST_WINDOW`.
    """
    seconds = _number("window", window, "seconds")
    if not SHORTEST_WINDOW <= seconds <= LONGEST_WINDOW:
        raise ConfigError(
            f"window is {seconds:g} s, and must be from {SHORTEST_WINDOW:g} s to 31 days."
        )
    return seconds


def check_scale(scale: object) -> float:
    """Return the fraction of the hits that may be used, from 0 to 1, else `ConfigError`."""
    part = _number("scale", scale, "a number")
    if not 0 <= part <= 1:
        raise ConfigError(
            f"scale is {part:g}, and must be from 0 (the domain rests) to 1 (all of its hits)."
        )
    return part


def _number(name: str, value: object, kind: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ConfigError(f"{name} is {_shown(value)}, and must be {kind}.")
    return float(min(value, LONGEST_WINDOW + 1))  # an integer may be too large for a float


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, str):
        return repr(value)
    return str(value)


#: the fields of a limit, each with its check; the scale may be left out
_LIMIT: Mapping[str, Callable[[object], Any]] = {
    "hits": check_hits,
    "window": check_window,
    "scale": check_scale,
}


class BadRules(ConfigError):
    """The rules file has mistakes."""

    def __init__(self, name: str, mistakes: list[tuple[int, str]]) -> None:
        #: pairs of line number, from 1, and message
        self.mistakes = sorted(mistakes)
        lines = [f"{name}:{line}: {text}" for line, text in self.mistakes[:_MOST_SHOWN]]
        if len(mistakes) > _MOST_SHOWN:
            lines.append(f"and {len(mistakes) - _MOST_SHOWN:,} more")
        super().__init__("\n  ".join([f"{name} cannot be used, so nothing was changed:", *lines]))


def read(data: bytes, name: str) -> dict[str, Rule]:
    """Parse a rules file, which is called `name` in messages; returns domain (or `ALL`) -> rule.

    Raises:
        BadRules: an entry is invalid or missing.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadRules(name, [(line, "this is no UTF-8 text.")]) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise BadRules(name, [_no_yaml(error, text)]) from None
    reader = _RulesReader()
    reader.read(root)
    if reader.mistakes:
        raise BadRules(name, reader.mistakes)
    return {domain: Rule(**fields) for domain, fields in reader.rules.items()}


def merge_rules(in_file: Mapping[str, Rule], now: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return the rules after those of a file were applied to those in force now.

    A domain whose rule is removed has `Rule()`; paused domains stay paused.
    """
    rules = {**dict.fromkeys(now, Rule()), **in_file}
    for domain, rule in rules.items():
        is_paused = domain in now and now[domain].paused
        rules[domain] = replace(rule, paused=is_paused)
    return rules


def _no_yaml(error: Exception, text: str) -> tuple[int, str]:
    """Return line and reason of a YAML error."""
    if isinstance(error, RecursionError):
        return 1, "this is nested too deeply."
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        star = _STAR if "alias" in f"{error.context} {error.problem}" else ""
        return error.problem_mark.line + 1, f"this is no YAML: {error.problem}.{star}"
    at = getattr(error, "position", 0)
    return text.count("\n", 0, at) + 1, "this is no YAML: there is a character that no text has."


class _RulesReader:
    """Walks the YAML nodes of a file, collecting the fields of rules, by domain, and mistakes."""

    def __init__(self) -> None:
        self.rules: dict[str, dict[str, Any]] = {}
        self.mistakes: list[tuple[int, str]] = []

    def wrong(self, node: Any, text: str) -> None:
        """Note a mistake in the line of a node."""
        self.mistakes.append((_line(node), text))

    def read(self, root: Any) -> None:
        """Read the whole file; `root` is None where it is empty."""
        if root is None:
            # An empty file was probably truncated, or is not written yet.
            self.mistakes.append((1, "it is empty; to remove all limits, write `domains: {}`."))
            return
        if not isinstance(root, yaml.MappingNode):
            self.wrong(root, f"expected {_FORM}, and found {_kind(root)}.")
            return
        parts = self._parts(root, _TOP, "")
        if not parts and not self.mistakes:
            self.wrong(root, f"expected {_FORM}; to remove all limits, write `domains: {{}}`.")
        self._domains(parts.get("domains"))
        self._blacklist(parts.get("blacklist"))

    def _parts(self, node: yaml.MappingNode, known: Collection[str], where: str) -> dict[str, Any]:
        """Return the values of a mapping, reporting unknown and repeated keys."""
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name not in known:
                shown_name = name or _kind(key)
                hint = _hint(name, known)
                self.wrong(key, f"{where}{shown_name!r} is not known here; {hint}")
            elif name in found:
                self.wrong(key, f"{where}{name} stands here twice.")
            else:
                found[name] = value
        return found

    def _entries(self, node: Any, kind: type[yaml.Node], expected: str) -> list[Any]:
        """Return the entries of a node of this kind.

        A node of another kind has none, and is a mistake unless it is empty.
        """
        if isinstance(node, kind):
            return list(node.value)
        if node is not None and not _is_nothing(node):
            self.wrong(node, f"expected {expected}, and found {_kind(node)}.")
        return []

    def _domains(self, node: Any) -> None:
        lines: dict[str, int] = {}
        expected = "a domain and its limit under `domains:`"
        for key, value in self._entries(node, yaml.MappingNode, expected):
            domain = self._domain(key, lines)
            where = f"{key.value}: " if isinstance(key, yaml.ScalarNode) else ""
            limit = self._limit(value, where)
            if domain:
                self.rules[domain] = limit

    def _blacklist(self, node: Any) -> None:
        lines: dict[str, int] = {}
        for entry in self._entries(node, yaml.SequenceNode, "a list of domains under `blacklist:`"):
            domain = self._domain(entry, lines)
            if domain == ALL:
                self.wrong(
                    entry,
                    "all domains cannot be blocked; `sdist throttle pause` lets all of them rest.",
                )
            elif domain:
                self.rules.setdefault(domain, {})["blocked"] = True

    def _domain(self, node: Any, lines: dict[str, int]) -> str:
        """Return the domain that a node names, and note its line; empty if invalid or repeated."""
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(node, f"expected the name of a domain, and found {_kind(node)}.")
            return ""
        try:
            domain = domain_of(node.value)
        except ConfigError as error:
            self.wrong(node, str(error))
            return ""
        if domain in lines:
            self.wrong(node, f"{node.value} stands here twice, first in line {lines[domain]}.")
            return ""
        lines[domain] = _line(node)
        return domain

    def _limit(self, node: Any, where: str) -> dict[str, Any]:
        """Return the checked fields of a rule."""
        if not isinstance(node, yaml.MappingNode):
            self.wrong(
                node, f"{where}expected hits and window (in seconds), and found {_kind(node)}."
            )
            return {}
        parts = self._parts(node, _LIMIT, where)
        fields: dict[str, Any] = {}
        for name, check in _LIMIT.items():
            if name not in parts and name == "scale":
                continue
            value = _value(parts[name]) if name in parts else None
            try:
                fields[name] = check(value)
            except ConfigError as error:
                self.wrong(parts.get(name, node), f"{where}{error}")
        return fields


def _hint(name: str, known: Collection[str]) -> str:
    """Return what may have been meant by a name that is not known."""
    near = nearest(name, known)
    if near:
        return f"did you mean {near}?"
    return f"known are {', '.join(known)}."


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _is_nothing(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _kind(node: Any) -> str:
    """Describe a node in messages."""
    if isinstance(node, yaml.MappingNode):
        return "keys with values"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if _is_nothing(node):
        return "nothing"
    return repr(node.value)


def _value(node: Any) -> object:
    """Convert a scalar to a Python value; one that cannot be converted stays text."""
    if not isinstance(node, yaml.ScalarNode):
        return _kind(node)
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError):
        return node.value
