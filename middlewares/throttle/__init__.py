"""The throttle in a process; it travels in the egg, so it imports Scrapy and the standard library only."""
