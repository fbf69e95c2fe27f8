"""The demo property site as a program: it says its port in one JSON line, and serves."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, get_args

from .behaviour import Behaviours
from .hits import Log
from .pages import INDEX_TEMPLATE, Site, UrlStyle
from .server import Server

#: seconds between two writes of the hit log to its file
FLUSH_INTERVAL = 0.5

_EPILOG = """
While it runs: GET /__hits__ (counts per path), GET /__log__ (all hits, JSON lines), POST /__reset__ (forget them),
POST /__behave__ (a JSON object path -> behaviour, replacing what there is). /echo answers with what was sent to it.
Behaviours: gone, fail, fail:TIMES, status:CODE, busy, busy:SECONDS, hang, slow:SECONDS, reset, cut, redirect:/PATH,
header:NAME=VALUE, cookie:NAME=VALUE, setcookie:NAME=VALUE, says:TEXT; a path that ends in * is a
prefix; ?behave=TEXT works for one request.
"""


def build_parser() -> argparse.ArgumentParser:
    """The options of the program."""
    parser = argparse.ArgumentParser(
        prog="python -m scrapyd_dist.examples.site", description=__doc__, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--items", type=int, default=3000, help="number of detail pages")
    parser.add_argument("--per-page", type=int, default=30, help="links per index page")
    parser.add_argument(
        "--url-style", choices=get_args(UrlStyle), default="numbered", help="how detail URLs look"
    )
    parser.add_argument(
        "--offsite", type=int, default=0, help="links per index page to another host name"
    )
    parser.add_argument(
        "--duplicates", type=int, default=0, help="links per index page that stand there twice"
    )
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--behave", type=Path, help="JSON file: path -> behaviour")
    parser.add_argument("--log", type=Path, help="file that gets one JSON line per hit")
    parser.add_argument(
        "--log-headers", action="store_true", help="log all headers instead of a hash of them"
    )
    parser.add_argument(
        "--until-eof", action="store_true", help="end when standard input is closed"
    )
    return parser


def site_from(options: argparse.Namespace) -> Site:
    """The site that the options describe."""
    return Site(
        items=options.items,
        per_page=options.per_page,
        url_style=options.url_style,
        offsite=options.offsite,
        duplicates=options.duplicates,
    )


def announcement(site: Site, host: str, port: int) -> dict[str, Any]:
    """What is printed once it listens."""
    url = f"http://{host}:{port}"
    return {
        "port": port,
        "url": url,
        "index": url + INDEX_TEMPLATE,
        "items": site.items,
        "pages": site.pages,
    }


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGINT, SIGTERM or, if asked for, the end of standard input."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    behaviours = json.loads(options.behave.read_text(encoding="utf-8")) if options.behave else {}
    log = Log(options.log, with_headers=options.log_headers)
    server = Server(
        site_from(options), log, latency=options.latency, behaviours=Behaviours.parse(behaviours)
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if options.until_eof:
        loop.add_reader(sys.stdin.fileno(), ended.set)
    port = await server.start(options.host, options.port)
    print(json.dumps(announcement(server.site, options.host, port)), flush=True)
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), FLUSH_INTERVAL)
        except asyncio.TimeoutError:
            log.flush()
    server.close()


def main() -> None:
    """Run the program."""
    asyncio.run(serve(build_parser().parse_args()))


if __name__ == "__main__":
    main()
