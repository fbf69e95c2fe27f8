"""How often Scrapy is asked whether a found request leads to another site."""

from unittest.mock import MagicMock

from scrapy import Request, Spider
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapyd_dist.middlewares.classifier import OffsiteFilter


def test_scrapy_is_asked_once_for_an_origin_until_the_domains_of_the_spider_change() -> None:
    asked: list[str] = []

    def should_follow(request: Request, spider: Spider) -> bool:
        asked.append(request.url)
        return "own.test" in request.url

    middleware = OffsiteMiddleware(MagicMock())
    middleware.should_follow = should_follow  # type: ignore[method-assign]
    spider = Spider("s", allowed_domains=["own.test"])
    crawler = MagicMock(spider=spider)
    crawler.get_downloader_middleware.return_value = middleware
    offsite = OffsiteFilter(crawler)
    urls = [f"http://{host}/{page}" for page in range(3) for host in ("own.test", "other.test")]
    assert [offsite.drops(Request(url)) for url in urls] == [False, True] * 3
    assert asked == urls[:2]
    spider.allowed_domains.append("other.test")  # type: ignore[attr-defined]
    assert offsite.drops(Request(urls[1]))
    assert asked == [*urls[:2], urls[1]]
