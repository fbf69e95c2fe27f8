"""One crawl as a page: values from the store, pictures drawn by hand, and the page around them.

The rule it keeps: the page is one file that fetches nothing and runs nothing; what came over the wire is escaped.
"""

from scrapyd_dist.report.document import document
from scrapyd_dist.report.facts import Facts, NodeNow, gather
from scrapyd_dist.report.page import page

__all__ = ["Facts", "NodeNow", "document", "gather", "page"]
