"""What a job may do without the store, and what of it is counted by its report, once."""

from collections import Counter
from typing import Any

from rig.members import report

from scrapyd_dist.scheduling.job_allowance import JobAllowance


def told(**fields: Any) -> Any:
    return report(**{"no_lease": "it is another machine", **fields})


def test_a_report_is_counted_once_and_releases_what_was_made() -> None:
    allowance = JobAllowance(limits={"requests": 20, "items": 9}, reserved=10)
    assert allowance.document == {"requests": 20, "items": 9}
    first = allowance.settle(told(done=3, pages=3, items=2))
    assert +first == Counter(requests=3, pages=3, items=2)
    assert first["reserved"] == -3
    again = allowance.settle(told(done=3, pages=3, items=2))
    assert +again == Counter()
    assert allowance.reserved == 7


def test_a_job_that_ends_releases_the_rest_and_one_that_is_lost_may_have_made_it() -> None:
    over = JobAllowance(limits={"requests": 20}, reserved=10)
    assert over.settle(told(done=3), over=True) == Counter(requests=3, reserved=-10)
    lost = JobAllowance(limits={"requests": 20}, reserved=10)
    assert lost.settle(None, lost=True) == Counter(requests=10, reserved=-10)


def test_a_job_with_a_lease_asks_the_store_itself() -> None:
    allowance = JobAllowance(limits={"requests": 20}, reserved=10)
    assert allowance.settle(report(done=3, lease=True)) == Counter(reserved=-10)
    assert allowance.document == {}
