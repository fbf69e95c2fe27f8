"""Judge a crawl by what it has delivered: what was left out, what differs, and its exit code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from scrapyd_dist.batches import NOT_MADE, Attempt, CrawlState, Miss
from scrapyd_dist.differences import FoundDifference, Trait
from scrapyd_dist.errors import PARTIAL
from scrapyd_dist.followed_pages import FollowedPages
from scrapyd_dist.goals import in_words
from scrapyd_dist.items.json_lines import left_out
from scrapyd_dist.items.repeats import (
    RepeatedPages,
    count_repeats,
    find_repeated_pages,
    read_followed,
)
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.crawl_outcome import crawl_exit_code
from scrapyd_dist.progress.summary_document import count_in

from .completion_hooks import judge_items
from .crawl_findings import (
    SESSION_REMEDY,
    ChangedAttributes,
    components_off,
    describe_own_items,
    describe_stray_items,
    found_trait,
    values_as_text,
)
from .index_walk import WalkEnd
from .producer_options import ProducerOptions
from .run_delivery import Delivered
from .status_reporter import StatusReporter

logger = logging.getLogger(__name__)
#: failed URLs that the log names
SHOWN_FAILURES = 3
#: how the reason of a miss begins that the site did not let in
DENIED = ("HTTP 401", "HTTP 403")


@dataclass(frozen=True, kw_only=True)
class CrawlVerdict:
    """Says what a finished crawl has, and what speaks against it."""

    reporter: StatusReporter
    options: ProducerOptions
    delivered: Delivered
    attributes: ChangedAttributes
    callbacks: Collection[str]  #: names of those of target pages
    #: the target is a rule that was named by its number, and whose links workers do not follow
    leaves_links: bool
    index_pages: Iterable[bytes]  #: fingerprints of those that the walk has asked for
    start_fault: str  #: how the spider's own start broke off; empty if it did not
    has_wrong_values: bool  #: jobs did not have the values that their callbacks read
    components: Collection[str]  #: import paths of the project's that are on in this process
    passed_components: Collection[str]  #: those of them that requests, pages and items pass

    async def report(self) -> None:
        """Write warnings and differences to the log and the summary, and how many items there are.

        It is what shows only in the finished items and jobs.
        """
        reporter = self.reporter
        delivery = self.delivered.delivery
        reporter.warn(*delivery.warnings, *self._warn_of_left_out())
        await self._report_differences()
        reporter.warn(*self.delivered.logins)
        where = ", ".join(reporter.snapshot.output) or "the feeds that its manifest lists"
        logger.info(
            "Crawl %s is complete: %d items in %s", reporter.repository.id, delivery.items, where
        )
        _log_failures(self.delivered.misses, delivery.misses)

    async def decide_exit_code(self) -> int:
        """Return the exit code of the crawl, with warnings of what speaks against it."""
        reporter = self.reporter
        repository = reporter.repository
        state = reporter.scheduler.state
        items = self.delivered.delivery.items
        summary = reporter.summary(CrawlState.FINISHED)
        code = crawl_exit_code(summary, max_failed=self.options.max_failed)
        unusual, too_few = await judge_items(self.options, repository, items)
        reporter.warn(*unusual)
        self._report_faults(too_few, self.start_fault)
        is_empty = not (repository.counts["sealed"] or items)
        lost_requests = await repository.lost_requests()
        reporter.warn(*describe_stray_items(state.stray_items, can_push=True))
        reporter.warn(*_warn_of_lost(lost_requests))
        reporter.warn(*describe_own_items(state.own_items))
        if too_few or (self.start_fault and is_empty):
            return 1
        if code:
            return code
        shortfalls = (
            lost_requests,
            self.delivered.delivery.lost,
            state.stray_items,
            state.closed_by,
            self.has_wrong_values,
            self._count_left_links() and not self.leaves_links,
            self._count_denied_if_most(),
            self.delivered.logins,
            self._find_components_off(self.passed_components),
            self._holds_items_back(),
        )
        return PARTIAL if any(shortfalls) else 0

    def _count_left_links(self) -> int:
        """Count the links that rules have found on pages of the nodes, and that were left."""
        return sum(count_in(attempt.report, "left_links") for attempt in self.delivered.accepted)

    def _find_components_off(self, components: Collection[str]) -> list[FoundDifference]:
        """Find those of these components that were off in jobs: one row, or none."""
        earlier = self.reporter.repository.earlier_versions
        return components_off(self.delivered.accepted, components, earlier)

    def _holds_items_back(self) -> bool:
        """Return whether code of the project has a buffer, of which each job loses the rest."""
        for row in self.reporter.snapshot.differences:
            if row.difference.trait is Trait.HOLDS_BACK:
                return True
        return False

    def _report_faults(self, *texts: str) -> None:
        """Say why the exit code is not 0, though the crawl is finished.

        `scrapy crawl` shows the log only.
        """
        self.reporter.snapshot.message = " ".join(filter(None, texts))
        if self.reporter.snapshot.message:
            logger.warning("%s", self.reporter.snapshot.message)

    # differences

    async def _report_differences(self) -> None:
        """Note what differs from `scrapy crawl` and shows only in the finished items and jobs."""
        reporter = self.reporter
        accepted = self.delivered.accepted
        has_feed_url = self.options.target_feed_url is not None
        has_found = reporter.repository.counts["sealed"]
        if self.delivered.delivery.items == 0 and has_found and not has_feed_url:
            reporter.differ(found_trait(Trait.NO_ITEM))
        if links := self._count_left_links():
            reporter.differ(found_trait(Trait.LEFT_LINKS, counted(links, "link")))
        reporter.differ(*self._find_components_off(self.components))
        reporter.differ(*await self._find_repeats())
        reporter.differ(*self.attributes.kept_in_jobs(self.callbacks, accepted))
        reporter.differ(*values_as_text(accepted, reporter.own.as_text))
        if self.delivered.delivery.more_columns:
            reporter.differ(found_trait(Trait.COLUMNS, *self.delivered.delivery.more_columns))

    async def _find_repeats(self) -> list[FoundDifference]:
        """Find pages that several batches, or one and the index, have led to, and repeated items.

        One row with their numbers, or none.
        """
        accepted = self.delivered.accepted
        found = []
        pages = await self._find_repeated_pages(read_followed(accepted))
        if pages.count:
            found.append(_describe_repeated(pages))
        items = await asyncio.to_thread(self._count_repeated_items, accepted)
        if items:
            found.append(f"{counted(items, 'item')} alike")
        return [found_trait(Trait.FOLLOWED_PAGES, *found)] if found else []

    async def _find_repeated_pages(self, followed: Sequence[FollowedPages]) -> RepeatedPages:
        if not followed:
            return RepeatedPages(count=0)
        repository = self.reporter.repository
        thread = repository.thread

        def compare() -> RepeatedPages:
            sealed = thread.store.fingerprints(repository.id)
            return find_repeated_pages(followed, chain(sealed, self.index_pages))

        return await thread(compare)

    def _count_repeated_items(self, accepted: Sequence[Attempt]) -> int:
        """Count the items that several parts have, if pages were followed; blocking."""
        has_followed = False
        replaced = left_out(accepted)
        parts = {}
        for attempt in accepted:
            has_followed |= count_in(attempt.report, "pages") > count_in(attempt.report, "done")
            has_followed |= bool(attempt.report.get("followed"))
            if attempt.part:
                path = self.reporter.repository.parts / attempt.part
                parts[path] = replaced.get(attempt.batch, [])
        return count_repeats(parts) if has_followed else 0

    # what was left out

    def _warn_of_left_out(self) -> list[str]:
        """Warn of what was left out on request."""
        warnings = []
        early_end = self._describe_early_end()
        if early_end:
            warnings.append(early_end)
        left = sum(miss.reason.startswith(NOT_MADE) for miss in self.delivered.misses)
        if left:
            warnings.append(
                f"{counted(left, 'request was', 'requests were')} not made, since CLOSESPIDER_…"
                " settings ended their jobs, in each of which they count anew; they are in the list"
                " of misses. To try a crawl of a few pages, use --limit."
            )
        if denied := self._count_denied_if_most():
            warnings.append(
                f"{counted(denied, 'page was', 'pages were')} denied (401, 403). {SESSION_REMEDY}"
            )
        return warnings

    def _describe_early_end(self) -> str:
        """Say why crawl or walk have ended before all was found; empty if they have not."""
        if self.reporter.scheduler.state.ends_early:
            return self._describe_end_of_crawl()
        index = self.reporter.index
        if index.early_end is None:
            return ""
        if index.early_end is WalkEnd.LIMIT:
            return (
                f"The crawl was limited to {self.options.limit:,} target requests (--limit,"
                " DISTRIBUTED_LIMIT); what else there may be was not looked for."
            )
        if index.early_end is WalkEnd.CLOSED:
            return (
                f"The spider has closed the walk over the index: {index.early_reason}. What was"
                " found until then was crawled; what else there may be was not looked for."
            )
        reason = index.early_reason.upper()
        return f"The walk over the index ended early, as the settings say: {reason}."

    def _describe_end_of_crawl(self) -> str:
        """Say why the whole crawl has ended early, and how to go on with what is left."""
        state = self.reporter.scheduler.state
        why = f"The spider has closed the crawl: {state.closed_by}."
        if state.goal:
            goal = in_words(state.goal, state.spec.goals[state.goal])
            why = f"The crawl has reached a goal: {goal}."
        is_walked = not self.reporter.index.goes_on_later
        if is_walked and not state.backlog.waiting:
            return f"{why} Nothing is left."
        requests = counted(state.backlog.waiting_requests, "request waits", "requests wait")
        batches = counted(state.backlog.waiting, "batch", "batches")
        unwalked = "" if is_walked else ", and the index is not walked to its end"
        return (
            f"{why} {requests} in {batches}{unwalked}. Go on with the rest: sdist resume"
            f" {self.reporter.repository.id}"
        )

    def _count_denied_if_most(self) -> int:
        """Return how many pages were denied if these are more than half of all, else 0."""
        denied = sum(miss.reason.startswith(DENIED) for miss in self.delivered.misses)
        return denied if 2 * denied > self.reporter.repository.counts["sealed"] else 0


def _describe_repeated(pages: RepeatedPages) -> str:
    number = counted(pages.count, "page")
    if pages.is_least:
        number = f"at least {number}"
    return f"{number} (for example {pages.example})" if pages.example else number


def _log_failures(misses: Sequence[Miss], listed_in: str | None) -> None:
    """Say in the log how many URLs failed: without a command of ours it is all that people see."""
    failed = 0
    reasons: list[str] = []
    for miss in misses:
        if miss.kind == "gone" or miss.reason.startswith(NOT_MADE):
            continue
        failed += 1
        if len(reasons) < SHOWN_FAILURES:
            reasons.append(f"{miss.url}: {miss.reason}")
    if failed:
        logger.warning(
            "%d URLs failed, such as %s. All of them are in %s",
            failed,
            "; ".join(reasons),
            listed_in,
        )


def _warn_of_lost(requests: int) -> list[str]:
    """Warn of requests that the store has lost."""
    if not requests:
        return []
    warning = (
        f"{requests:,} requests are lost: the store came back without its last steps, and with them"
        " the batches of these requests. Only another crawl brings their pages."
    )
    return [warning]
