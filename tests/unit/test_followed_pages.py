"""Which pages several batches have led to: told whatever is in their items, and only then."""

import tracemalloc
from typing import Any

import pytest
from scrapyd_dist.middlewares.worker.work_unit import BatchUnit, RequestLedger, UnitMark

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.followed_pages import MOST, MOST_URLS, FollowedPages, hash_page
from scrapyd_dist.items.repeats import find_repeated_pages, read_followed

URLS = ["http://web/0", "http://web/1"]


def page(number: int) -> bytes:
    return hash_page(number.to_bytes(4, "big"))


def pages(*numbers: int) -> FollowedPages:
    return FollowedPages.from_addresses(
        {page(number): f"http://web/{number}" for number in numbers}
    )


def test_a_page_of_two_batches_is_counted_once_and_named() -> None:
    found = find_repeated_pages([pages(1, 2), pages(2, 3), pages(2)], [])
    assert (found.count, found.example, found.is_least) == (1, "http://web/2", False)
    assert find_repeated_pages([pages(1), pages(2)], []).count == 0


def test_a_page_that_was_a_request_of_the_crawl_counts_as_well() -> None:
    sealed = [number.to_bytes(4, "big") for number in (2, 7)]
    assert find_repeated_pages([pages(1, 2)], sealed).count == 1


def test_of_very_many_pages_some_are_compared() -> None:
    found = find_repeated_pages([pages(*range(900)), pages(*range(900))], [], most=600)
    assert 200 < found.count < 400
    assert found.is_least


def test_a_report_has_the_lowest_hashes_and_a_few_addresses() -> None:
    many = FollowedPages.from_addresses(
        {page(number): "http://web/" + "x" * 500 for number in range(MOST + 1)}
    )
    assert len(many.hashes) == MOST
    assert len(many.urls) == MOST_URLS
    assert all(len(url) < 400 for url in many.urls)
    assert FollowedPages.read_document(many.document) == many
    assert find_repeated_pages([many], []).is_least


@pytest.mark.parametrize(
    "document",
    [5, {}, {"hashes": "?"}, {"hashes": "AAAA", "urls": [], "count": 1}, {"hashes": 5, "urls": 5}],
)
def test_what_a_store_has_instead_is_passed_over(document: Any) -> None:
    attempts = [
        Attempt(batch=1, number=1, job="", node="", url="", state=AttemptState.ACCEPTED, report=one)
        for one in ({"followed": document}, {}, {"followed": pages(1).document})
    ]
    assert read_followed(attempts) == [pages(1)]


def followed(batch: BatchUnit) -> list[str]:
    document = batch.ledger.close().get("followed")
    return [] if document is None else list(FollowedPages.read_document(document).urls)


def test_the_batchs_own_requests_are_no_followed_pages_unless_they_were_redirected() -> None:
    batch = BatchUnit(1, 1, [{"url": url} for url in URLS], None)
    own = batch.begin(0)
    moved = batch.begin(1)
    follower = batch.begin(source=0)
    ledger = batch.ledger
    assert not ledger.leads_to(own, URLS[0])
    assert ledger.leads_to(moved, "http://web/moved")
    assert ledger.leads_to(follower, "http://web/more")
    ledger.done(0)
    ledger.done(1)
    assert followed(batch) == []
    ledger.led_to(moved, page(1), "http://web/moved")
    ledger.led_to(follower, page(2), "http://web/more")
    assert not ledger.leads_to(follower, "http://web/more"), "it is noted with its first item"
    assert set(followed(batch)) == {"http://web/moved", "http://web/more"}


def test_pages_of_a_request_that_is_made_again_are_left_out() -> None:
    batch = BatchUnit(1, 1, [{"url": url} for url in URLS], None)
    batch.ledger.led_to(batch.begin(source=0), page(1), "http://web/more")
    batch.ledger.missed(0, "failed", "HTTP 500")
    assert followed(batch) == []


def test_a_page_that_is_another_request_of_the_batch_is_left_out() -> None:
    batch = BatchUnit(1, 1, [{"url": url} for url in URLS], None)
    batch.ledger.led_to(batch.begin(0), page(1), URLS[1])
    batch.ledger.done(0)
    batch.ledger.repeats(1, page(1))
    assert followed(batch) == []


def memory_after(pages: int) -> int:
    """Return how many bytes the account of a batch takes once it has led to so many pages."""
    ledger = RequestLedger(URLS)
    tracemalloc.start()
    for number in range(pages):
        ledger.led_to(UnitMark(1, 1, None, number, 0), page(number), f"http://web/{number}")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken


def test_what_a_batch_leads_to_takes_no_more_memory_from_some_number_on() -> None:
    most = 10 * MOST
    # It keeps twice as many at times.
    assert memory_after(3 * most) < 2.5 * memory_after(most)


def test_of_very_many_pages_the_same_are_left_out() -> None:
    batch = BatchUnit(1, 1, [{"url": url} for url in URLS], None)
    ledger = batch.ledger
    number = 6 * MOST
    for one in range(number):
        ledger.led_to(batch.begin(source=one % 2), page(one), f"http://web/{one}")
    ledger.done(0)
    ledger.missed(1, "failed", "HTTP 500")
    lowest, *others = sorted(page(one) for one in range(0, number, 2))
    ledger.repeats(0, lowest)
    told = FollowedPages.read_document(ledger.close()["followed"])
    assert told.count == number / 2 - 1
    assert len(told.hashes) > MOST / 2
    assert told.hashes == others[: len(told.hashes)]
