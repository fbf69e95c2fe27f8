"""Ships revisiting: pages are requested again, those that change more often sooner.

Such a crawl has no end.
"""

from typing import Any

from scrapyd_dist.strategy.breadth_first import BreadthFirst
from scrapyd_dist.strategy.interface import Request, Response
from scrapyd_dist.strategy.traps import number_of

#: the key in a request's meta: how the page was, and when it is due
SEEN = "revisit"
# What the interval of a page is multiplied with.
CHANGED = 0.5  #: when it has changed
SAME = 1.5  #: when it has not
FAILED = 2.0  #: when it could not be had
#: times in a row that a page may fail before it is given up
FAILURES = 5


class Revisit(BreadthFirst):
    """Finds pages breadth first, and requests each again after an interval of its own.

    The first `interval` is a day. It halves when the page has changed and grows by half when it has
    not, and stays from `shortest` (an hour) to `longest` (thirty days), all in seconds.
    """

    def __init__(
        self,
        *,
        interval: int | str = 86_400,
        shortest: int | str = 3_600,
        longest: int | str = 2_592_000,
        **limits: Any,
    ) -> None:
        super().__init__(**limits)
        self.interval = number_of("interval", interval)
        self.shortest = number_of("shortest", shortest)
        self.longest = number_of("longest", longest)

    def page_crawled(self, response: Response) -> None:
        """Schedule the page again, sooner if it has changed."""
        super().page_crawled(response)
        seen = response.meta.get(SEEN, {})
        factor = 1.0
        if seen.get("digest"):
            factor = SAME if seen["digest"] == response.digest else CHANGED
        self._schedule_again(response.request, factor, digest=response.digest, failures=0)

    def request_error(self, request: Request, error: str) -> None:
        """Schedule the page again, unless it has failed too often."""
        super().request_error(request, error)
        seen = request.meta.get(SEEN, {})
        failures = seen.get("failures", 0) + 1
        if failures < FAILURES:
            self._schedule_again(request, FAILED, digest=seen.get("digest", ""), failures=failures)

    def _schedule_again(
        self, request: Request, factor: float, *, digest: str, failures: int
    ) -> None:
        interval = request.meta.get(SEEN, {}).get("interval", self.interval) * factor
        interval = min(max(interval, self.shortest), self.longest)
        request.meta[SEEN] = {"interval": interval, "digest": digest, "failures": failures}
        request.meta["crawl_at"] = self.now() + interval
        self.schedule(request, self.score(request))
