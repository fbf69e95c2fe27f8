"""Numbers in Prometheus' text format, version 0.0.4. Rule: a text that Prometheus would refuse is never made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z")
_KINDS = frozenset({"counter", "gauge"})

#: the labels of one number, and the number
Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, kw_only=True)
class Family:
    """All numbers of one name."""

    name: str
    kind: str  #: counter (its name ends in _total) or gauge
    help: str
    samples: Sequence[Sample] = ()


def render(families: Sequence[Family]) -> str:
    """The text; families without a number are left out.

    Raises:
        ValueError: a name, a kind or a label cannot be, or a number comes twice.
    """
    names = [family.name for family in families]
    if len(set(names)) < len(names):
        raise ValueError("a family comes twice")
    return "".join(_family(family) for family in families if family.samples)


def _family(family: Family) -> str:
    if not _NAME.match(family.name) or family.kind not in _KINDS:
        raise ValueError(f"{family.name!r} cannot be the name of a {family.kind}")
    if (family.kind == "counter") != family.name.endswith("_total"):
        raise ValueError(f"{family.name}: a counter ends in _total, and nothing else does")
    lines = [f"# HELP {family.name} {_escaped(family.help)}", f"# TYPE {family.name} {family.kind}"]
    seen = set()
    for labels, value in family.samples:
        text = family.name + _labels(labels)
        if text in seen:
            raise ValueError(f"{text} comes twice")
        seen.add(text)
        lines.append(f"{text} {_number(value)}")
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    for name in labels:
        if not _LABEL.match(name):
            raise ValueError(f"{name!r} cannot be a label")
    inner = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    # A name may come from a foreign file: what cannot be UTF-8 must not spoil the whole text.
    return _escaped(text).replace('"', '\\"').encode("utf-8", "replace").decode("utf-8")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
