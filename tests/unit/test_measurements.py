"""What `sdist nodes metrics` tells of nodes and crawls, as values."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import generate_latest
from rig.prometheus import Metric, parse

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import ConnectionRefused
from scrapyd_dist.fleet.measurements import RECENT, measure, rolling
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load

NOW = 1_000_000.0
SUMMARY = {
    "urls_found": 120, "sealed": 100, "requests": {"done": 40}, "items": 38, "pages": 41, "duration_s": 12.3456,
    "index": {"pages": 3, "total": 10}, "batches": {"total": 5, "done": 2, "sent": 4, "failed": 1},
    "gone_urls": 2, "failed_urls": 1, "nodes": [{"name": "web 1", "jobs": 2, "running": 1, "items": 38}],
}  # fmt: skip


def crawl(name: str, state: CrawlState, **fields: Any) -> Crawl:
    return Crawl(
        id=name,
        project="p",
        spider=fields.pop("spider", "shop"),
        created=NOW - 9999,
        state=state,
        **fields,
    )


def told(
    nodes: list[NodeStatus], crawls: list[Crawl], recent: Iterable[Any] = ()
) -> dict[str, Metric]:
    return parse(
        generate_latest(measure(nodes, crawls, recent=recent, now=NOW, took=0.25)).decode()
    )


def test_nodes_that_answer_and_that_do_not() -> None:
    good = Node.parse("http://me:hush@web1:6800", name='web "1"', slots=4)
    load = Load(pending=1, running=2, finished=3, node_name="x", date=None)
    seen = NodeStatus(node=good, load=load, latency=0.01234, skew=-1.5, draining=5.0)
    dead = NodeStatus(
        node=Node.parse("http://web2:6800", name="web2"), error=ConnectionRefused("no")
    )
    found = told([seen, dead], [])
    assert found["sdist_node_up"].samples == [
        ({"node": 'web "1"', "url": "http://web1:6800"}, 1), ({"node": "web2", "url": "http://web2:6800"}, 0),
    ]  # fmt: skip
    jobs = found["sdist_node_jobs"]
    assert [jobs.value(state=state) for state in ("pending", "running", "finished")] == [1, 2, 3]
    names = (
        "node_latency_seconds",
        "node_clock_skew_seconds",
        "node_slots",
        "collect_duration_seconds",
    )
    assert [found[f"sdist_{name}"].value() for name in names] == [0.012, -1.5, 4, 0.25]
    assert found["sdist_node_draining"].value(node='web "1"') == 1
    assert "hush" not in str(found)


def test_domains_of_the_throttle_are_counted_by_state() -> None:
    standing = {"open": 3, "blocked": 0, "paused": 1, "resting": 2, "slowed": 2}
    found = parse(generate_latest(measure([], [], standing, now=NOW, took=0.25)).decode())
    states = found["sdist_throttle_domains"]
    assert [states.value(state=state) for state in ("open", "blocked", "paused", "resting")] == [
        3,
        0,
        1,
        2,
    ]
    assert found["sdist_throttle_slowed_domains"].value() == 2
    assert "sdist_throttle_domains" not in told([], [])


def test_a_crawl_that_runs_is_told_in_full_and_an_old_one_is_only_counted() -> None:
    crawls = [
        crawl("new", CrawlState.FINDING, summary=SUMMARY),
        crawl("fresh", CrawlState.STARTING),
        crawl(
            "just",
            CrawlState.STOPPED,
            ended=NOW - 5,
            exit_code=3,
            spider="other",
            summary={"items": 7},
        ),
        crawl(
            "old", CrawlState.FINISHED, ended=NOW - RECENT - 1, exit_code=0, summary={"items": 70}
        ),
        crawl("older", CrawlState.FINISHED, ended=NOW - RECENT - 2, exit_code=1),
    ]
    found = told([], crawls)
    states = found["sdist_crawls"]
    assert len(states.samples) == len(CrawlState)
    assert (
        states.value(state="finished"),
        states.value(state="finding"),
        states.value(state="refused"),
    ) == (2, 1, 0)
    values = {name: metric.value(crawl="new") for name, metric in found.items() if name.startswith("sdist_crawl_")
              and not name.startswith("sdist_crawl_urls_missed")}  # fmt: skip
    assert values == {
        "sdist_crawl_urls_found_total": 120, "sdist_crawl_requests": 100, "sdist_crawl_requests_done": 40,
        "sdist_crawl_items": 38, "sdist_crawl_pages": 41, "sdist_crawl_index_pages_total": 3,
        "sdist_crawl_batches": 5, "sdist_crawl_batches_done_total": 2, "sdist_crawl_batches_dead_total": 0,
        "sdist_crawl_batches_waiting": 0, "sdist_crawl_attempts_sent_total": 4, "sdist_crawl_attempts_failed_total": 1,
        "sdist_crawl_attempts_out": 0, "sdist_crawl_index_pages": 10, "sdist_crawl_duration_seconds": 12.346,
        "sdist_crawl_running": 1, "sdist_crawl_node_jobs": 2, "sdist_crawl_node_running": 1,
        "sdist_crawl_node_items": 38,
    }  # fmt: skip
    assert found["sdist_crawl_urls_missed_total"].value(crawl="new", kind="gone") == 2
    assert found["sdist_crawl_node_items"].samples[0][0]["node"] == "web 1"
    running = {labels["crawl"]: value for labels, value in found["sdist_crawl_running"].samples}
    assert running == {"new": 1, "fresh": 1, "just": 0}
    assert found["sdist_last_crawl_exit_code"].samples == [
        ({"project": "p", "spider": "other"}, 3), ({"project": "p", "spider": "shop"}, 0),
    ]  # fmt: skip
    assert found["sdist_last_crawl_items"].value(spider="shop") == 70


def test_a_project_without_nodes_and_crawls_has_numbers_too() -> None:
    found = told([], [])
    assert sum(value for _, value in found["sdist_crawls"].samples) == 0
    assert found["sdist_build_info"].value() == 1


def test_a_name_that_is_no_text_spoils_nothing() -> None:
    odd = 'a"\\b\nc\ud800'
    (sample,) = told([NodeStatus(node=Node.parse("http://web1:6800", name="web1"))], [])[
        "sdist_node_up"
    ].samples
    found = told([], [crawl("x", CrawlState.FINDING, spider=odd)])["sdist_crawl_running"]
    assert (sample[1], found.samples) == (0, [({"crawl": "x", "spider": 'a"\\b\nc?'}, 1)])


def test_what_was_done_lately_is_told_by_window_and_spider() -> None:
    def job(ago: float, **fields: Any) -> JobRecord:
        values = {
            "id": f"j{ago}",
            "spider": "shop",
            "project": "p",
            "version": "1",
            "created": NOW - 9e5,
            **fields,
        }
        return JobRecord(**{"state": Outcome.FINISHED, "ended": NOW - ago, **values})

    records = [
        job(60, pages=10, items=8, codes={"200": 9, "404": 1}),
        job(1800, pages=100, items=80, codes={"200": 100}),
        job(7200, state=Outcome.FAILED, errors=3, reason="3 errors logged"),
        job(90_000, pages=5000),
        job(0, ended=None, state=Outcome.PENDING),
    ]
    samples = [(NOW - 2000, {"pages": 40, "items": 4}), (NOW - 100, {"pages": 70, "items": 9})]
    old = crawl("c", CrawlState.WORKING, spider="other", summary={"pages": 75, "items": 8})
    found = told([], [], rolling(records, [(old, samples)], NOW))
    pages, items = found["sdist_recent_pages"], found["sdist_recent_items"]
    assert [pages.value(window=one, spider="shop") for one in ("15m", "1h", "24h")] == [
        10,
        110,
        110,
    ]
    assert [pages.value(window=one, spider="other") for one in ("15m", "1h", "24h")] == [35, 35, 75]
    assert [items.value(window=one, spider="other") for one in ("15m", "1h")] == [4, 4]
    ends = found["sdist_recent_job_ends"]
    assert [ends.value(window=one, spider="shop", state="finished") for one in ("15m", "24h")] == [
        1,
        2,
    ]
    assert ends.value(window="24h", spider="shop", state="failed") == 1
    assert found["sdist_recent_job_errors"].value(window="24h", spider="shop") == 3
    assert (
        found["sdist_recent_job_responses"].value(window="1h", spider="shop", status="200") == 109
    )


HOWTO = Path(__file__).parents[2] / "docs" / "howto"


def everything() -> dict[str, Metric]:
    """A reading in which each metric has a sample."""
    load = Load(pending=1, running=2, finished=3, node_name="x", date=None)
    node = NodeStatus(
        node=Node.parse("http://web1:6800", name="web1", slots=2), load=load, latency=0.1, skew=0.5
    )
    work = [{"name": "web1", **dict.fromkeys(("jobs", "running", "items", "pages", "failed"), 1)}]
    running = crawl("new", CrawlState.FINDING, summary={**SUMMARY, "nodes": work})
    ended = crawl("old", CrawlState.FINISHED, ended=NOW - 5, exit_code=0, summary={"items": 70})
    ids: dict[str, Any] = {
        "id": "j",
        "spider": "shop",
        "project": "p",
        "version": "1",
        "created": NOW - 9,
        "ended": NOW - 5,
    }
    job = JobRecord(**ids, state=Outcome.FINISHED, pages=1, items=1, errors=1, codes={"200": 1})
    recent = rolling([job], [], NOW)
    standing = {"open": 3, "slowed": 2}
    return parse(
        generate_latest(
            measure([node], [running, ended], standing, recent, now=NOW, took=0.2)
        ).decode()
    )


def queries() -> list[str]:
    """What the dashboard and the alerts of the guide ask Prometheus for."""
    panels = json.loads((HOWTO / "grafana.json").read_text("utf-8"))["panels"]
    (rules,) = re.findall(
        "```yaml\n(.*?)```", (HOWTO / "monitoring.md").read_text("utf-8"), re.DOTALL
    )
    alerts = [rule["expr"] for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]]
    return [target["expr"] for panel in panels for target in panel["targets"]] + alerts


def test_the_dashboard_and_the_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    known, asked = everything(), queries()
    assert len(asked) > 20
    for query in asked:
        names = re.findall(r"\bsdist_\w+", query)
        assert names, query
        for name in names:
            assert name in known, query
            labels = set().union(*(has for has, _ in known[name].samples))
            assert (
                set(re.findall(r"(\w+)=~?\"", query)) | set(re.findall(r"by \((\w+)\)", query))
                <= labels
            ), query


def test_the_legends_of_the_dashboard_have_labels_of_their_metric() -> None:
    known = everything()
    for panel in json.loads((HOWTO / "grafana.json").read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            (first, *_) = re.findall(r"\bsdist_\w+", target["expr"])
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert used <= known[first].samples[0][0].keys(), target


def test_the_guide_names_every_metric() -> None:
    page = (HOWTO / "monitoring.md").read_text("utf-8")
    words = re.findall(r"`([a-z_]+)(…?)`", page)
    told_of = {f"sdist_{name}" for name, more in words if not more}
    begins = tuple(f"sdist_{name}" for name, more in words if more)
    assert [
        name for name in everything() if name not in told_of and not name.startswith(begins)
    ] == []
