"""What a crawl lacks at its end: its exit code, and what continues it."""

from typing import Any

import pytest

from scrapyd_dist.progress.crawl_outcome import crawl_exit_code, next_command


@pytest.mark.parametrize(
    ("fields", "max_failed", "code"),
    [
        ({}, 0, 0),
        ({"gone_urls": 50}, 0, 0),
        ({"failed_urls": 1}, 0, 3),
        ({"failed_urls": 2}, 2, 0),
        ({"failed_urls": 3}, 2, 3),
        ({"dead_urls": 2}, 0, 3),
        ({"dead_urls": 2, "failed_urls": 1}, 2, 3),
        ({"refused": 1}, 0, 3),
        ({"index_failed": 1}, 0, 3),
        ({"batches": {"total": 2, "done": 0}, "dead_urls": 9}, 0, 1),
        ({"batches": {"total": 0, "done": 0}}, 0, 0),
    ],
)
def test_exit_codes(fields: dict[str, Any], max_failed: int, code: int) -> None:
    good = {
        "failed_urls": 0,
        "dead_urls": 0,
        "refused": 0,
        "index_failed": 0,
        "batches": {"total": 2, "done": 2},
    }
    assert crawl_exit_code({**good, **fields}, max_failed=max_failed) == code


def test_what_the_producer_crawled_in_vain_is_not_tried_again() -> None:
    requests = {"total": 3000, "sent": 3000, "done": 3000, "succeeded": 3000}
    assert (
        next_command(
            {
                "crawl": "c",
                "state": "finished",
                "exit_code": 3,
                "failed_urls": 8,
                "requests": requests,
            }
        )
        == ""
    )
