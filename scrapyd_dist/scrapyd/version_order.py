"""Tells which version a node would run by default, and names one that it would. No IO."""

from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

from .versions import put_behind


def sort_as_scrapyd(names: Iterable[str]) -> list[str]:
    """Sort versions as Scrapyd does: as those of PEP 440 if all of them are, else as text."""
    try:
        return sorted(names, key=Version)
    except InvalidVersion:
        return sorted(names)


def name_last(name: str, versions_of_nodes: Sequence[Sequence[str]]) -> str:
    """Return the name if each node would sort it last, else one made of it that each would.

    name: as `version_name` makes it; versions_of_nodes: what each node has.
    """
    everything: set[str] = set()
    is_last = True
    for versions in versions_of_nodes:
        everything.update(versions)
        is_last = is_last and sort_as_scrapyd([*versions, name])[-1] == name
    if is_last:
        return name
    return put_behind(name, max(everything))
