"""Crawling strategies: one class decides what a crawl requests next; its links and their states are in the store."""
