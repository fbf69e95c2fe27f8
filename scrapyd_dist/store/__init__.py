"""Keeps crawls, batches and fingerprints: the ports (base), and each engine's way to serve them."""

from scrapyd_dist.store.base import Store
from scrapyd_dist.store.engines import open_store

__all__ = ["Store", "open_store"]
