"""Holds the crawl frontier: its values, its slots, how requests are read, packed and added."""
