"""Runs inside a Scrapy process: the worker half travels in the egg, the producer half does not."""
