"""Schedules one crawl's batches: places and watches them, and decides how each attempt ends."""
