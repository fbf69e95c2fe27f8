"""What runs inside a Scrapy process: the worker half, which travels in the egg, and the producer half."""
