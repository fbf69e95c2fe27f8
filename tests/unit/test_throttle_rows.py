"""What all engines keep of the throttle alike: the server's script has the same numbers."""

import re
from importlib.resources import files

from scrapyd_dist.store import redis
from scrapyd_dist.store.ports.throttle_rows import CHANGES, CHECKED, IDLE_STAYS
from scrapyd_dist.throttle.domain_status import DELAY_HOLDS, RECOVERY, SLOWEST
from scrapyd_dist.throttle.permits import FAR_OFF, REMEMBERED, SECOND


def numbers_of_the_script() -> dict[str, float]:
    """The script's constants by name, where they are plain numbers."""
    found: dict[str, float] = {}
    for piece in sorted(files(redis).joinpath("script").iterdir(), key=lambda one: one.name):
        for names, values in re.findall(
            r"^local ([A-Z_, ]+) = ([\dA-Z_e*/, .-]+)$", piece.read_text("utf-8"), re.MULTILINE
        ):
            for name, value in zip(names.split(", "), values.split(", "), strict=True):
                found[name] = eval(value, dict(found))  # noqa: S307 - the project's own text
    return found


def test_the_script_has_the_same_numbers() -> None:
    found = numbers_of_the_script()
    same = {
        "CHANGES": CHANGES,
        "LOOKED_AT": CHECKED,
        "IDLE_STAYS": IDLE_STAYS / SECOND,
        "SECOND": SECOND,
        "REMEMBERED": REMEMBERED,
        "FAR_OFF": FAR_OFF,
        "RECOVERY": RECOVERY,
        "SLOWEST": SLOWEST,
        "DELAY_HOLDS": DELAY_HOLDS,
    }
    assert {name: found[name] for name in same} == same
