"""The same series as JSON: what `sdist report --json` gives, and what the page draws."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scrapyd_dist.progress.summary import told
from scrapyd_dist.report import growth, work
from scrapyd_dist.report.texts import hidden

if TYPE_CHECKING:
    from scrapyd_dist.report.facts import Facts


@dataclass(frozen=True, kw_only=True)
class Series:
    """Everything that is drawn; None or empty where there is nothing to draw."""

    burn_up: growth.BurnUp | None
    heat: growth.Heat | None
    jobs: work.Gantt | None
    shard_sizes: work.Spread | None
    shard_times: work.Spread | None
    job_times: work.Spread | None
    statuses: tuple[work.Statuses, ...]
    runs: work.Runs | None
    versions: work.Versions | None


def series(facts: Facts) -> Series:
    """All series of a crawl."""
    return Series(
        burn_up=growth.burn_up(facts),
        heat=growth.heat(facts),
        jobs=work.gantt(facts),
        shard_sizes=work.shard_sizes(facts),
        shard_times=work.shard_times(facts),
        job_times=work.job_times(facts),
        statuses=work.statuses(facts),
        runs=work.runs(facts),
        versions=work.versions(facts),
    )


def document(facts: Facts) -> dict[str, Any]:
    """The report as JSON. Times are seconds since the crawl began, rates are pages per minute."""
    return {
        "crawl": facts.crawl.id,
        "begun": facts.begun,
        "as_of": facts.until,
        "state": facts.crawl.state.value if facts.crawl.state.ended or facts.lives else "died",
        "summary": _without_passwords(told(facts.crawl)),
        **asdict(series(facts)),
        "nodes_now": [asdict(node) for node in facts.nodes_now],
        "misses": [asdict(miss) for miss in facts.misses],
    }


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, dict):
        return {name: _without_passwords(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_passwords(one) for one in value]
    return value
