"""The throttle inside a Scrapy process: which request may leave when."""
