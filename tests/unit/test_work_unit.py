"""What has not ended in a batch when its process ends: put off, not made, or open for the next attempt."""

import pytest
from scrapyd_dist.middlewares.worker.work_unit import REST_PUT_OFF, BatchUnit

from scrapyd_dist.batches import FinishReason, not_made

UNENDED = ("unended", "nothing was heard of it")
BY_SETTINGS = "closespider_pagecount"


def begun(row: str = "", ended: int = 1) -> BatchUnit:
    """A batch of three requests, of which the first `ended` have ended, and the next is open."""
    values = [] if row else [{"url": f"http://web/{number}"} for number in range(3)]
    batch = BatchUnit(1, 1, values, None, row=row, sent=bool(row))
    for index in range(0 if row else ended + 1):
        mark = batch.begin(batch.todo.popleft())
        if index < ended:
            batch.ledger.done(index)
            batch.end(mark)
    return batch


@pytest.mark.parametrize(
    ("reason", "keeps_part", "settled", "rest"),
    [
        (FinishReason.GOAL.value, False, True, REST_PUT_OFF),
        ("the project's own reason", False, True, REST_PUT_OFF),
        (FinishReason.SHUTDOWN.value, True, True, REST_PUT_OFF),
        (FinishReason.SHUTDOWN.value, False, False, UNENDED),
        (BY_SETTINGS, False, True, not_made(BY_SETTINGS)),
        (FinishReason.FINISHED.value, True, False, UNENDED),
        (FinishReason.TIMEOUT.value, True, False, UNENDED),
    ],
)
def test_the_rest_of_a_batch_is_settled_by_why_its_process_ends(
    reason: str, keeps_part: bool, settled: bool, rest: tuple[str, str]
) -> None:
    batch = begun()
    assert batch.settle_rest(reason, keeps_part=keeps_part) is settled
    outcomes = [batch.ledger.outcome(index) for index in range(3)]
    assert outcomes == [None, rest, rest]


def test_a_batch_of_which_nothing_has_ended_is_not_cut_short() -> None:
    assert not begun(ended=0).settle_rest(FinishReason.SHUTDOWN.value, keeps_part=True)


@pytest.mark.parametrize(
    ("reason", "settled"),
    [
        (FinishReason.FINISHED.value, True),
        (BY_SETTINGS, True),
        (FinishReason.SHUTDOWN.value, False),
        ("the project's own reason", False),
    ],
)
def test_a_row_of_arguments_is_done_when_its_run_did_what_its_settings_ask_for(
    reason: str, settled: bool
) -> None:
    batch = begun(row="a=1")
    is_settled = batch.settle_rest(reason, keeps_part=False)
    outcome = batch.ledger.outcome(0)
    assert (is_settled, outcome is None) == (settled, settled)


@pytest.mark.parametrize("reason", [BY_SETTINGS, "closespider_errorcount"])
def test_a_redirect_that_is_still_under_way_when_the_settings_end_the_job_was_not_made(
    reason: str,
) -> None:
    """It was not filtered, and may be retried."""
    batch = begun()
    batch.ledger.redirected(1, "http://web/elsewhere")
    batch.end(batch.begin(batch.todo.popleft()))
    batch.ledger.redirected(2, "http://web/filtered")
    batch.settle_rest(reason, keeps_part=False)
    filtered = ("gone", "redirected to http://web/filtered, which was filtered")
    outcomes = [batch.ledger.outcome(index) for index in range(3)]
    assert outcomes == [None, not_made(reason), filtered]
