"""Finds what is wrong here: whether others can write the store or look into the state folder."""

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from scrapyd_dist.config import STATE_FOLDER
from scrapyd_dist.fleet.findings import Finding, Severity
from scrapyd_dist.fleet.project_store import find_store_address
from scrapyd_dist.ownership import fault_of_file
from scrapyd_dist.store.ports.address_text import file_of

#: what findings of this machine stand under, where a node's name stands
HERE = "this machine"
_OTHERS_READ = stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH


def local_findings(root: Path) -> Iterator[Finding]:
    """Yield what of the store and the state folder others can write or read."""
    address = find_store_address(root)
    state = root / STATE_FOLDER
    file = file_of(address)
    if file is not None and (fault := fault_of_file(file)):
        text = f"others could write the store {address}, so no command uses it"
        yield Finding(Severity.DANGER, HERE, "store", text, fault)
    with suppress(OSError):
        if stat.S_IMODE(state.stat().st_mode) & _OTHERS_READ:
            text = f"others can look into {state}, which has the key and the eggs"
            yield Finding(Severity.WARNING, HERE, "state", text, f"Forbid it: chmod 700 {state}")
