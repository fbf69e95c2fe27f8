"""Scrapyd as values: what is sent to a node, how its answer is read, and the same question to many nodes."""
