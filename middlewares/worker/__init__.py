"""The worker; it travels in the egg, so it imports Scrapy and the standard library only."""
