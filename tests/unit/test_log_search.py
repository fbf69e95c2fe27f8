"""What matches in the logs of jobs, with the lines around it."""

import pytest

from scrapyd_dist.joblogs.joblog import LogLine, LogLines
from scrapyd_dist.jobs.log_search import groups


def lines(text: str) -> list[LogLine]:
    reader = LogLines()
    return [*reader.feed(text.encode()), *reader.end()]


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("abcdxefgh", {}, ["X"]),
        ("abcdxefgh", {"around": 2}, ["cdXef"]),
        ("xabc", {"around": 2}, ["Xab"]),
        ("abcx", {"around": 2}, ["bcX"]),
        ("axbxc", {"around": 1}, ["aXb", "Xc"]),
        ("axbbxc", {"around": 1}, ["aXb", "bXc"]),
        ("axbcdexf", {"around": 1}, ["aXb", "eXf"]),
        ("xaxaxa", {"most": 2}, ["X", "X"]),
        ("xaxaxa", {"most": 1, "around": 1}, ["Xa"]),
        ("xxx", {"around": 5}, ["XXX"]),
        ("abc", {"around": 5}, []),
    ],
)
def test_matches_and_the_lines_around_them(
    text: str, options: dict[str, int], told: list[str]
) -> None:
    found = groups(
        lines("\n".join(text)),
        lambda line: line.text == "x",
        **{"around": 0, "most": 99, **options},
    )
    assert [
        "".join(line.text.upper() if hit else line.text for line, hit in group) for group in found
    ] == told
