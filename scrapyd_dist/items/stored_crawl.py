"""Says where the items of a crawl are: in files that have come home, or at its feed URL."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scrapyd_dist.batches import Attempt, Crawl
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.delivery import FEEDS, accepted_of, feeds_of, own_parts, read_back
from scrapyd_dist.items.json_lines import Runs, left_out

#: the setting with the feed URL
FEED_URL = "DISTRIBUTED_TARGET_FEED_URL"


@dataclass(frozen=True, kw_only=True)
class StoredCrawl:
    """A crawl of the project's store, and where its items are on this machine."""

    crawl: Crawl
    attempts: tuple[Attempt, ...]
    folder: Path  #: has what has come home of it
    #: gives the feed URL of the project's settings, empty for none; raises ConfigError
    read_feed_url: Callable[[], str]

    @property
    def accepted(self) -> list[Attempt]:
        """The attempts whose items count."""
        return accepted_of(self.attempts)

    @property
    def own(self) -> list[Path]:
        """The files of the producer's own items."""
        return own_parts(self.folder / PARTS)

    @property
    def left_out(self) -> dict[int, Runs]:
        """Batch -> runs of its items that count no more, since their requests were tried again."""
        return left_out(self.accepted)

    def feeds(self) -> tuple[list[tuple[Path, Runs]], list[str]]:
        """Read the accepted feeds back.

        Returns the copies, each with what of it counts no more, and a warning for each feed that
        could not be read.
        """
        accepted = self.accepted
        if not any(attempt.report.get("feeds") and not attempt.part for attempt in accepted):
            return [], []
        feed_url = self._feed_url()
        skip = self.left_out
        batches = feeds_of(accepted, feed_url)
        read, warnings = read_back(batches, feed_url, self.folder / FEEDS)
        copies = [(path, skip.get(batches[uri], [])) for uri, path in read]
        return copies, warnings

    def _feed_url(self) -> str:
        """Return the crawl's feed URL, with the password if there is one; it must not be shown."""
        settings = self.crawl.options.get("settings") or {}
        if settings.get(FEED_URL):
            return str(settings[FEED_URL])
        url = self.read_feed_url()
        if not url:
            raise ConfigError(
                f"The items of {self.crawl.id} are at the feed URL that the project had then, and"
                f" its settings name none now: put {FEED_URL} back, or merge copies of the feeds;"
                f" {self.folder / 'manifest.json'} lists them."
            )
        return url
