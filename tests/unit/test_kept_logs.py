"""Which logs a node still has, and whether its limit took the others."""

import pytest

from scrapyd_dist.fleet.kept_logs import KeptLogs, find_kept_logs
from scrapyd_dist.scrapyd.api import Job, JobState


def finished(spider: str, logs: str) -> list[Job]:
    """Finished jobs, newest first: + has a log, - has none."""
    urls = [
        f"/logs/p/{spider}/{number}.log" if sign == "+" else None
        for number, sign in enumerate(logs)
    ]
    return [
        Job(id=str(number), project="p", spider=spider, state=JobState.FINISHED, log_url=url)
        for number, url in enumerate(urls)
    ]


def test_which_logs_are_kept() -> None:
    assert find_kept_logs([*finished("a", "++++++---"), *finished("b", "+")]) == KeptLogs(
        kept=7, lost=3, most=6
    )
    assert find_kept_logs([]) == KeptLogs()


@pytest.mark.parametrize(
    ("logs", "by_limit"),
    [
        (("++--", "++"), True),
        (("++++++-----", "+++++------", "++"), True),
        (("+--", "++-"), True),
        (("-",), False),
        (("+++-", "++++++"), False),  # one job wrote none
        (("--",), False),  # the newest keeps its log, whatever the limit
        (("-+", "-+"), False),
        (("++++++-", "++-", "+"), False),
        (("+++", "++++++", "-", "-"), False),
    ],
)
def test_a_job_that_wrote_no_log_is_no_limit(logs: tuple[str, ...], by_limit: bool) -> None:
    jobs = [job for number, row in enumerate(logs) for job in finished(f"s{number}", row)]
    assert find_kept_logs(jobs).by_limit is by_limit
