"""Keeps the metadata of sites during one round, and puts it back when a handler raises."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

#: levels of objects and lists that the store keeps
DEPTH = 20
#: gives the metadata of those of some sites that have any
LoadDomains = Callable[[Collection[str]], Mapping[str, dict[str, Any]]]


class ForeignDomain(ValueError):
    """A handler has changed the metadata of a site that another process may change as well."""

    def __init__(self, site: str) -> None:
        super().__init__(
            f"the metadata of {site} cannot be changed here, because the partition of that site"
            " belongs to another strategy process; change it in page_crawled or links_extracted of"
            " its own pages and links"
        )


class DomainMetadata:
    """A mapping site -> JSON object, empty at first."""

    def __init__(self, load: LoadDomains) -> None:
        self._load = load
        self._now: dict[str, dict[str, Any]] = {}  #: site -> metadata, of the loaded ones
        #: site -> metadata before the handler, as JSON; of those that it has touched
        self._before: dict[str, str] = {}
        self._changed: set[str] = set()  #: sites whose metadata is to be stored
        self.used = False  #: whether the strategy has used any

    def load(self, sites: Collection[str]) -> None:
        """Load these in one call to the store."""
        missing = [site for site in sites if site not in self._now]
        if not missing:
            return
        found = self._load(missing)
        for site in missing:
            self._now[site] = dict(found.get(site, {}))

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
        """Note what the handler changed, which has ended.

        Raises:
            ForeignDomain: a site was changed for which `may_change` is False.
            ValueError: the metadata is nested too deep, or is no JSON, as TypeError. All that was
                changed is put back in these cases.
        """
        try:
            changed = self._find_changed()
            for site in changed:
                _check_depth(site, self._now[site])
            for site in sorted(changed):
                if not may_change(site):
                    raise ForeignDomain(site)
        except (TypeError, ValueError):  # TypeError: not JSON
            self.put_back()
            raise
        self._changed |= changed
        self._before.clear()

    def _find_changed(self) -> set[str]:
        return {
            site for site, before in self._before.items() if _to_json(self._now[site]) != before
        }

    def put_back(self) -> None:
        """Forget what the handler changed."""
        for site, before in self._before.items():
            self._now[site] = json.loads(before)
        self._before.clear()

    def changes(self) -> dict[str, dict[str, Any] | None]:
        """Return what is to be stored, by site; None: to be removed."""
        return {site: self._now[site] or None for site in self._changed}

    def forget(self) -> None:
        """Forget everything, as the changes are stored: what is used from now on is loaded anew."""
        self._now.clear()
        self._before.clear()
        self._changed.clear()

    def _touch(self, site: str) -> None:
        self.used = True
        self.load([site])
        if site not in self._before:
            self._before[site] = _to_json(self._now[site])


def _check_depth(site: str, metadata: Any, left: int = DEPTH) -> None:
    if not isinstance(metadata, (dict, list, tuple)):
        return
    if not left:
        raise ValueError(f"the metadata of {site} is nested more than {DEPTH} deep")
    values = metadata.values() if isinstance(metadata, dict) else metadata
    for value in values:
        _check_depth(site, value, left - 1)


def _to_json(metadata: Mapping[str, Any]) -> str:
    return json.dumps(metadata, sort_keys=True, allow_nan=False)
