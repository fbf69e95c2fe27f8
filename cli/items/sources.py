"""Where the items of a crawl are, by what the store knows. Rule: only accepted attempts count as the crawl's items."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.batches import AttemptState, CrawlState
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.delivery import FEEDS, PARTS, accepted_of, feeds_of, own_parts
from scrapyd_dist.items.replaced import left_out

from ..crawls.producing import crawl_folder
from ..storing import maybe_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Attempt, Crawl
    from scrapyd_dist.items.replaced import Runs

_FEED_URL = "DISTRIBUTED_TARGET_FEED_URL"
#: seconds that the project's settings may take to load
_SETTINGS_TIMEOUT = 60


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One crawl, as the store has it."""

    crawl: Crawl
    attempts: tuple[Attempt, ...]
    root: Path  #: of its project

    @property
    def folder(self) -> Path:
        """The crawl's own folder in the state folder."""
        return crawl_folder(self.root, self.crawl.id)

    @property
    def accepted(self) -> list[Attempt]:
        """The attempts whose items count."""
        return accepted_of(self.attempts)

    @property
    def open(self) -> list[Attempt]:
        """The attempts that are out on nodes."""
        return [a for a in self.attempts if a.state in {AttemptState.SENT, AttemptState.RUNNING}]

    @property
    def own(self) -> list[Path]:
        """The files of the producer's own items."""
        return own_parts(self.folder / PARTS)

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.crawl.state is CrawlState.FINISHED

    def part(self, attempt: Attempt) -> Path | None:
        """The part of an accepted attempt on this machine; None where its items went to a feed URL."""
        return self.folder / PARTS / attempt.part if attempt.part else None

    @property
    def left_out(self) -> dict[int, Runs]:
        """Batch -> runs of its items that count no more, since their requests were tried again."""
        return left_out(self.accepted)

    def feeds(self) -> tuple[list[tuple[Path, Runs]], list[str]]:
        """The accepted feeds read back, each with what of it counts no more; a warning for each that could not be."""
        from scrapyd_dist.items.feeds import read_back

        if not any(attempt.report.get("feeds") and not attempt.part for attempt in self.accepted):
            return [], []
        feed_url = self._feed_url()
        out = self.left_out
        runs = {uri: out.get(attempt.batch, []) for attempt in self.accepted for uri in feeds_of([attempt], feed_url)}
        copies, warnings = read_back(feeds_of(self.accepted, feed_url), feed_url, self.folder / FEEDS)
        return [(path, runs[uri]) for uri, path in copies], warnings

    def _feed_url(self) -> str:
        """The crawl's feed URL, with the password if there is one; it must not be shown."""
        asked = (self.crawl.options.get("settings") or {}).get(_FEED_URL)
        found = str(asked) if asked else _setting(self.root, _FEED_URL)
        if not found:
            raise ConfigError(
                f"The items of {self.crawl.id} are at the feed URL that the project had then, and its settings name "
                f"none now: put {_FEED_URL} back, or merge copies of the feeds; "
                f"{self.folder / 'manifest.json'} lists them."
            )
        return found


def stored(root: Path, names: Sequence[str]) -> dict[str, Stored]:
    """Those of the names that are crawls of the project, in the order of the names."""
    store = maybe_store(root)
    if store is None:
        return {}
    with closing(store):
        crawls = {crawl.id: crawl for crawl in store.crawls()}
        return {
            name: Stored(crawl=crawls[name], attempts=tuple(store.attempts(name)), root=root)
            for name in names
            if name in crawls
        }


def _setting(root: Path, name: str) -> str:
    """A setting of the project. In a process of its own: the project's code runs."""
    command = [sys.executable, "-m", "scrapy", "settings", "--get", name]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False, timeout=_SETTINGS_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"The project's settings did not load within {_SETTINGS_TIMEOUT} seconds.") from None
    lines = done.stdout.strip().splitlines()
    found = lines[-1] if done.returncode == 0 and lines else ""
    return "" if found == "None" else found
