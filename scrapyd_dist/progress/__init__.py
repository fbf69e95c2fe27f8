"""A crawl in numbers: its rates, what is left, its summary, and what that says."""
