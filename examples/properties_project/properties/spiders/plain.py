"""A Spider without rules: its callbacks say which request leads where."""

import scrapy

from properties.items import property_from
from properties.spiders.starting import StartHere


class PlainSpider(StartHere, scrapy.Spider):
    """Crawls the property site by callbacks."""

    name = "plain"

    def parse(self, response):
        """An index page: its properties, then the next page."""
        for href in response.css("a[itemprop=url]::attr(href)").getall():
            yield response.follow(href, callback=self.parse_article)
        for href in response.css("a.next::attr(href)").getall():
            yield response.follow(href, callback=self.parse)

    def parse_article(self, response):
        """One detail page, one item."""
        yield property_from(response)
