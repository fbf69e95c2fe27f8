"""One crawl as a page: values from the store, their series, and the page around them.

Invariant: the page is one file that fetches nothing and runs nothing; every foreign text on it is escaped.
"""

from scrapyd_dist.report.facts import Facts, NodeNow, gather
from scrapyd_dist.report.page import page
from scrapyd_dist.report.series import document

__all__ = ["Facts", "NodeNow", "document", "gather", "page"]
