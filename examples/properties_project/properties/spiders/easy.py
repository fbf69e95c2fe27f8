"""A CrawlSpider: rule 0 walks the index, rule 1 scrapes the detail pages."""

from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from properties.items import property_from
from properties.spiders.starting import StartHere


class EasySpider(StartHere, CrawlSpider):
    """Crawls the property site by rules."""

    name = "easy"
    rules = (
        Rule(LinkExtractor(restrict_css="a.next")),
        Rule(LinkExtractor(restrict_xpaths='//a[@itemprop="url"]'), callback="parse_item"),
    )

    def parse_item(self, response):
        """One detail page, one item."""
        yield property_from(response)
