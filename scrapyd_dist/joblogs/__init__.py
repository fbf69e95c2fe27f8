"""Finds out what single jobs did: by their worker's report, or by the log of any Scrapy job."""
