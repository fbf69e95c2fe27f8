"""Represents Scrapyd as values: what is sent to a node, and how its answer is read."""
