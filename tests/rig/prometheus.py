"""Reads Prometheus' text format by the rules of its documentation, and refuses what `promtool check metrics` would."""

import re
from dataclasses import dataclass, field

_HEAD = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)\Z")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)\Z")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"(?:,|\Z)')


@dataclass
class Metric:
    """All samples of one name."""

    help: str = ""
    kind: str = ""
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def value(self, **labels: str) -> float:
        """The one sample with these labels, whatever others it has."""
        (found,) = [number for has, number in self.samples if labels.items() <= has.items()]
        return found


def parse(text: str) -> dict[str, Metric]:
    """Name -> metric.

    Raises:
        AssertionError: the text breaks a rule; the line is in the message.
    """
    assert text.endswith("\n"), "the last line has no line feed"
    found: dict[str, Metric] = {}
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            current = _head(line, current, found)
        else:
            _sample(line, current, found)
    for name, metric in found.items():
        assert metric.help, f"{name} has no help"
        assert metric.kind in {"counter", "gauge"}, f"{name} has no type"
        assert (metric.kind == "counter") == name.endswith("_total"), f"{name} is a {metric.kind}"
        assert metric.samples, f"{name} has no sample"
    return found


def _head(line: str, current: str, found: dict[str, Metric]) -> str:
    match = _HEAD.match(line)
    assert match, line
    what, name, rest = match.groups()
    if what == "HELP":
        assert name not in found, f"the samples of {name} are not together: {line}"
        found[name] = Metric(help=rest or " ")
    else:
        assert name == current, f"TYPE without its HELP: {line}"
        found[name].kind = rest
    return str(name)


def _sample(line: str, current: str, found: dict[str, Metric]) -> None:
    match = _SAMPLE.match(line)
    assert match, line
    name, inner, number = match.groups()
    assert name == current, f"a sample away from its head: {line}"
    labels, at = {}, 0
    while inner and at < len(inner):
        label = _LABEL.match(inner, at)
        assert label, line
        assert label[1] not in labels, line
        labels[label[1]] = re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], label[2])
        at = label.end()
    assert labels not in [has for has, _ in found[name].samples], f"twice: {line}"
    found[name].samples.append((labels, float(number)))
