"""The basic strategy: every link once, all with the same score; the base of the other strategies that are shipped."""

from collections.abc import Iterable

from scrapyd_dist.strategy.interface import CrawlingStrategy, Request, Response
from scrapyd_dist.strategy.links import States


class BasicStrategy(CrawlingStrategy):
    """Requests every link that the crawl does not know yet; `score` may be overridden."""

    def read_seeds(self, stream: Iterable[str] | None) -> None:
        for line in stream or ():
            url = line.strip()
            if url and not url.startswith("#"):
                seed = self.create_request(url)
                self.schedule(seed, self.score(seed))

    def page_crawled(self, response: Response) -> None:
        response.meta["state"] = States.CRAWLED

    def links_extracted(self, request: Request, links: list[Request]) -> None:  # noqa: ARG002 - for strategies below
        for link in links:
            if link.meta["state"] == States.NOT_CRAWLED:
                self.schedule(link, self.score(link))

    def score(self, link: Request) -> float:  # noqa: ARG002 - for strategies below
        """Return the score of a link, from 0.0 to 1.0; `link.meta["depth"]` is 0 for a seed."""
        return 1.0
