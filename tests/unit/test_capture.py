"""Every found target request ends in the account: offsite, duplicate, refused, local or sealed."""

from collections.abc import Iterable
from typing import Any

import pytest
from cryptography.fernet import Fernet
from scrapy import Request, Spider
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.classifier import LARGE, Disposition
from scrapyd_dist.middlewares.codec import from_value
from scrapyd_dist.middlewares.producer.discovery import Capture

from scrapyd_dist.payload import BATCH_MAX_BYTES
from scrapyd_dist.scheduling.batcher import Batcher

KEY = Fernet.generate_key()


class Plain(Spider):
    name = "plain"
    allowed_domains = ("web",)

    def parse(self, response: Any) -> None: ...


class Bench:
    """A capture in a crawler that is not crawling."""

    def __init__(
        self, *, size: int = 3, key: bytes | None = None, stay: str = "local", before: Iterable[bytes] = ()
    ) -> None:
        crawler = get_crawler(Plain, {})
        self.spider = crawler.spider = Plain.from_crawler(crawler)
        offsite = OffsiteMiddleware.from_crawler(crawler)
        offsite.spider_opened(self.spider)
        # in the place of the real one, whatever is asked for
        crawler.get_downloader_middleware = lambda cls: offsite  # type: ignore[method-assign,assignment,return-value]
        self.cutter = Batcher(size=size, max_age=60)
        self.capture = Capture(crawler, self.spider, self.cutter, key=key, stay=stay)
        self.capture.remember(iter(before))

    def take(self, url: str, shard: int = 0, **fields: Any) -> str:
        fate: str = self.capture.take(Request(url, **fields), shard)[0].value
        return fate


def test_a_batch_is_cut_when_it_is_full_and_its_fingerprints_are_scrapys() -> None:
    bench = Bench(size=2)
    assert bench.capture.take(Request("http://web/1"), 0) == (Disposition.SEALED, None)
    assert bench.capture.buffered == 1
    fate, cut = bench.capture.take(Request("http://web/2"), 0)
    assert fate is Disposition.SEALED
    assert cut
    assert [from_value(value, bench.spider).url for value in cut.values] == ["http://web/1", "http://web/2"]
    fingerprinter = bench.spider.crawler.request_fingerprinter
    assert cut.fingerprints == [fingerprinter.fingerprint(Request(f"http://web/{n}")) for n in (1, 2)]
    assert (bench.capture.buffered, bench.capture.rest()) == (0, [])


def test_each_fate_is_counted_and_sealed_ones_with_their_batch() -> None:
    bench = Bench()
    fates = [
        bench.take("http://web/1"), bench.take("http://web/1#x"), bench.take("http://elsewhere/"),
        bench.take("http://web/2", callback=lambda _: None), bench.take("http://web/2", callback=lambda _: None),
    ]  # fmt: skip
    assert fates == ["sealed", "duplicate", "offsite", "local", "duplicate"]
    assert bench.capture.take_counts() == {"duplicate": 2, "offsite": 1, "local": 1}
    assert bench.capture.take_counts() == {}
    assert (
        list(bench.capture.reasons) == ["Bench.<lambda> is not a method of the spider"]
        or len(bench.capture.reasons) == 1
    )


def test_the_same_page_written_in_another_way_is_a_duplicate() -> None:
    bench = Bench()
    assert [bench.take("http://web/?a=1&b=2"), bench.take("http://web/?b=2&a=1")] == ["sealed", "duplicate"]
    assert bench.take("http://web/?a=1&b=2", method="POST", body=b"x") == "local"  # another request, with a body


@pytest.mark.parametrize("fields", [{"dont_filter": True}, {"meta": {"allow_offsite": True}}])
def test_offsite_can_be_allowed_as_in_scrapy(fields: dict[str, Any]) -> None:
    assert Bench().take("http://elsewhere/", **fields) == "sealed"


def test_what_is_not_to_be_filtered_is_taken_each_time() -> None:
    bench = Bench(size=9)
    assert [bench.take("http://web/", dont_filter=True) for _ in range(3)] == ["sealed"] * 3
    (cut,) = bench.capture.rest()
    assert len(set(cut.fingerprints)) == 3


def found_by(bench: Bench) -> list[bytes]:
    """What a walk of two shards finds; the fingerprints of what it sealed."""
    for shard in (0, 1):
        for n in (1, 2, 1):
            bench.take(f"http://web/{n}", shard)
            bench.take(f"http://web/{n}", shard, dont_filter=True)
    return [fingerprint for cut in bench.capture.rest() for fingerprint in cut.fingerprints]


def test_a_shard_that_is_walked_again_seals_only_what_was_not_sealed_before() -> None:
    every = found_by(Bench(size=99))
    assert len(every) == len(set(every)) == 2 + 6
    assert found_by(Bench(size=99, before=every)) == []
    assert sorted(found_by(Bench(size=99, before=every[:3]))) == sorted(every[3:])


def test_what_was_sealed_before_and_is_found_again_is_not_counted_as_a_duplicate_twice() -> None:
    every = found_by(Bench(size=99))
    bench = Bench(size=99, before=every)
    assert bench.take("http://web/1") == "sealed"
    assert bench.take("http://web/1") == "duplicate"
    assert bench.capture.buffered == 0


HIDDEN: list[dict[str, Any]] = [
    {"cookies": {"a": "b"}}, {"headers": {"Authorization": "x"}}, {"method": "POST", "body": b"x"},
    {"meta": {"proxy": "http://u:p@proxy/", "$x": 1}},
]  # fmt: skip


@pytest.mark.parametrize("fields", HIDDEN)
@pytest.mark.parametrize(
    ("key", "stay", "fate"),
    [(KEY, "local", "sealed"), (None, "local", "local"), (None, "refuse", "refused")],
    ids=["sealed", "local", "refused"],
)
def test_what_must_be_hidden_travels_with_a_key_only(
    fields: dict[str, Any], key: bytes | None, stay: str, fate: str
) -> None:
    bench = Bench(key=key, stay=stay)
    assert bench.take("http://web/", **fields) == fate
    assert bool(bench.capture.reasons) == (fate != "sealed")


def test_a_request_that_is_too_large_for_a_job_stays() -> None:
    import random

    noise = random.Random(7).randbytes(BATCH_MAX_BYTES).hex()
    bench = Bench()
    assert bench.take("http://web/fits?" + "x" * LARGE * 2) == "sealed"  # it can be compressed
    assert bench.take("http://web/large?" + noise[:LARGE]) == "sealed"
    assert bench.take("http://web/larger?" + noise) == "local"
    assert "too large" in next(iter(bench.capture.reasons))


def test_reasons_are_told_the_most_frequent_first() -> None:
    bench = Bench(stay="refuse")
    for n in range(3):
        bench.take(f"http://web/{n}", cookies={"a": "b"})
    bench.take("http://web/9", meta={"a": {1}})
    told = bench.capture.stayed()
    assert told[0].startswith("3 target requests are refused, and not crawled: it has cookies")
    assert told[1].startswith("1 target requests are refused, and not crawled: its meta has a set")


def test_a_batch_is_due_by_its_age() -> None:
    bench = Bench()
    bench.cutter._max_age = 0.0
    assert bench.capture.due() == []
    bench.take("http://web/")
    (cut,) = bench.capture.due()
    assert len(cut.values) == 1
