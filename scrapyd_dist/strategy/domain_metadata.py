"""Metadata of sites during one round: loaded when it is asked for, and put back when a handler raises."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

#: levels of objects and lists that the store keeps
DEPTH = 20
#: gives the metadata of those of some sites that have any
LoadDomains = Callable[[Collection[str]], Mapping[str, dict[str, Any]]]


class ForeignDomain(ValueError):
    """A handler has changed the metadata of a site that another process may change at the same time."""

    def __init__(self, site: str) -> None:
        super().__init__(
            f"the metadata of {site} cannot be changed here, because the partition of that site belongs to another"
            " strategy process; change it in page_crawled or links_extracted of its own pages and links"
        )


class DomainMetadata:
    """A mapping site -> JSON object, empty at first."""

    def __init__(self, load: LoadDomains) -> None:
        self._load = load
        self._now: dict[str, dict[str, Any]] = {}
        self._before: dict[
            str, str
        ] = {}  #: of sites that the handler has touched: what they were, as JSON
        self._changed: set[str] = set()
        self.used = False  #: whether the strategy has asked for any

    def load(self, sites: Collection[str]) -> None:
        """Load these in one question."""
        missing = [site for site in sites if site not in self._now]
        if missing:
            found = self._load(missing)
            self._now.update({site: dict(found.get(site, {})) for site in missing})

    def __getitem__(self, site: str) -> dict[str, Any]:
        self._touch(site)
        return self._now[site]

    def __setitem__(self, site: str, metadata: dict[str, Any]) -> None:
        self._touch(site)
        self._now[site] = metadata

    def __delitem__(self, site: str) -> None:
        self[site] = {}

    def __contains__(self, site: str) -> bool:
        self._touch(site)
        return bool(self._now[site])

    def keep(self, may_change: Callable[[str], bool]) -> None:
        """The handler has ended: what it changed is to be stored; raises, with all put back, what speaks against it."""
        try:
            changed = {
                site for site, before in self._before.items() if _text(self._now[site]) != before
            }
            for site in changed:
                _check_depth(site, self._now[site])
            foreign = next((site for site in sorted(changed) if not may_change(site)), None)
            if foreign is not None:
                raise ForeignDomain(foreign)
        except (TypeError, ValueError):  # TypeError: not JSON
            self.put_back()
            raise
        self._changed |= changed
        self._before.clear()

    def put_back(self) -> None:
        """Forget what the handler changed."""
        self._now.update({site: json.loads(before) for site, before in self._before.items()})
        self._before.clear()

    def changes(self) -> dict[str, dict[str, Any] | None]:
        """What is to be stored; None: to be removed."""
        return {site: self._now[site] or None for site in self._changed}

    def forget(self) -> None:
        """The changes so far are stored: what is asked for from now on is loaded anew."""
        self._now.clear()
        self._before.clear()
        self._changed.clear()

    def _touch(self, site: str) -> None:
        self.used = True
        self.load([site])
        if site not in self._before:
            self._before[site] = _text(self._now[site])


def _check_depth(site: str, metadata: Any, left: int = DEPTH) -> None:
    if isinstance(metadata, (dict, list, tuple)):
        if not left:
            raise ValueError(f"the metadata of {site} is nested more than {DEPTH} deep")
        for one in metadata.values() if isinstance(metadata, dict) else metadata:
            _check_depth(site, one, left - 1)


def _text(metadata: Mapping[str, Any]) -> str:
    return json.dumps(metadata, sort_keys=True, allow_nan=False)
