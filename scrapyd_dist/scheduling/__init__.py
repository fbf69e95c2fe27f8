"""Schedules one crawl's batches: places them on nodes, watches them, and decides how each attempt ends."""
