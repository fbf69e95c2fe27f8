"""The crawl frontier: slots and batches as values, cutting requests into batches, adding them, tracking producers."""
