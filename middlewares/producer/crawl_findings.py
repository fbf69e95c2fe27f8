"""What differs from `scrapy crawl` and shows only while a crawl runs: by its spider's attributes, counts and items."""

from collections.abc import Iterable

from scrapy import Spider

from scrapyd_dist.batches import Attempt
from scrapyd_dist.differences import FoundDifference, Trait, by_trait
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import number

from ..spider_attributes import AttributeWatch
from .code_reader import attribute_use
from .discovery import Capture, IndexWalk

#: what to do where pages need a session
SESSION_REMEDY = (
    "The cookies that the spider has here travel with the requests; if pages need more of a session, each worker has to"
    " log in. DISTRIBUTED_LOGIN = NAME names the spider's method that returns the first request of that."
)


class ChangedAttributes:
    """Notices which attributes of the spider change while the index is walked: jobs do not have their values."""

    def __init__(self, spider: Spider, travelling: Iterable[str]) -> None:
        """`travelling` are the names of those that travel with each request."""
        self._kind, self._travelling = type(spider), frozenset(travelling)
        self._watch = AttributeWatch(spider)

    def differing(self, callbacks: Iterable[str]) -> list[FoundDifference]:
        """The row of the attributes that have changed, and that these callbacks read; none if there are none such."""
        read = attribute_use(self._kind, callbacks).read - self._travelling
        wrong = read.intersection(self._watch.changed())
        return [found_trait(Trait.CHANGED_ATTRIBUTES, *sorted(wrong))] if wrong else []

    def kept_in_jobs(
        self, callbacks: Iterable[str], accepted: Iterable[Attempt]
    ) -> list[FoundDifference]:
        """The row of those that have changed in jobs, and that these callbacks read, though no code of theirs says so.

        What their code says was told before the crawl.
        """
        use = attribute_use(self._kind, callbacks)
        changed = (name for one in accepted for name in one.report.get("changed") or ())
        kept = (use.read - use.kept).intersection(changed)
        return [found_trait(Trait.KEPT_ATTRIBUTES, *sorted(kept))] if kept else []


def found_trait(trait: Trait, *found: str) -> FoundDifference:
    """The row of a trait that was noticed while the crawl ran."""
    return FoundDifference(difference=by_trait(trait), found=found)


def values_as_text(accepted: Iterable[Attempt], own: Iterable[str] = ()) -> list[FoundDifference]:
    """The row of values that came home as text, by the reports of jobs and the producer's `own` items."""
    types = {*own, *(str(name) for one in accepted for name in one.report.get("as_text") or ())}
    return [found_trait(Trait.AS_TEXT, *sorted(types))] if types else []


def login_pages(accepted: Iterable[Attempt]) -> list[str]:
    """What to say where the site has sent its login in place of most pages; empty where it has not."""
    reports = [one.report for one in accepted]
    logins, pages = (
        sum(number(report, name) for report in reports) for name in ("logins", "pages")
    )
    if 2 * logins <= pages:
        return []
    came = f"{counted(logins, 'page')} of {pages:,} came as the site's login, to which it redirects who is not logged in"
    return [f"{came}. {SESSION_REMEDY}"]


def walk_findings(
    index: IndexWalk, capture: Capture, counts: dict[str, int]
) -> list[FoundDifference]:
    """What shows when the index is walked; `counts` are those of found requests, by their fate."""
    sealed, stayed = counts.get("sealed", 0), counts.get("local", 0) + counts.get("refused", 0)
    found = []
    if capture.reasons:
        found.append(found_trait(Trait.CANNOT_TRAVEL, *capture.stayed()))
    if stayed and not sealed:
        found.append(found_trait(Trait.ALL_AT_HOME))
    if index.pages and not any(counts.values()):
        found.append(found_trait(Trait.NO_TARGET))
    return found
