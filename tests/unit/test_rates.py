"""Growth rates look back over a window, and never run backwards."""

from collections import Counter

import pytest

from scrapyd_dist.progress.rates import KEPT, Rate


def test_a_pace_looks_back_over_its_window_only_never_runs_backwards_and_keeps_little() -> None:
    pace = Rate(window=10)
    assert (set(pace.rates().values()), pace.span) == ({0.0}, 0)
    pace.add(0, Counter(requests=0, pages=5))
    assert set(pace.rates().values()) == {0.0}
    pace.add(5, Counter(requests=500, pages=5))
    assert pace.rates() == {"requests": 100, "pages": 0, "items": 0, "failed": 0}
    for now in (10, 15, 20, 25):
        pace.add(now, Counter(requests=500, pages=5))
    assert set(pace.rates().values()) == {0.0}
    pace = Rate(window=10)
    pace.add(0, Counter(requests=100))
    pace.add(1, Counter(requests=40))  # a batch failed, its requests are to be done again
    assert set(pace.rates().values()) == {0.0}
    for step in range(5000):
        pace.add(1 + step / 100, Counter(requests=40 + step))
    assert len(pace._seen) <= KEPT + 2
    assert pace.rates()["requests"] == pytest.approx(100, rel=0.05)
