"""When a batch is to blame, when it is cut, and into what."""

from dataclasses import replace

import pytest

from scrapyd_dist.batches import Batch
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.payload import decode, encode
from scrapyd_dist.scheduling.base import BatchCounters
from scrapyd_dist.scheduling.collector import ALONE, BLIND, CUTS, PoisonBisector

REPORT = WorkerReport(ended=False, updated=1.0, requests=4, done=0, missed=0, pages=0, items=0)
BATCH = Batch(number=1, size=4)


@pytest.mark.parametrize(
    ("report", "blamed"),
    [
        (REPORT, True),
        (replace(REPORT, ended=True, finish_reason="memusage_exceeded"), True),
        (replace(REPORT, ended=True, finish_reason="finished"), False),
        (replace(REPORT, ended=True, finish_reason="disk-full"), False),
        (replace(REPORT, ended=True, finish_reason="shutdown"), False),
        (replace(REPORT, ended=True, finish_reason="throttle-failed"), False),
        (replace(REPORT, ended=True, finish_reason="failed"), False),
    ],
)
def test_only_a_worker_that_had_begun_blames_its_batch(report: WorkerReport, blamed: bool) -> None:
    assert report.blames_batch is blamed


def test_a_piece_of_a_cut_batch_gets_fewer_attempts() -> None:
    cuts = PoisonBisector()
    assert cuts.attempts(BATCH, 4) == 4
    assert cuts.attempts(replace(BATCH, parent=1), 4) == 1
    assert cuts.attempts(replace(BATCH, parent=1, size=1), 4) == ALONE
    assert cuts.attempts(replace(BATCH, parent=1, size=1), 1) == 1


def test_code_that_cannot_do_any_page_is_not_cut_for_ever() -> None:
    works, broken = BatchCounters(done=1), BatchCounters()
    assert not PoisonBisector().wants(replace(BATCH, size=1), works)
    assert PoisonBisector(made=BLIND - 1).wants(BATCH, broken)
    assert not PoisonBisector(made=BLIND).wants(BATCH, broken)
    assert PoisonBisector(made=BLIND).wants(BATCH, works)
    assert not PoisonBisector(made=CUTS).wants(BATCH, works)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_halves_have_all_requests_in_their_order(count: int) -> None:
    values = [{"url": f"http://site/{number}", "rule": 1} for number in range(count)]
    halves = PoisonBisector().halves(replace(BATCH, slot="s", priority=3), encode(values))
    assert [half.size for half in halves] == [(count + 1) // 2, count // 2]
    assert [value for half in halves for value in decode(half.payload.get)] == values
    assert {(half.slot, half.priority) for half in halves} == {("s", 3)}
