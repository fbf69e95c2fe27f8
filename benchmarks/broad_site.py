"""One server that is many hosts, each with its own delay: scrapy-bench's law, a few that hardly answer, or none.

The rule it keeps: the same seed is the same delays, host by host; and the host is what the `Host` header says. It says
its port in one JSON line, and serves until standard input is closed. GET /__answers__ tells when each answer left, and
/__reset__ forgets them.
"""

import argparse
import asyncio
import json
import random
import sys
import time

from scrapyd_dist.examples.pages import Site
from scrapyd_dist.examples.server import Answer, Request, Server, response

#: seconds that a host takes at least, and the normal distribution that its mean is of
LEAST, MEAN, SIGMA = 0.1, 0.2, 4.0
#: with `few-slow`: each tenth host takes SLOW seconds, the others FAST
EVERY, SLOW, FAST = 10, 15.0, 0.2
PAGE = (
    b"<!DOCTYPE html><html><head><title>Page</title></head><body><h1>Page</h1>"
    + b"<p>Words.</p>" * 300
    + b"</body></html>"
)


def host_name(number: int) -> str:
    """What a host is called; no such name is on the net (RFC 6761)."""
    return f"host{number:04d}.test"


def number_of(host: str) -> int:
    """The host of a `Host` header."""
    return int(host.partition(".")[0].removeprefix("host"))


def means(law: str, hosts: int, seed: int) -> list[float]:
    """The mean delay of each host, in seconds."""
    dice = random.Random(seed)
    if law == "at-once":
        return [0.0] * hosts
    if law == "few-slow":
        return [SLOW if number % EVERY == 0 else FAST for number in range(hosts)]
    return [max(LEAST, dice.normalvariate(MEAN, SIGMA)) for _ in range(hosts)]


class BroadSite(Server):
    """Every path of every host is a page, after that host's delay."""

    def __init__(self, delays: list[float], seed: int) -> None:
        super().__init__(Site(items=1))
        self._delays, self._dice = delays, random.Random(seed)
        self._page_data = response(200, PAGE)
        self.answers: list[float] = []  #: moments, by time.monotonic()

    def answer(self, request: Request, peer: tuple[str, int]) -> Answer:  # noqa: ARG002 - the demo site's signature
        """The page, or what was answered so far."""
        if request.target == "/__answers__":
            now = time.monotonic()
            return Answer(
                response(200, json.dumps(sorted(at for at in self.answers if at <= now)).encode())
            )
        if request.target == "/__reset__":
            self.answers.clear()
            return Answer(response(200, b""))
        mean = self._delays[number_of(request.host)]
        delay = max(0.0, self._dice.normalvariate(mean, mean / 2))
        self.answers.append(time.monotonic() + delay)
        return Answer(self._page_data, delay)


async def serve(given: argparse.Namespace) -> None:
    """Serve until the end of standard input."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    site = BroadSite(means(given.law, given.hosts, given.seed), given.seed)
    print(json.dumps({"port": await site.start()}), flush=True)
    await ended.wait()
    site.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--law", choices=("broad", "few-slow", "at-once"), default="broad")
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
