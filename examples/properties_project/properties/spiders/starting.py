"""What both spiders share: where they begin, and which domain they may not leave."""

from urllib.parse import urlsplit


class StartHere:
    """Begins at `-a start=URL`, else at the setting START_URL, and stays on that host."""

    def __init__(self, *args, start="", **kwargs):
        # Not handed on: a spider attribute called `start` would hide Scrapy's method of that name.
        super().__init__(*args, **kwargs)
        self.start_here = start

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        """Make the spider, and settle its start URL and domain."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        url = spider.start_here or crawler.settings["START_URL"]
        spider.start_urls = [url]
        spider.allowed_domains = [urlsplit(url).hostname]
        return spider
