"""The fault harness in short: nine crawls that something breaks, and a judgement that is able to fail."""

from argparse import Namespace
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from faults.__main__ import MODES, one, plan_runs, table
from faults.kinds import KINDS
from faults.soak import SoakResult
from faults.trial import Limit
from faults.verdict import Verdict, double_sent, over_limit, unfenced

from scrapyd_dist.batches import Attempt, AttemptState

FIRST = Attempt(
    batch=1,
    number=1,
    job="c.b1.a1",
    node="node1",
    url="http://node1/",
    sent_at=100.0,
    ended_at=130.0,
)
SECOND = replace(FIRST, number=2, job="c.b1.a2", node="node2", sent_at=130.0, ended_at=None)


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("name", "redis", "mode"),
    [
        ("a worker killed", False, "auto"),
        ("the producer killed", True, "auto"),
        pytest.param("Redis killed, restarted with its file", True, "auto", marks=pytest.mark.full),
        pytest.param("a node's log folder deleted", False, "push", marks=pytest.mark.full),
        pytest.param("the crawl's own folder deleted", False, "pull", marks=pytest.mark.full),
        pytest.param(
            "parts damaged at home, and gone on the nodes", False, "push", marks=pytest.mark.full
        ),
        pytest.param("a throttle's store emptied", True, "push", marks=pytest.mark.full),
        pytest.param(
            "a throttle's rules lost, and set again", False, "pull", marks=pytest.mark.full
        ),
        pytest.param("a hanging worker, its loop turning", False, "auto", marks=pytest.mark.full),
    ],
)
def test_a_broken_crawl_keeps_every_promise(
    name: str, redis: bool, mode: str, tmp_path: Path, node_python: Path
) -> None:
    kind = next(kind for kind in KINDS if kind.name == name)
    options = Namespace(mode=mode, own_work=False)
    verdict = one(kind, 7, redis=redis, folder=tmp_path, python=node_python, options=options)
    assert verdict.good, verdict


def test_a_second_attempt_that_fetches_too_early_is_seen() -> None:
    attempts = [FIRST, SECOND]
    apart = {FIRST.job: (1.0, 20.0), SECOND.job: (31.0, 50.0)}
    assert double_sent(attempts, apart, offset=100.0) == 0
    assert double_sent(attempts, {**apart, SECOND.job: (25.0, 50.0)}, offset=100.0) == 1
    assert double_sent([replace(FIRST, ended_at=None), SECOND], apart, offset=100.0) == 1


def test_requests_that_a_rule_did_not_allow_are_seen() -> None:
    limit, spread = Limit(hits=2, window=1.0), [(0.1, 0.0), (0.6, 0.5), (1.1, 1.0)]
    assert over_limit(limit, spread) == 0
    assert over_limit(limit, [*spread, (1.2, 1.1)]) == 1
    assert over_limit(limit, [*spread, (3.0, None)]) == 1, "it had no permit"
    early = [(when, permit - 5) for when, permit in [(0.0, 0.0), (0.3, 0.9), (0.4, 1.8)]]
    assert over_limit(limit, early) == 0, "permits that waited for long tell nothing of arrivals"


def test_the_table_adds_up() -> None:
    total = Verdict(runs=2, refetched=3) + Verdict(lost=1)
    assert not total.good
    assert (
        table({("all", "push", "SQLite"): total}).splitlines()[-1]
        == "| all | push | SQLite | 3 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 3 | 0 |"
    )


def test_work_for_a_node_whose_parts_are_lost_is_seen() -> None:
    lost = [
        replace(
            FIRST, state=AttemptState.FAILED, reason="the part of x is gone", ended_at=110.0 + at
        )
        for at in range(3)
    ]
    assert unfenced([*lost, replace(SECOND, node="node1", sent_at=113.0)], "node1") == 0
    late = replace(SECOND, node="node1", sent_at=120.0)
    assert unfenced([*lost, late], "node1") == 1
    assert unfenced([*lost, late], "node2") == 0
    home = replace(FIRST, state=AttemptState.ACCEPTED, ended_at=111.5)
    assert unfenced([*lost, home, late], "node1") == 0


def test_all_runs_are_each_kind_in_each_mode_on_each_store() -> None:
    runs = plan_runs(KINDS, MODES, "both")
    rows = [run.row for run in runs]
    assert len(set(rows)) == len(rows)
    for kind in KINDS:
        stores = (
            {"SQLite", "Redis"} if kind.redis is None else {"Redis" if kind.redis else "SQLite"}
        )
        assert {row[1:] for row in rows if row[0] == kind.name} == set(product(MODES, stores))
    first = {row[:2] for row in rows[: len(KINDS) * len(MODES)]}
    assert len(first) == len(KINDS) * len(MODES), "the first 150 have each kind in each mode"


def test_a_soak_that_grows_or_leaves_something_is_not_good() -> None:
    flat = SoakResult(memory={"scrapyd node1": (50.0, 60.0, 66.0)}, left={"node1: processes": 0})
    assert flat.good
    assert "| scrapyd node1 | 50.0 | 60.0 | 66.0 |" in flat.table()
    assert not replace(flat, lost=["the consumer: {'missing': 1}"]).good
    assert not replace(flat, left={"crawls in the store": 1}).good
    grown = replace(flat, memory={"consumer": (50.0, 60.0, 80.0)})
    assert grown.growing == ["consumer"]
    assert not grown.good
