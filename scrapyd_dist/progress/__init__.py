"""A crawl in numbers: counts of batches, rates, estimates, the summary."""
