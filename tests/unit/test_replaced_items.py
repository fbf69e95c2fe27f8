"""Which items count no more once a request was tried again, and what remains of the files that have them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapyd_dist.middlewares.worker.work_unit import RequestLedger

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.config import PARTS
from scrapyd_dist.items.delivery import deliver
from scrapyd_dist.items.json_lines import count_items, left_out, without_runs
from scrapyd_dist.items.merging import ItemOutput
from scrapyd_dist.joblogs.worker_report import BadReport, read_report, to_kept
from scrapyd_dist.scheduling.batch_counters import BatchCounters

RETRIES = 10


def report(account: RequestLedger) -> bytes:
    """The last report of a worker with this account."""
    head = {"schema": 1, "state": "ended", "updated": 1.0, "finish_reason": "finished"}
    return json.dumps({**head, **account.close()}).encode()


def attempt(batch: int, words: dict[str, Any], part: str = "") -> Attempt:
    """An accepted one."""
    return Attempt(
        batch=batch, number=1, job=f"c.b{batch}.a1", node="n", url="http://n", state=AttemptState.ACCEPTED,
        report=json.loads(json.dumps(words)), part=part,
    )  # fmt: skip


def failing(items: list[int | None], *, again: bool = False, fails: bool = True) -> RequestLedger:
    """A batch of two requests that yields items of these, in this order; the second one fails."""
    account = RequestLedger(["http://web/0", "http://web/1"], again=again)
    for source in items:
        account.item(source)
    account.done(0)
    (account.missed(1, "failed", "it raised") if fails else account.done(1))
    return account


def chain(length: int) -> list[Attempt]:
    """A request that fails in batch 1, and again in each of `length` batches that try it once more; two items each."""
    attempts = [attempt(1, to_kept(read_report(report(failing([0, 1, 0, 1])))))]
    for batch in range(2, length + 2):
        place = 1 if batch == 2 else 0
        account = RequestLedger(["http://web/1"], again=True)
        account.item(0)
        account.item(0)
        account.missed(0, "failed", "it raised")
        attempts.append(attempt(batch, to_kept(read_report(report(account)), [(batch - 1, place)])))
    return attempts


def test_of_ten_tries_the_last_one_counts() -> None:
    attempts = chain(RETRIES)
    out = left_out(attempts)
    assert out.pop(1) == [(1, 1), (3, 1)]
    assert out == {batch: [(0, 2)] for batch in range(2, RETRIES + 1)}
    tally = BatchCounters()
    for one in attempts:
        tally.accepted(one.batch, one.report, ())
    recalled = BatchCounters()
    recalled.recall((), list(reversed(attempts)), ())
    assert tally.items == recalled.items == 4


def test_the_same_url_in_another_batch_keeps_its_items() -> None:
    first, again = chain(1)
    other = attempt(7, to_kept(read_report(report(failing([1, 1])))))
    assert left_out([first, again, other]) == {1: [(1, 1), (3, 1)]}
    assert left_out([first, other]) == {}, "what is not accepted yet replaces nothing"


def test_a_request_that_did_not_fail_keeps_its_items_whatever_is_said() -> None:
    first = attempt(1, to_kept(read_report(report(failing([0, 1])))))
    assert left_out([first, attempt(2, {"replaces": [[1, 0], [9, 1]]})]) == {}
    assert left_out([attempt(1, {"items": 4}), attempt(2, {"replaces": [[1, 1]]})]) == {}, (
        "of no known requests"
    )


def test_a_hundred_thousand_items_are_one_run_and_those_of_no_request_are_no_run() -> None:
    account = failing([None, *[1] * 100_000, None])
    assert account.close()["missed_requests"] == [[1, "failed", [[1, 100_000]]]]
    account.located = False
    assert account.close()["missed_requests"] == [[1, "failed", None]]
    assert RequestLedger(["http://web/0"]).close()["missed_requests"] == [[0, "failed", []]], (
        "nothing was heard of it"
    )


@pytest.mark.parametrize(
    "runs", [[[0, 0]], [[-1, 1]], [[0, 2], [1, 1]], [[0, 5]], [["x", 1]], [[1]], 3]
)
def test_runs_that_cannot_be_are_no_report(runs: Any) -> None:
    told = json.loads(report(failing([0, 1])))
    told["missed_requests"] = [[1, "failed", runs]]
    with pytest.raises(BadReport):
        read_report(json.dumps(told).encode())


@given(sources=st.lists(st.sampled_from([0, 1, None]), max_size=30))
def test_what_is_left_are_the_items_of_all_others(sources: list[int | None]) -> None:
    words = to_kept(read_report(report(failing(sources))))
    runs = left_out([attempt(1, words), attempt(2, {"replaces": [[1, 1]]})]).get(1, [])
    assert count_items(runs) == sources.count(1)
    lines = ((at, str(source).encode()) for at, source in enumerate(sources))
    assert [line for _, line in without_runs(lines, runs)] == [
        str(one).encode() for one in sources if one != 1
    ]


def test_parts_that_are_not_there_any_more_are_told_and_the_rest_is_merged(tmp_path: Path) -> None:
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "2.jl").write_text('{"a": 1}\n' * 3)
    attempts = [attempt(batch, {"items": 3}, part=f"{batch}.jl") for batch in (1, 2)]
    outputs = [ItemOutput.named(tmp_path / "items.jl")]
    delivered = deliver(
        tmp_path, own=[], attempts=attempts, misses=[], outputs=outputs, feed_url=None
    )
    assert (delivered.items, delivered.lost) == (3, 3)
    assert (tmp_path / "items.jl").read_text() == '{"a": 1}\n' * 3
    (warning,) = delivered.warnings
    assert warning.startswith("3 items are lost: 1 part that came home is not in ")
    assert "sdist items pull" in warning


def test_items_of_the_crawls_own_pages_that_are_not_there_any_more_are_told(tmp_path: Path) -> None:
    (own := tmp_path / "own-0.jl").write_text('{"a": 1}\n')
    outputs = [ItemOutput.named(tmp_path / "items.jl")]
    made = deliver(
        tmp_path, own=[own], own_items=5, attempts=[], misses=[], outputs=outputs, feed_url=None
    )
    assert (made.items, made.lost) == (1, 4)
    assert made.warnings[0].startswith("4 items are lost: ")


def test_feeds_stay_and_their_manifest_says_what_of_them_counts(tmp_path: Path) -> None:
    (tmp_path / PARTS).mkdir()
    first, again = chain(1)
    feeds = [f"file://{tmp_path}/{name}.jl" for name in ("one", "two")]
    attempts = [
        attempt(one.batch, {**one.report, "feeds": [uri]})
        for one, uri in zip((first, again), feeds, strict=True)
    ]
    delivered = deliver(
        tmp_path,
        own=[],
        attempts=attempts,
        misses=[],
        outputs=[],
        feed_url=f"file://{tmp_path}/%(batch)s.jl",
    )
    assert delivered.items == 4
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["feeds"], manifest["replaced"]) == (feeds, {feeds[0]: [[1, 1], [3, 1]]})
