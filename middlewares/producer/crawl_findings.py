"""Find what differs from `scrapy crawl` and shows only while a crawl runs.

It shows in the spider's attributes, in counts and in items.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable

from scrapy import Spider

from scrapyd_dist.batches import Attempt
from scrapyd_dist.differences import FoundDifference, Trait, by_trait
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.summary_document import count_in

from ..spider_attributes import AttributeWatch
from .code_reader import attribute_use
from .discovery import Capture
from .index_walk import IndexWalk
from .spider_reads import read_in_jobs, surely_read

#: what to do where pages need a session
SESSION_REMEDY = (
    "The cookies that the spider has here travel with the requests; if pages need more of a"
    " session, each worker has to log in. DISTRIBUTED_LOGIN = NAME names the spider's method that"
    " returns the first request of that."
)


class ChangedAttributes:
    """Notices which attributes of the spider change while the index is walked.

    Jobs do not have their values.
    """

    def __init__(
        self, spider: Spider, travelling: Iterable[str], components: Iterable[type] = ()
    ) -> None:
        """`travelling` are the names of those that travel with each request."""
        self._kind = type(spider)
        self._components = tuple(components)
        self._travelling = frozenset(travelling)
        self._watch = AttributeWatch(spider)

    def differing(self, callbacks: Collection[str]) -> list[FoundDifference]:
        """Find the attributes that have changed, and that code of the workers reads.

        It is that of these callbacks, their helpers, and the components. One row with the names of
        the attributes, or none.
        """
        changed = set(self._watch.changed()) - self._travelling
        if not changed or not callbacks:
            return []
        read = read_in_jobs(self._kind, callbacks, self._components)
        return _rows_of(Trait.CHANGED_ATTRIBUTES, changed & read)

    def are_surely_wrong(self, callbacks: Collection[str]) -> bool:
        """Return whether these callbacks themselves read an attribute that has changed.

        What their helpers and components may read, and what has changed inside an object, such as a
        parser that counts, is told, and may do no harm.
        """
        changed = set(self._watch.changed()) - self._travelling
        changed -= set(self._watch.changed_inside())
        if not changed or not callbacks:
            return False
        return not changed.isdisjoint(surely_read(self._kind, callbacks))

    def kept_in_jobs(
        self, callbacks: Iterable[str], accepted: Iterable[Attempt]
    ) -> list[FoundDifference]:
        """Find the attributes that have changed in jobs, and that these callbacks read.

        One row with their names, or none. Those of which the callbacks' code says that they change
        are left out: they were told before the crawl.
        """
        use = attribute_use(self._kind, callbacks)
        changed: set[str] = set()
        for attempt in accepted:
            changed.update(attempt.report.get("changed") or ())
        return _rows_of(Trait.KEPT_ATTRIBUTES, (use.read - use.kept).intersection(changed))


def _rows_of(trait: Trait, found: Iterable[str]) -> list[FoundDifference]:
    """Return one row with these names in order; none if there are no names."""
    names = sorted(found)
    return [found_trait(trait, *names)] if names else []


def found_trait(trait: Trait, *found: str) -> FoundDifference:
    """Return the row of a trait that was noticed while the crawl ran."""
    return FoundDifference(difference=by_trait(trait), found=found)


def values_as_text(accepted: Iterable[Attempt], own: Iterable[str] = ()) -> list[FoundDifference]:
    """Find the types of values that came home as text, in jobs and the producer's `own` items.

    One row with their names, or none.
    """
    types = set(own)
    for attempt in accepted:
        types.update(map(str, attempt.report.get("as_text") or ()))
    return _rows_of(Trait.AS_TEXT, types)


def components_off(
    accepted: Iterable[Attempt], at_home: Collection[str], earlier: Collection[str] = ()
) -> list[FoundDifference]:
    """Find the components that are on at home, and were off in jobs.

    One row with their names, reasons, and the nodes where others had them on, or none. What jobs
    did with `earlier` versions of the code is left out: these had components of their own.
    """
    reasons = dict[str, str]()
    nodes_off = defaultdict[str, set[str]](set)
    nodes = set[str]()
    for attempt in accepted:
        enabled = attempt.report.get("components")
        code = attempt.report.get("code") or {}
        if enabled is None or code.get("egg") in earlier:
            continue
        nodes.add(attempt.node)
        given = _read_disabled([attempt])
        for name in set(at_home).difference(enabled):
            reasons[name] = given.get(name, "") or reasons.get(name, "")
            nodes_off[name].add(attempt.node)
    found = []
    for name, reason in reasons.items():
        where = "" if nodes_off[name] == nodes else f" on {', '.join(sorted(nodes_off[name]))}"
        found.append(f"{name}{where}: {reason}" if reason else f"{name}{where}")
    return _rows_of(Trait.COMPONENTS_OFF, found)


def _read_disabled(accepted: Iterable[Attempt]) -> dict[str, str]:
    """Return the components that were off in jobs, each with its reason, "" for none."""
    reasons = dict[str, str]()
    for attempt in accepted:
        for text in attempt.report.get("disabled") or ():
            name, _, reason = str(text).partition(": ")
            reasons[name] = reason or reasons.get(name, "")
    return reasons


def partly_off(accepted: Iterable[Attempt]) -> set[str]:
    """Return the components that were off in some jobs and on in others."""
    attempts = list(accepted)
    enabled = set[str]()
    for attempt in attempts:
        enabled.update(attempt.report.get("components") or ())
    return enabled.intersection(_read_disabled(attempts))


def describe_disabled(accepted: Iterable[Attempt]) -> list[str]:
    """Warn of components that were off in jobs, where no process at home has made them.

    One that is off in all jobs, and gives no reason, is off by the settings.
    """
    attempts = list(accepted)
    partly = partly_off(attempts)
    found = []
    for name, reason in sorted(_read_disabled(attempts).items()):
        if reason or name in partly:
            where = "some jobs" if name in partly else "all jobs"
            found.append(f"{name} in {where}" + (f": {reason}" if reason else ""))
    if not found:
        return []
    warning = (
        f"Components of the project were off ({'; '.join(found)}): they raised NotConfigured, and"
        " items lack what they do. If they should be on, give the nodes what they look for: files"
        " in the project's package, variables of Scrapyd on every node."
    )
    return [warning]


def login_pages(accepted: Iterable[Attempt]) -> list[str]:
    """Warn if the site has sent its login in place of most pages."""
    logins = 0
    pages = 0
    for attempt in accepted:
        logins += count_in(attempt.report, "logins")
        pages += count_in(attempt.report, "pages")
    if 2 * logins <= pages:
        return []
    warning = (
        f"{counted(logins, 'page')} of {pages:,} came as the site's login, to which it redirects"
        f" who is not logged in. {SESSION_REMEDY}"
    )
    return [warning]


def describe_own_items(number: int) -> list[str]:
    """Say that workers have scraped items of their own start requests and logins, if they have."""
    if not number:
        return []
    items = counted(number, "item")
    are = "is" if number == 1 else "are"
    warning = (
        f"{items} of start requests and logins {are} not collected: a worker makes these pages for"
        " itself, and they belong to no batch. Yield such items from the pages of batches."
    )
    return [warning]


def describe_stray_items(number: int, *, can_push: bool = False) -> list[str]:
    """Say that workers have scraped items that are in no part, if they have.

    can_push: whether batches could be sent to jobs, too.
    """
    if not number:
        return []
    warning = (
        f"{counted(number, 'item is', 'items are')} lost: workers scraped them for pages that a"
        " timer, a signal or an idle handler of the project asked for when its worker had no batch,"
        " so there was no file for them. Ask for such pages in a callback"
    )
    if can_push:
        warning += ", or use --push, where all that a job does is of its batch"
    return [f"{warning}."]


def walk_findings(
    index: IndexWalk, capture: Capture, counts: dict[str, int]
) -> list[FoundDifference]:
    """Return what shows when the index is walked.

    `counts` are those of found requests, by what became of them.
    """
    sealed = counts.get("sealed", 0)
    stayed = counts.get("local", 0) + counts.get("refused", 0)
    found = []
    if capture.reasons:
        found.append(found_trait(Trait.CANNOT_TRAVEL, *capture.stayed()))
    found += shared_values(capture)
    if stayed and not sealed:
        found.append(found_trait(Trait.ALL_AT_HOME))
    if any(counts.values()):
        return found
    if index.pages:
        found.append(found_trait(Trait.NO_TARGET))
    elif index.asks_nothing and index.early_end is None:
        found.append(found_trait(Trait.NO_PAGE))
    return found


def shared_values(capture: Capture) -> list[FoundDifference]:
    """Find the values that target requests share, and that callbacks change.

    One row with their names, or none.
    """
    return _rows_of(Trait.SHARED_VALUES, capture.shared.names())
