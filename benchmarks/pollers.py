"""A worker without Scrapy: it asks for the next permit as soon as it has used one, and fetches a page with each.

One process; `throttle.py` starts several. In its file: what it fetched with which permit, and what its looks cost.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
from cluster_rival import ClusterThrottle

from scrapyd_dist.store import open_store
from scrapyd_dist.throttle.permits import Limit, PermitRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: what both call the site's queue
KEY = "bench"


def ours(store_url: str, limit: Limit, end: float, count: Callable[[str], None]) -> Iterator[float]:
    """The moments of our permits, each when it has come."""
    ask = PermitRequest(key=KEY, domain=KEY, limit=limit)
    with closing(open_store(store_url, durable=False)) as store:
        while time.time() < end:
            taken = store.take_permits([ask])
            count("asks")
            at = taken.answers[0].permits[0].at
            time.sleep(max(0.0, at - time.time()))
            yield at


def cluster(
    store_url: str, limit: Limit, end: float, count: Callable[[str], None], *, name: str
) -> Iterator[float]:
    """The moments of Scrapy Cluster's permits; it looks again at once when it is denied one."""
    with closing(redis.Redis.from_url(store_url)) as client:
        throttle = ClusterThrottle(client, KEY, limit, name)
        while time.time() < end:
            count("asks")
            if throttle.pop() is None:
                count("denied")
            else:
                yield time.time()


def work(given: argparse.Namespace) -> dict[str, Any]:
    """Fetch a page with each permit until the end; what `throttle.py` reads."""
    limit = Limit(hits=given.hits, window=given.window)
    end = given.begin + given.seconds
    counts = {"asks": 0, "denied": 0}

    def count(what: str) -> None:
        counts[what] += time.time() < end

    permits = (
        ours(given.store, limit, end, count)
        if given.kind == "ours"
        else cluster(given.store, limit, end, count, name=given.name)
    )
    time.sleep(max(0.0, given.begin - time.time()))
    used = []
    with closing(http.client.HTTPConnection(urlsplit(given.site).netloc)) as site:
        for number, at in enumerate(permits):
            target = f"/?worker={given.name}&page={number}"
            site.request("GET", target)
            site.getresponse().read()
            used.append({"target": target, "at": at})
    return {"used": used, "given": len(used), "asks": counts["asks"], "denied": counts["denied"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=("ours", "cluster"), required=True)
    parser.add_argument(
        "--store", required=True, help="address of the store, or of the Redis server"
    )
    parser.add_argument("--site", required=True, help="URL of the site")
    parser.add_argument("--hits", type=int, required=True)
    parser.add_argument("--window", type=float, required=True, help="seconds")
    parser.add_argument(
        "--begin", type=float, required=True, help="when to begin, by the clock of the wall"
    )
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--name", required=True, help="of this worker")
    parser.add_argument(
        "--out", type=Path, required=True, help="file that gets what it did, as JSON"
    )
    given = parser.parse_args()
    given.out.write_text(json.dumps(work(given)), encoding="utf-8")


if __name__ == "__main__":
    main()
