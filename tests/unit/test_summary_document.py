"""What is read of a stored summary, whatever it has."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.progress.summary_document import finite_number, learned_slots, summary_of


def test_what_is_told_follows_the_row_where_the_summary_is_older() -> None:
    row = Crawl(
        id="c", project="p", spider="s", created=1e9, state=CrawlState.STOPPED, message="stopped", exit_code=3,
        summary={"state": "working", "message": "", "items": 1499},
    )  # fmt: skip
    document = summary_of(row)
    assert (document["state"], document["message"], document["exit_code"]) == (
        "stopped",
        "stopped",
        3,
    )
    assert (document["crawl"], document["items"]) == ("c", 1499)
    assert (document["started"], document["ended"]) == ("2001-09-09T01:46:40+00:00", None)
    assert summary_of(replace(row, ended=1e9 + 90))["ended"] == "2001-09-09T01:48:10+00:00"


def test_what_the_crawls_have_learned_of_slots_is_the_most_that_one_has_seen() -> None:
    def crawl(**learned: int) -> Crawl:
        nodes = [
            {"url": f"http://{name}:6800", "learned": slots} for name, slots in learned.items()
        ]
        return Crawl(id="c", project="p", spider="s", created=0, summary={"nodes": nodes})

    found = learned_slots(
        [crawl(a=1, b=0), crawl(a=8), Crawl(id="d", project="p", spider="s", created=0)]
    )
    assert found == {"http://a:6800": 8, "http://b:6800": 0}


@given(
    st.one_of(
        st.none(), st.booleans(), st.text(), st.floats(), st.integers(), st.lists(st.integers())
    )
)
def test_a_number_is_finite_whatever_came(value: Any) -> None:
    assert abs(finite_number(value)) <= 1e18
