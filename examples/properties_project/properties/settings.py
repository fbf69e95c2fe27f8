"""Settings of the demo project: an ordinary Scrapy project that knows nothing of being distributed."""

BOT_NAME = "properties"
SPIDER_MODULES = ["properties.spiders"]
NEWSPIDER_MODULE = "properties.spiders"

# Where both spiders begin, unless they are given `-a start=URL`.
START_URL = "http://127.0.0.1:9312/properties/index_00000.html"

ROBOTSTXT_OBEY = False
CONCURRENT_REQUESTS = 16
CONCURRENT_REQUESTS_PER_DOMAIN = 16
DOWNLOAD_DELAY = 0
LOG_LEVEL = "INFO"
