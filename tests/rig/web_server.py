"""A generated web as a process of its own: all its hosts on one port, and a log of what was asked for.

`python -m rig.web_server --sites 30` says its port in one JSON line, and serves until standard input is closed.
GET /__log__ at any host has the log, /__count__ its length, and POST /__reset__ forgets it.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.examples.pages import Site
from scrapyd_dist.examples.server import Answer, Request, Server, _Connection, response
from w3lib.url import canonicalize_url

from .http import fetch
from .processes import private_environment
from .projects import Project
from .webs import FAIL, FILE, GONE, HANG, MOVED, RESET, GeneratedWeb, PageVisits, WebSite, host_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TESTS = Path(__file__).resolve().parent.parent
_ROBOTS, _SITEMAP = "/robots.txt", "/sitemap.xml"
#: ports that are tried until one is free at all hosts
_TRIES = 20
#: a spider of any site, whose code says nothing of strategies; it fails at what is no text
PAGE_SPIDER = '''
"""An item for each page, and all its links."""

import scrapy
from scrapy.linkextractors import LinkExtractor


class PageSpider(scrapy.Spider):
    name = "page"
    links = LinkExtractor()

    async def start(self):
        with open(self.seeds, encoding="utf-8") as file:
            for line in file:
                yield scrapy.Request(line.strip())

    def parse(self, response):
        yield {"url": response.url}
        for link in self.links.extract_links(response):
            yield scrapy.Request(link.url)
'''
#: how often its project tries a page again that fails, and follows redirects
RETRIES, REDIRECTS = 1, 3
WEB_SETTINGS: Mapping[str, Any] = {
    "ROBOTSTXT_OBEY": True,
    "RETRY_TIMES": RETRIES,
    "REDIRECT_MAX_TIMES": REDIRECTS,
    "DOWNLOAD_TIMEOUT": 3,
    "COOKIES_ENABLED": False,
    "LOG_LEVEL": "INFO",
    "TELNETCONSOLE_ENABLED": False,
}


def web_project(path: Path) -> Project:
    """A project with that spider, in a folder that is made here."""
    return Project.small(path, "web", {"page": PAGE_SPIDER}, WEB_SETTINGS)


class WebServer(Server):
    """Answers for all hosts of a web."""

    def __init__(self, web: GeneratedWeb, *, latency: float = 0.0) -> None:
        super().__init__(Site(items=1), latency=latency)
        self.web = web
        self.hits: list[tuple[float, str, str]] = []  #: when, host, path with query
        self._listeners: list[asyncio.Server] = []

    async def listen(self) -> int:
        """Listen at all hosts; the port."""
        for _ in range(_TRIES):
            port = await self._listen(0, host_of(0))
            try:
                for host in self.web.sites:
                    if host != host_of(0):
                        await self._listen(port, host)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                self.close()
                continue
            return port
        raise RuntimeError("no port is free at all hosts")

    async def _listen(self, port: int, host: str) -> int:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: _Connection(self, self._connections), host, port, backlog=256
        )
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Stop listening, and drop all connections."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        super().close()

    def answer(self, request: Request, peer: tuple[str, int]) -> Answer:
        """What the web has at this host and path."""
        if request.target == "/__log__":
            return Answer(response(200, json.dumps(self.hits).encode()))
        if request.target == "/__count__":
            return Answer(response(200, str(len(self.hits)).encode()))
        if request.target == "/__reset__":
            self.hits.clear()
            return Answer(response(200, b""))
        host = request.host.partition(":")[0]
        self.hits.append((time.time(), host, request.target))
        site = self.web.sites.get(host)
        return (
            self._of(site, request.target)._replace(delay=self.latency)
            if site
            else Answer(response(404, b""))
        )

    def _of(self, site: WebSite, target: str) -> Answer:
        if target == _ROBOTS:
            text = site.robots_txt
            return Answer(
                response(404 if text is None else 200, (text or "").encode(), kind="text/plain")
            )
        if target == _SITEMAP and site.sitemap:
            return Answer(response(200, self._sitemap(site), kind="application/xml"))
        page = site.page(target)
        if page.kind in {HANG, RESET}:
            return Answer(b"", after="hang" if page.kind == HANG else "reset")
        if page.kind == MOVED:
            return Answer(response(302, b"", {"Location": page.location}))
        if page.kind == FILE:
            return Answer(response(200, bytes(range(256)), kind="application/octet-stream"))
        status = {GONE: 404, FAIL: 500}.get(page.kind, 200)
        links = "".join(
            f'<li><a href="{link.replace("&", "&amp;")}">{link}</a></li>\n' for link in page.links
        )
        return Answer(
            response(status, f"<!DOCTYPE html><title>{target}</title><ul>\n{links}</ul>".encode())
        )

    def _sitemap(self, site: WebSite) -> bytes:
        urls = "".join(
            f"<url><loc>{self.web.url(site.host, target)}</loc></url>" for target in site.sitemap
        )
        return (
            f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{urls}</urlset>'.encode()
        )


@dataclass(frozen=True, kw_only=True)
class WebHit:
    """One request of the log."""

    time: float  #: seconds since the epoch
    host: str
    target: str
    url: str  #: canonical, as fingerprints see it

    @property
    def is_page(self) -> bool:
        """Whether it is a page, and no robots.txt or sitemap."""
        return self.target not in {_ROBOTS, _SITEMAP}


@dataclass(kw_only=True)
class WebVerdict:
    """How the log of a web differs from what a crawl may fetch."""

    missing: list[str] = field(default_factory=list)  #: allowed, and never fetched
    unexpected: list[str] = field(default_factory=list)  #: not allowed, and fetched
    repeated: dict[str, int] = field(
        default_factory=dict
    )  #: allowed, and fetched so many times too often

    @property
    def same_set(self) -> bool:
        """Whether exactly the allowed pages were fetched."""
        return not self.missing and not self.unexpected

    @property
    def exact(self) -> bool:
        """Whether each of them was fetched no more often than it may be."""
        return self.same_set and not self.repeated


def judge_web(hits: Collection[WebHit], allowed: Mapping[str, PageVisits]) -> WebVerdict:
    """Compare them."""
    counts = Counter(hit.url for hit in hits if hit.is_page)
    return WebVerdict(
        missing=sorted(url for url, visits in allowed.items() if counts[url] < visits.least),
        unexpected=sorted(counts.keys() - allowed.keys()),
        repeated={
            url: counts[url] - one.most for url, one in allowed.items() if counts[url] > one.most
        },
    )


class WebProcess:
    """A running web, in an empty folder."""

    def __init__(
        self, folder: Path, *, sites: int, seed: int = 1, scale: float = 1.0, latency: float = 0.0
    ) -> None:
        folder.mkdir(parents=True)
        self._errors = (folder / "web.err").open("wb")
        given = {"sites": sites, "seed": seed, "scale": scale, "latency": latency}
        program = [
            sys.executable,
            "-m",
            "rig.web_server",
            *(f"--{name}={value}" for name, value in given.items()),
        ]
        env, pipe = private_environment(folder, {"PYTHONPATH": str(_TESTS)}), subprocess.PIPE
        self._process = subprocess.Popen(
            program, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=self._errors
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the web did not start:\n{(folder / 'web.err').read_text()}"
        self.web = GeneratedWeb(sites, seed=seed, scale=scale, port=json.loads(line)["port"])
        self.seeds = folder / "seeds.txt"  #: a file with its seeds, one a line
        self.seeds.write_text("".join(f"{url}\n" for url in self.web.seeds), encoding="utf-8")

    def hits(self) -> list[WebHit]:
        """All requests so far, in their order."""
        rows = json.loads(fetch(self.web.url(host_of(0), "/__log__"), timeout=120.0).body)
        known: dict[tuple[str, str], str] = {}
        for _, host, target in rows:
            if (host, target) not in known:
                known[host, target] = canonicalize_url(self.web.url(host, target))
        return [
            WebHit(time=at, host=host, target=target, url=known[host, target])
            for at, host, target in rows
        ]

    def count(self) -> int:
        """How many there are, robots.txt files too."""
        return int(fetch(self.web.url(host_of(0), "/__count__"), timeout=60.0).body)

    def reset(self) -> None:
        """Forget all hits."""
        fetch(self.web.url(host_of(0), "/__reset__"), method="POST")

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=20)
        self._errors.close()


async def _serve(given: argparse.Namespace) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    server = WebServer(
        GeneratedWeb(given.sites, seed=given.seed, scale=given.scale), latency=given.latency
    )
    port = await server.listen()
    # The links between sites have the port, too.
    server.web = GeneratedWeb(given.sites, seed=given.seed, scale=given.scale, port=port)
    print(json.dumps({"port": port}), flush=True)
    await ended.wait()
    server.close()


def main() -> None:
    """Serve until the end of standard input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sites", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
