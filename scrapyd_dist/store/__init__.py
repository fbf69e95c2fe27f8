"""Keeps crawls, batches and fingerprints: `open_store` gives a `Store`, whichever its engine is."""

from scrapyd_dist.store.engines import open_store
from scrapyd_dist.store.guarded_store import Store

__all__ = ["Store", "open_store"]
