"""A start of a spider that waits when all else is done: it is told, once, and only then."""

from scrapyd_dist.middlewares.producer.start_watch import PATIENCE, StartWatch

clock = [0.0]


def ticks(watch: StartWatch, *steps: tuple[float, bool]) -> list[bool]:
    """What each tick says: the seconds since the one before, and whether there was work."""
    answers = []
    for seconds, has_work in steps:
        clock[0] += seconds
        answers.append(watch.waits_in_vain(has_work=has_work))
    return answers


def test_a_start_that_is_all_that_is_left_for_a_minute_is_told_once() -> None:
    watch = StartWatch(lambda: clock[0])
    assert ticks(watch, (1, False), (2 * PATIENCE, False)) == [False, False], "it has not begun"
    with watch.running():
        assert ticks(watch, (1, False), (PATIENCE - 1, False)) == [False, False]
        assert ticks(watch, (1, True), (PATIENCE, False)) == [False, False], "there was work"
        assert ticks(watch, (PATIENCE, False), (PATIENCE, False)) == [True, False]
    assert ticks(watch, (PATIENCE, False), (PATIENCE, False)) == [False, False], "it has ended"
