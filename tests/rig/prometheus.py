"""Reads Prometheus' text format, and refuses what `promtool check metrics` would."""

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Metric:
    """All samples of one name."""

    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def value(self, **labels: str) -> float:
        """The one sample with these labels, whatever others it has."""
        (found,) = [number for has, number in self.samples if labels.items() <= has.items()]
        return found


def parse(text: str) -> dict[str, Metric]:
    """Name -> metric; AssertionError or ValueError where the text breaks a rule."""
    assert text.endswith("\n"), "the last line has no line feed"
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, f"{family.name} has no help"
        assert family.type in {"counter", "gauge"}, f"{family.name} has no type"
        assert family.samples, f"{family.name} has no sample"
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), (
                f"{sample.name} is a {family.type}"
            )
            metric = found.setdefault(sample.name, Metric())
            assert sample.labels not in [has for has, _ in metric.samples], f"twice: {sample}"
            metric.samples.append((sample.labels, sample.value))
    return found
