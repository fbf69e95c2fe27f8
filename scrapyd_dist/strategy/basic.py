"""Ships the basic strategy, every link once with the same score, the base of the other ones."""

from collections.abc import Iterable

from scrapyd_dist.strategy.interface import CrawlingStrategy, Request, Response
from scrapyd_dist.strategy.links import States
from scrapyd_dist.strategy.traps import Traps


class BasicStrategy(CrawlingStrategy):
    """Requests every link that the crawl does not know yet, within the limits of its arguments."""

    traps = Traps()

    def __init__(
        self,
        *,
        max_depth: int | str = 0,
        max_pages: int | str = 0,
        max_variants: int | str = 0,
        max_repeats: int | str = 0,
    ) -> None:
        self.traps = Traps.from_arguments(
            max_depth=max_depth,
            max_pages=max_pages,
            max_variants=max_variants,
            max_repeats=max_repeats,
        )

    def read_seeds(self, stream: Iterable[str] | None) -> None:
        """Schedule each line that is neither empty nor a comment."""
        for line in stream or ():
            url = line.strip()
            if url and not url.startswith("#"):
                seed = self.create_request(url)
                self.schedule(seed, self.score(seed))

    def page_crawled(self, response: Response) -> None:
        """Mark the page as crawled."""
        response.meta["state"] = States.CRAWLED

    def filter_extracted_links(self, request: Request, links: list[Request]) -> Iterable[Request]:  # noqa: ARG002 - for strategies below
        """Return the links whose depth and path are within the limits."""
        return [link for link in links if self.traps.passes(link)]

    def links_extracted(self, request: Request, links: list[Request]) -> None:  # noqa: ARG002 - for strategies below
        """Schedule new links, as far as the limits of their domains admit them."""
        for link in links:
            if link.meta["state"] == States.NOT_CRAWLED and self.traps.admit(self.domains, link):
                self.schedule(link, self.score(link))

    def score(self, link: Request) -> float:  # noqa: ARG002 - for strategies below
        """Return the score of a link, from 0.0 to 1.0; `link.meta["depth"]` is 0 for a seed."""
        return 1.0
