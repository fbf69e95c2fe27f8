"""Samples of a crawl: when one is due, and what it counts."""

import json

from scrapyd_dist.progress.samples import is_sample_due, sample_of


def test_samples_get_rarer_as_the_crawl_gets_older() -> None:
    assert is_sample_due(5.0, None, 5.0)
    assert [is_sample_due(now, 5.0, 0.0) for now in (5.9, 6.0)] == [False, True]
    assert [is_sample_due(now, 5000.0, 0.0) for now in (5001.0, 5010.1)] == [False, True]


def test_a_sample_counts_what_goes_to_nodes_only() -> None:
    summary = {
        "state": "working", "urls_distinct": 12, "local": 1, "refused": 1,
        "requests": {"total": 9, "sent": 7, "done": 3}, "pages": 5, "items": 4, "index": {"pages": 2, "total": None},
        "nodes": [{"name": "web1", "pages": 3, "items": 2, "running": 1, "state": "up"}],
    }  # fmt: skip
    sample = sample_of(summary, {"0": [2, 9, 1.0, 2.0]})
    assert (sample["found"], sample["sealed"], sample["sent"], sample["done"]) == (10, 9, 7, 3)
    assert sample["nodes"] == {"web1": [3, 2, 1, "up"]}
    assert json.loads(json.dumps(sample)) == sample
