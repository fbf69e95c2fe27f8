"""How fast a job gets on, by the lines of its log."""

from datetime import datetime, timedelta

from scrapyd_dist.jobs.joblog import Lines
from scrapyd_dist.jobs.jobrates import LogCounts, Rates, is_told

START = datetime(2026, 11, 20, 12, 0, 0)  # noqa: DTZ001 - as logs have it


def at(second: float, logger: str, level: str, message: str) -> str:
    return f"{START + timedelta(seconds=second):%Y-%m-%d %H:%M:%S} [{logger}] {level}: {message}\n"


def page(second: float) -> str:
    return at(second, "scrapy.core.engine", "DEBUG", "Crawled (200) <GET http://w/1> (referer: None)")


def item(second: float) -> str:
    return at(second, "scrapy.core.scraper", "DEBUG", "Scraped from <200 http://w/1>") + "{'Crawled (': 1}\n"


def told(second: float, pages: int, rate: int) -> str:
    text = f"Crawled {pages} pages (at {rate} pages/min), scraped {pages // 2} items (at {rate // 2} items/min)"
    return at(second, "scrapy.extensions.logstats", "INFO", text)


def error(second: float) -> str:
    return at(second, "shop", "ERROR", "oh no") + "Traceback\n"


def counted(*texts: str) -> LogCounts:
    counts = LogCounts()
    for line in Lines().feed("".join(texts).encode()):
        counts.take(line)
    return counts


def test_pages_and_items_are_counted_where_the_log_has_them() -> None:
    counts = counted(*(page(second) + item(second) for second in range(31)), error(30))
    assert counts.rates() == Rates(pages=62.0, items=62.0, errors=2.0)
    assert (counts.all_pages, counts.all_items) == (None, None)


def test_totals_are_what_scrapy_said_and_what_came_after() -> None:
    counts = counted(page(0), told(1, 600, 300), page(2), item(2), page(3))
    assert (counts.all_pages, counts.all_items) == (602, 301)
    # Three seconds are too few to count by.
    assert counts.rates() == Rates(pages=300.0, items=150.0, errors=0.0)


def test_scrapys_first_word_is_no_rate() -> None:
    assert counted(told(0, 0, 0), page(0), page(1), page(2)).rates().pages == 90


def test_a_log_without_debug_has_scrapys_own_words_only() -> None:
    counts = counted(told(0, 100, 100), error(30), told(60, 300, 200))
    assert counts.rates() == Rates(pages=200.0, items=100.0, errors=1.0)
    assert (counts.all_pages, counts.all_items) == (300, 150)


def test_what_a_log_does_not_say_is_not_known() -> None:
    assert counted().rates() == Rates()
    assert counted("no log at all\n").rates() == Rates()
    assert counted(error(0), error(60)).rates() == Rates(pages=None, items=None, errors=1.0)


def test_a_silent_job_gets_nowhere() -> None:
    counts = counted(*(page(second) for second in range(60)))
    assert counts.rates(silent=61) == Rates(pages=0.0, items=0.0, errors=0.0)
    assert counts.rates(silent=30).pages == 30


def test_only_the_last_minute_counts_and_little_is_kept() -> None:
    counts = counted(told(-86400, 10, 10), *(page(second) for second in range(-500, 0)), page(4) * 7, error(10))
    assert counts.rates() == Rates(pages=7 + 49, items=0.0, errors=1.0)
    assert counts.all_pages == 10 + 507
    assert len(counts._seconds) <= 60


def test_only_scrapys_own_word_is_taken_for_it() -> None:
    fake = at(0, "shop", "INFO", "Crawled 9 pages (at 9 pages/min), scraped 9 items (at 9 items/min)")
    lines = list(Lines().feed((fake + told(0, 1, 1)).encode()))
    assert [is_told(line) for line in lines] == [False, True]
    odd = at(0, "scrapy.extensions.logstats", "INFO", "Crawled many pages")
    assert counted(odd).all_pages is None


def test_negative_rates_are_none() -> None:
    text = "Crawled 9 pages (at -3 pages/min), scraped 9 items (at -2 items/min)"
    assert counted(at(0, "scrapy.extensions.logstats", "INFO", text)).rates() == Rates(pages=0, items=0, errors=0)
