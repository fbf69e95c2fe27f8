"""Throttles one process; travels in the egg, so imports Scrapy and the standard library only."""
