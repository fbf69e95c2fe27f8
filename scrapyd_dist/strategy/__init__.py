"""Crawling strategies: one class decides what a crawl requests next, and its links, states and events are in the store."""
