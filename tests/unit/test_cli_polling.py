"""Looking again and again: how often, how long, and what comes in between."""

import pytest
from scrapyd_dist.cli import output


@pytest.mark.parametrize(("answer_at", "deadline", "expected"), [(0, 10, True), (6, 10, True), (20, 10, False)])
def test_it_is_asked_until_the_answer_is_yes_or_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, answer_at: float, deadline: float, expected: bool
) -> None:
    clock, between = [0.0], []
    monkeypatch.setattr("scrapyd_dist.cli.output.time.monotonic", lambda: clock[0])

    def turn(seconds: float) -> None:
        clock[0] += seconds

    got = output.poll_until(
        lambda: clock[0] >= answer_at,
        2,
        deadline=deadline,
        meanwhile=lambda: between.append(clock[0]),
        pause=turn,
    )
    assert (got, clock[0]) == (expected, min(answer_at, deadline))
    assert between == list(range(0, int(clock[0]), 2))


def test_a_deadline_that_is_over_still_gets_one_answer() -> None:
    assert output.poll_until(lambda: True, 1, deadline=0)
    assert not output.poll_until(lambda: False, 1, deadline=0)
