"""The demo: a property site to crawl, and a plain Scrapy project that crawls it."""
