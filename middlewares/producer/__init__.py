"""Run the producer half of a crawl: find requests, send them or let workers lease, and wait."""
