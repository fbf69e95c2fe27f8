"""Lets Python collect garbage rarely while a process starts, and then as before.

What a start makes stays: modules, classes, settings. Looking at all of it again and again costs a
tenth of the start. Part of the worker half: imports the standard library only.
"""

import gc

#: objects that a process makes between two collections while it starts; Python's own number is 700
#: or 2,000
AT_START = 50_000

#: what there was before the start, and is there again after it
_before: list[tuple[int, int, int]] = []


def collect_rarely() -> None:
    """Collect rarely from now on; no change where the project collects as rarely, or never."""
    before = gc.get_threshold()
    if 0 < before[0] < AT_START:
        _before.append(before)
        gc.set_threshold(AT_START, *before[1:])


def collect_as_before() -> None:
    """End that, unless the project has set a threshold meanwhile."""
    if _before and gc.get_threshold()[0] == AT_START:
        gc.set_threshold(*_before[-1])
    _before.clear()
