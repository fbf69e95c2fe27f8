"""Spiders that several test files crawl with."""

#: a plain spider, whose code says nothing of nodes; its items say which code made them, and in which process
NEWS = """
import os

import scrapy

BY = "first"


class News(scrapy.Spider):
    name = "news"

    async def start(self):
        yield scrapy.Request(self.settings["START_URL"])

    def parse(self, response):
        yield {"index": response.url, "by": BY, "pid": os.getpid()}
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article)
        for link in response.css("a.next::attr(href), .next a::attr(href)").getall():
            yield response.follow(link)

    def parse_article(self, response):
        yield {"article": response.url, "by": BY, "pid": os.getpid()}
"""
