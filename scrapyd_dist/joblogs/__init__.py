"""What single jobs really did: by their worker's report, or by the log that any Scrapy job writes."""
