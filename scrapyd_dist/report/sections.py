"""The parts of the page with a picture, each with a sentence and a table; only a sentence where nothing is known."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.report import compared, over_time
from scrapyd_dist.report.markup import NOTHING, THIRD, behind, both, section, table
from scrapyd_dist.report.texts import escape, span

if TYPE_CHECKING:
    from scrapyd_dist.report.document import Series
    from scrapyd_dist.report.facts import Facts
    from scrapyd_dist.report.work import Spread, Versions

#: rows of a table behind a picture
ROWS = 50


def pictures(facts: Facts, series: Series) -> str:
    """All of them, in the order in which one asks."""
    first = (_burn_up(series), _heat(series), _jobs(facts, series), _shards(series))
    return "".join((*first, _statuses(series), _runs(facts, series), _versions(facts, series)))


def _burn_up(series: Series) -> str:
    title, data = "Found, sent, ended", series.burn_up
    if data is None:
        return section(title, "Too little is known of how this crawl grew: it ended, or began, within a second or two.")
    hint = "Found and sent should lie close together: where they part, the nodes are the bottleneck."
    hint += " What failed or is gone has ended, too."
    if data.forecast:
        begin, end = (max(0.0, when - data.at[-1]) for when in (data.forecast.soonest, data.forecast.latest))
        sure = {"estimate": "About ", "at-least": "At least "}.get(data.forecast.sure, "")
        goal = f"{sure}{data.forecast.requests:,} requests"
        hint = f"{goal} in all; at the pace so far the last one is done in {span(begin)} to {span(end)}. {hint}"
    step = max(1, (len(data.at) - 1) // 20)
    chosen = sorted({*range(0, len(data.at), step), len(data.at) - 1})
    rows = [(span(data.at[i]), int(data.found[i]), int(data.sent[i]), int(data.done[i])) for i in chosen]
    shown = both(lambda width: over_time.burn_up(data, width))
    return section(title, hint, shown, behind("As a table", table(("after", "found", "sent to nodes", "ended"), rows)))


def _heat(series: Series) -> str:
    title, data = "Pages per minute, by node", series.heat
    if data is None or not data.most:
        return section(title, "No node is known to have fetched a page.")
    left_out = f" The {data.hidden:,} nodes with more pages than these are left out." if data.hidden else ""
    hint = f"A pale row is a node that is slow, banned or idle. One field is {span(data.step)} wide.{left_out}"
    rows = []
    for node, cells, pages in zip(data.nodes, data.cells, data.pages, strict=True):
        known = [value for value in cells if value is not None]
        busy = [value for value in known if value > 0]
        mean = round(sum(busy) / len(busy), 1) if busy else 0.0
        rows.append((node, int(pages), mean, max(known, default=0.0), round(len(busy) * data.step)))
    headings = ("node", "pages", "per minute while it worked", "at most", "seconds at work")
    shown = both(lambda width: over_time.heat(data, width))
    return section(title, hint, shown, behind("As a table", table(headings, rows)))


def _jobs(facts: Facts, series: Series) -> str:
    title, data = "Jobs on the nodes", series.jobs
    if data is None:
        return section(title, "No job was sent to a node.")
    hint = "One row per job that ran at the same time. Gaps are waiting, long bars at the end are stragglers."
    if len(data.lanes) > over_time.LANES:
        hint += f" The first {over_time.LANES:,} of {len(data.lanes):,} rows are drawn."
    counts: dict[str, Counter[str]] = {node: Counter() for node in data.lanes}
    for bar in data.bars:
        counts[data.lanes[bar.lane]][bar.outcome] += 1
    kinds = ("done", "running", "waiting", "failed")
    rows = [(node, *(count[kind] for kind in kinds)) for node, count in counts.items()]
    failed = [one for one in facts.attempts if one.state is AttemptState.FAILED]
    reasons = [(f"batch {one.batch}", one.number, one.node, one.reason) for one in failed[:ROWS]]
    more = behind(
        f"Why jobs failed ({len(failed):,})"
        if len(failed) <= ROWS
        else f"Why jobs failed (the first {ROWS} of {len(failed):,})",
        table(("batch", "attempt", "node", "reason"), reasons),
    )
    shown = both(lambda width: over_time.jobs(data, width, facts.span))
    return section(title, hint, shown, behind("As a table", table(("node", *kinds), rows)), more if failed else "")


def _shards(series: Series) -> str:
    title = "Shards and jobs, sorted"
    wanted = (
        (series.shard_sizes, "shard-sizes", "Requests by shard", "requests"),
        (series.shard_times, "shard-times", "Time of each walk", "s"),
        (series.job_times, "job-times", "Time of each job", "s"),
    )
    pieces = [_sorted(*row) for row in wanted if row[0] is not None]
    if not pieces:
        return section(title, "Neither shards nor jobs have told how they went.")
    hint = "Even ones end together. The factor is the greatest by the median; bars of twice the median are orange."
    return section(title, hint, f'<div class="several">{"".join(pieces)}</div>')


def _sorted(data: Spread | None, name: str, title: str, unit: str) -> str:
    assert data is not None  # noqa: S101 - the caller has looked
    factor = f"straggler factor {data.factor:.1f}" if data.factor else "the median is 0"
    rows = [(name_, value) for name_, value in zip(data.names[:ROWS], data.values, strict=False)]
    what = "seconds" if unit == "s" else unit
    picture = compared.sorted_bars(data, THIRD, name=name, title=title, unit=unit).markup()
    head = f'<h3>{escape(title)}</h3><p class="hint">{len(data.values):,} in all, {factor}</p>'
    return f"<div>{head}<figure>{picture}</figure>{behind('As a table', table(('', what), rows))}</div>"


def _statuses(series: Series) -> str:
    title, data = "What the sites answered", series.statuses
    if not data:
        return section(title, "No job whose work counts has told what sites answered.")
    codes = sorted({code for one in data for code in one.codes})
    rows = [
        (
            one.node,
            *(one.codes.get(code, 0) for code in codes),
            one.groups["no answer"],
            one.retried,
            f"{one.retry_rate:.1%}",
        )
        for one in data
    ]
    hint = "403 and 429 on one node only mean that its address is banned; on all, that the crawl is too fast."
    if len(data) > compared.ROWS:
        hint += f" The first {compared.ROWS} of {len(data)} nodes are drawn."
    headings = ("node", *codes, "no answer", "retries", "of all requests")
    shown = both(lambda width: compared.status_codes(data, width))
    return section(title, hint, shown, behind("As a table", table(headings, rows)))


def _runs(facts: Facts, series: Series) -> str:
    title, data = "Items of the last runs", series.runs
    if data is None:
        return section(title, f"This is the first run of {facts.crawl.spider} that the store knows of.")
    hint = f"The last {len(data.items)} runs of {facts.crawl.spider}; this one is green."
    if data.median is not None:
        hint += " The band is the median distance of the others from their median."
    rows = list(zip(data.names, data.items, strict=True))
    shown = both(lambda width: compared.last_runs(data, width))
    return section(title, hint, shown, behind("As a table", table(("crawl", "items"), rows)))


def _versions(facts: Facts, series: Series) -> str:
    title, data = "Versions", series.versions
    now = _nodes_now(facts) if facts.nodes_now else ""
    if data is None:
        return section(title, "No job has told which code it ran.", now)
    drift = "All jobs ran the same code." if len(data.versions) == 1 else "Jobs of this crawl ran different code!"
    told = ", ".join(f"{version} ({jobs:,} jobs)" for version, jobs in data.workers.items())
    return section(title, f"{drift} scrapyd-dist in them: {told}.", _matrix(data), now)


def _nodes_now(facts: Facts) -> str:
    """What a job would run now, by node."""
    rows = []
    for node in facts.nodes_now:
        default = node.versions[-1] if node.versions else NOTHING
        here = "yes" if facts.crawl.version in node.versions else "no"
        rows.append((node.name, node.reason or default, len(node.versions), NOTHING if node.reason else here))
    headings = ("node", "runs by default", "versions", "has the crawl's")
    return f"<h3>On the nodes now</h3>{table(headings, rows)}"


def _matrix(data: Versions) -> str:
    head = "".join(f'<th scope="col" class="number"><code>{escape(version)}</code></th>' for version in data.versions)
    rows = ""
    for node, counts in list(data.nodes.items())[: ROWS * 4]:
        most = max(counts.values())
        cells = "".join(
            f'<td class="number{" most" if counts.get(version) == most else ""}">'
            f"{f'{counts[version]:,} jobs' if version in counts else NOTHING}</td>"
            for version in data.versions
        )
        rows += f'<tr><th scope="row"><bdi>{escape(node)}</bdi></th>{cells}</tr>'
    inside = f'<table><thead><tr><th scope="col">node</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    found = f'<div class="table" tabindex="0">{inside}</div>'
    return found if len(data.nodes) <= 12 else behind(f"{len(data.nodes)} nodes", found)
