"""What differs from `scrapy crawl` and shows only while a crawl runs: by its spider's attributes, counts and items."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from scrapy import Spider

from scrapyd_dist.differences import FoundDifference, Trait, by_trait

from .code_reader import attribute_use, own_bases
from .discovery import Capture, IndexWalk


class AttributeWatch:
    """Notices which attributes of the spider change while the index is walked: jobs do not have their values."""

    def __init__(self, spider: Spider, travelling: Iterable[str]) -> None:
        """`travelling` are the names of those that travel with each request."""
        self._spider, self._travelling = spider, frozenset(travelling)
        self._before = dict(_attributes(spider))

    def differing(self, callbacks: Iterable[str]) -> list[FoundDifference]:
        """The row of the attributes that have changed, and that these callbacks read; none if there are none such."""
        read = attribute_use(type(self._spider), callbacks).read - self._travelling
        changed = [name for name, state in _attributes(self._spider) if self._before.get(name) != state]
        wrong = [name for name in changed if name in read]
        return [found_trait(Trait.CHANGED_ATTRIBUTES, *sorted(wrong))] if wrong else []


def found_trait(trait: Trait, *found: str) -> FoundDifference:
    """The row of a trait that was noticed while the crawl ran."""
    return FoundDifference(difference=by_trait(trait), found=found)


def walk_findings(index: IndexWalk, capture: Capture, counts: dict[str, int]) -> list[FoundDifference]:
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


def _attributes(spider: Spider) -> Iterator[tuple[str, Any]]:
    """The attributes of the spider and of its own classes, each with what tells whether it has changed."""
    values = dict[str, Any]()
    for kind in reversed(own_bases(type(spider))):
        values |= vars(kind)
    values |= vars(spider)
    for name, value in values.items():
        if not name.startswith("__") and not callable(value) and not hasattr(type(value), "__get__"):
            yield name, _state(value)


def _state(value: Any) -> Any:
    """What tells whether a value is still the same, though it may be changed in place."""
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return id(value), len(value) if hasattr(value, "__len__") else None
