"""The producer half of a crawl: what the spider yields, and the process that finds, sends or lets lease, and waits."""
