"""The kept egg of a version that a crawl is to run in place of the working tree's code."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapyd_dist.deploy.kept_eggs import all_eggs, choose

from scrapyd_dist.config import load, state_dir
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.scrapyd.versions import hash_in, sanitised

from ..target_nodes import project_name, quick_project

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class KeptCode:
    """A version, and where its egg is."""

    version: str
    egg: Path | None = None  #: None: the working tree may have that code; the producer finds out

    def told(self) -> dict[str, Any]:
        """What a plan is told of it."""
        return {"version": self.version, "egg": str(self.egg) if self.egg is not None else None}

    def lay_into(self, folder: Path) -> None:
        """Copy the egg into a crawl's folder."""
        if self.egg is not None:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.egg, folder)


def kept_code(root: Path, wanted: str | None) -> KeptCode | None:
    """The version that is meant; None for None.

    Raises:
        NothingMatched: none that is kept is called so, or several are.
    """
    if wanted is None:
        return None
    found, state = load(root), state_dir(root)
    name = quick_project(found) or project_name(found, (), None)
    try:
        saved = choose(all_eggs(state, name), wanted, None, folder=state)
    except NothingMatched:
        if hash_in(sanitised(wanted)) is None:
            raise
        return KeptCode(version=sanitised(wanted))
    return KeptCode(version=saved.version, egg=saved.path)
