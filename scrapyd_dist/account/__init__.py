"""A crawl in numbers: what became of its batches, how fast it gets on, what it comes to at its end."""
