"""What stands in for the project's settings module inside an egg; rule: only the standard library, and no trace left.

The egg builder copies this file into the egg under a name of its own and adds one line that calls
`start`. Scrapyd appends an egg to `sys.path`, so a `scrapyd_dist` installed on the node would be
found first: hence the finder, which answers for that one name and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

PACKAGE = "scrapyd_dist"
ADDON = f"{PACKAGE}.Addon"
#: the priority that the documentation gives the add-on
ADDON_PRIORITY = 500


class EggFinder:
    """Answers for `scrapyd_dist` and what is below it, from one egg; says no where the egg has nothing.

    To pass a missing submodule on to the next finder would let an installed copy of another
    version answer, and mix the two.
    """

    def __init__(self, egg: str) -> None:
        self.egg = egg

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == PACKAGE:
            path = [self.egg]
        elif not fullname.startswith(f"{PACKAGE}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {fullname!r} in the egg {self.egg}", name=fullname)
        return spec


def start(*, settings_module: str, boot: str, egg: str) -> None:
    """Import the user's settings module in place of this one, with our add-on in its `ADDONS`.

    A job that was given a batch is a worker; any other one is left alone.

    Args:
        settings_module: dotted name of the user's settings module.
        boot: the name under which this module is in `sys.modules`.
        egg: path of the egg, zipped or unpacked.
    """
    sys.meta_path.insert(0, EggFinder(egg))
    _forget_installed_copy()
    settings = import_module(settings_module)
    if not _names_us(settings):
        settings.ADDONS = {**_as_mapping(getattr(settings, "ADDONS", None)), ADDON: ADDON_PRIORITY}  # type: ignore[attr-defined]  # any module
    # The egg has no producer's half: a job without a batch, scheduled by hand, is an ordinary crawl.
    settings.DISTRIBUTED_ENABLED = False  # type: ignore[attr-defined]  # any module
    if os.environ.get("SCRAPY_SETTINGS_MODULE") == boot:
        # Scrapy copies the variable into the setting SETTINGS_MODULE, which projects read.
        os.environ["SCRAPY_SETTINGS_MODULE"] = settings_module
    sys.modules[boot] = settings


def _forget_installed_copy() -> None:
    # A .pth file or a plugin may have imported the node's own copy by now.
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]


def _names_us(settings: ModuleType) -> bool:
    addons = _as_mapping(getattr(settings, "ADDONS", None))
    middlewares = _as_mapping(getattr(settings, "SPIDER_MIDDLEWARES", None))
    return any(_is_ours(key, "Addon") for key in addons) or any(_is_ours(key, "Distributed") for key in middlewares)


def _is_ours(component: Any, name: str) -> bool:
    """Components are named by class or by dotted path, of the package or of the module that has the class."""
    path = component if isinstance(component, str) else f"{component.__module__}.{component.__qualname__}"
    return path.startswith(f"{PACKAGE}.") and path.rpartition(".")[2] == name


def _as_mapping(value: Any) -> Mapping[Any, Any]:
    # Scrapy takes these settings as JSON text too.
    mapping: Mapping[Any, Any] = json.loads(value) if isinstance(value, str) else value
    return mapping or {}
