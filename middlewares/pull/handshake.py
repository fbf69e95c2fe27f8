"""The handshake of a worker with a crawl of another project: its key, and whether it could work there.

No request is made; a project without this code does not start such a job at all. Part of the worker half: imports
Scrapy and the standard library only.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from scrapyd_dist.sealing import public_half

from ..assignment import egg_key
from ..slot_routing import hides_addon

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.crawler import Crawler

    from ..assignment import PullAssignment


def introduce(crawler: Crawler, job: PullAssignment, uploads: Sequence[str]) -> tuple[str, str]:
    """The public half of this egg's key ("" without one), and why this code cannot work for the crawl ("" if it can).

    Args:
        crawler: of the spider that the work is for.
        job: what the worker was told.
        uploads: the project's feeds that are stored elsewhere when a job closes.
    """
    key = egg_key()
    return ("" if key is None else public_half(key)), _why_not(crawler, job, uploads, key)


def _why_not(crawler: Crawler, job: PullAssignment, uploads: Sequence[str], key: bytes | None) -> str:
    if hides_addon(crawler.spidercls.custom_settings or {}):
        return (
            f"the custom_settings of the spider {crawler.spidercls.name} set ADDONS, which hides the add-on that its"
            ' workers need; add "scrapyd_dist.Addon": 500 to it there, and deploy again'
        )
    if uploads:
        return (
            f"its setting FEEDS has {uploads[0]}, which is uploaded when a job closes, and what a worker lost on its"
            " way would be in it all the same; take it out of FEEDS, and deploy again"
        )
    if key is None:
        return "its code carries no key; deploy it with sdist deploy-all, in its folder"
    if job.needs_client and find_spec("redis") is None:
        return (
            "this crawl's store is a Redis server, and neither its code nor the node has the client; name the same"
            " store in its project, and deploy again, or install the package redis on the node"
        )
    return ""
