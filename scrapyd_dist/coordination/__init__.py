"""The coordinator of one crawl: places batches on nodes, watches them, and decides how each attempt ends."""
