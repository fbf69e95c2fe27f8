"""Where crawls, batches and fingerprints are kept: one blocking interface (base), one file per engine."""

from scrapyd_dist.store.base import Store, open_store

__all__ = ["Store", "open_store"]
