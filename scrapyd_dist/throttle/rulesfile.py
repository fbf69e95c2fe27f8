"""A file of limits, in the YAML of Scrapy Cluster: `blacklist:` and `domains:`.

The rule it keeps: a file with one mistake says nothing at all; each mistake is told with its line.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.throttle.checks import check_hits, check_scale, check_window, domain_of
from scrapyd_dist.throttle.values import ALL, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TOP = ("domains", "blacklist")
_LIMIT = ("hits", "window", "scale")
#: mistakes that are told of one file; where there are more, something else is wrong with it
_TOLD = 20
_STAR = f' A domain that is a star, for all domains, is written with quotes: "{ALL}".'
_FORM = "`domains:` with a limit for each domain, or `blacklist:` with a list of domains"


class BadRules(ConfigError):
    """The file cannot be used.

    Attributes:
        mistakes: line, from 1, and what is wrong there.
    """

    def __init__(self, name: str, mistakes: list[tuple[int, str]]) -> None:
        self.mistakes = sorted(mistakes)
        lines = [f"{name}:{line}: {text}" for line, text in self.mistakes[:_TOLD]]
        if len(mistakes) > _TOLD:
            lines.append(f"and {len(mistakes) - _TOLD:,} more")
        super().__init__("\n  ".join([f"{name} cannot be used, so nothing was changed:", *lines]))


def read(data: bytes, name: str) -> dict[str, Rule]:
    """What a file says: domain (or `ALL`) -> its rule.

    Args:
        data: the file.
        name: what it is called in messages.

    Raises:
        BadRules: something in it cannot be, or is missing.
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
    reader = _Reader()
    reader.read(root)
    if reader.mistakes:
        raise BadRules(name, reader.mistakes)
    return {
        domain: Rule(**reader.limits.get(domain, {}), blocked=domain in reader.blocked)
        for domain in [*reader.limits, *(one for one in reader.blocked if one not in reader.limits)]
    }


def wanted(said: Mapping[str, Rule], now: Mapping[str, Rule]) -> dict[str, Rule]:
    """The rules that are to be in force after a file; what somebody has paused stays so.

    Args:
        said: what the file says.
        now: the rules in force.

    Returns:
        Domain -> its rule, for each that has one now or is to have one; `Rule()` where it loses the one that it has.
    """
    rules = {**dict.fromkeys(now, Rule()), **said}
    return {domain: replace(rule, paused=domain in now and now[domain].paused) for domain, rule in rules.items()}


def _no_yaml(error: Exception, text: str) -> tuple[int, str]:
    """Where and why a text is no YAML."""
    if isinstance(error, RecursionError):
        return 1, "this is nested too deeply."
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        star = _STAR if "alias" in f"{error.context} {error.problem}" else ""
        return error.problem_mark.line + 1, f"this is no YAML: {error.problem}.{star}"
    at = getattr(error, "position", 0)
    return text.count("\n", 0, at) + 1, "this is no YAML: there is a character that no text has."


class _Reader:
    """Walks the nodes of a file, and keeps what it says and what is wrong with it."""

    def __init__(self) -> None:
        self.limits: dict[str, dict[str, Any]] = {}
        self.blocked: dict[str, int] = {}  #: domain -> line
        self.mistakes: list[tuple[int, str]] = []

    def wrong(self, node: Any, text: str) -> None:
        self.mistakes.append((_line(node), text))

    def read(self, root: Any) -> None:
        """The whole file."""
        if root is None:
            # An empty file is one that was cut off, or not yet written.
            self.mistakes.append((1, "it is empty; to remove all limits, write `domains: {}`."))
            return
        if not isinstance(root, yaml.MappingNode):
            self.wrong(root, f"expected {_FORM}, and found {_kind(root)}.")
            return
        parts = self._parts(root, _TOP, "")
        if not parts and not self.mistakes:
            self.wrong(root, f"expected {_FORM}; to remove all limits, write `domains: {{}}`.")
        if "domains" in parts:
            self._domains(parts["domains"])
        if "blacklist" in parts:
            self._blacklist(parts["blacklist"])

    def _parts(self, node: yaml.MappingNode, known: tuple[str, ...], where: str) -> dict[str, Any]:
        """The values of a mapping whose keys are known ones, each once."""
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
                self.wrong(key, f"{where}nobody knows {name or _kind(key)!r} here; {hint}")
            elif name in found:
                self.wrong(key, f"{where}{name} stands here twice.")
            else:
                found[name] = value
        return found

    def _domains(self, node: Any) -> None:
        if _is_nothing(node):
            return
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, f"expected a domain and its limit under `domains:`, and found {_kind(node)}.")
            return
        lines: dict[str, int] = {}
        for key, value in node.value:
            domain = self._domain(key, lines)
            where = f"{key.value}: " if isinstance(key, yaml.ScalarNode) else ""
            limit = self._limit(value, where)
            if domain:
                self.limits[domain] = limit

    def _blacklist(self, node: Any) -> None:
        if _is_nothing(node):
            return
        if not isinstance(node, yaml.SequenceNode):
            self.wrong(node, f"expected a list of domains under `blacklist:`, and found {_kind(node)}.")
            return
        for entry in node.value:
            if self._domain(entry, self.blocked) == ALL:
                self.wrong(entry, "all domains cannot be blocked; `sdist throttle pause` lets all of them rest.")

    def _domain(self, node: Any, lines: dict[str, int]) -> str:
        """The domain that a node names, noted down with its line; empty where it is none, or stands there twice."""
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
        """The fields of a rule."""
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, f"{where}expected hits and window (in seconds), and found {_kind(node)}.")
            return {}
        parts = self._parts(node, _LIMIT, where)
        return dict(self._checked(node, parts, where))

    def _checked(self, node: Any, parts: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        checks = {"hits": check_hits, "window": check_window, "scale": check_scale}
        for name, check in checks.items():
            if name not in parts and name == "scale":
                continue
            try:
                yield name, check(_value(parts[name]) if name in parts else None)
            except ConfigError as error:
                self.wrong(parts.get(name, node), f"{where}{error}")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _is_nothing(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _kind(node: Any) -> str:
    """What a node is, for people."""
    if isinstance(node, yaml.MappingNode):
        return "keys with values"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if _is_nothing(node) else repr(node.value)


def _value(node: Any) -> object:
    """What a single value is in Python; what has a form that only YAML knows stays the text that it is."""
    if not isinstance(node, yaml.ScalarNode):
        return _kind(node)
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError):
        return node.value
