"""The script of the Redis store: its pieces in order, behind what they share with Python."""

from collections.abc import Mapping
from importlib.resources import files

from scrapyd_dist.store.ports.throttle_rows import CHANGES, CHECKED, IDLE_STAYS
from scrapyd_dist.strategy.links import PARTITIONS
from scrapyd_dist.throttle.domain_status import (
    DELAY_HOLDS,
    MOST_DOUBLINGS,
    RECOVERY,
    REFUSED_GAP,
    ROUNDING,
    SLOWEST,
)
from scrapyd_dist.throttle.permits import FAR_OFF, REMEMBERED, SECOND

#: constants of Python that pieces of the script have as `shared.NAME`
SHARED: Mapping[str, float] = {
    "CHANGES": CHANGES,
    "CHECKED": CHECKED,
    "DELAY_HOLDS": DELAY_HOLDS,
    "FAR_OFF": FAR_OFF,
    "IDLE_STAYS": IDLE_STAYS,
    "MOST_DOUBLINGS": MOST_DOUBLINGS,
    "PARTITIONS": PARTITIONS,
    "RECOVERY": RECOVERY,
    "REFUSED_GAP": REFUSED_GAP,
    "REMEMBERED": REMEMBERED,
    "ROUNDING": ROUNDING,
    "SECOND": SECOND,
    "SLOWEST": SLOWEST,
}


def script_text() -> str:
    """Return the whole script."""
    constants = ", ".join(f"{name} = {value!r}" for name, value in SHARED.items())
    folder = files(__package__).joinpath("script")
    pieces = sorted(piece.name for piece in folder.iterdir() if piece.name.endswith(".lua"))
    texts = [folder.joinpath(name).read_text("utf-8") for name in pieces]
    return "\n".join([f"local shared = {{{constants}}}", *texts])
