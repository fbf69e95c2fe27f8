"""Where the files of a crawl are on its machine, and what its process logs there."""

from collections import deque
from pathlib import Path

from scrapyd_dist.config import state_folder
from scrapyd_dist.joblogs.log_reads import BLOCK

#: name of the producer's log
LOG = "producer.log"


def crawl_folder(root: Path, crawl: str) -> Path:
    """Return where the producer's log, the parts and the list of misses of a crawl are."""
    return state_folder(root) / "crawls" / crawl


def last_log_lines(root: Path, crawl: str, most: int) -> list[str]:
    """Return so many lines of the end of the producer's log; none where it is not on this machine.

    Of the file no more than its last 256 kB are read.
    """
    try:
        with (crawl_folder(root, crawl) / LOG).open("rb") as log:
            end = log.seek(0, 2)
            log.seek(max(0, end - BLOCK))
            lines = deque(log.read().decode("utf-8", "replace").splitlines(), maxlen=most)
    except OSError:
        return []
    return list(lines)
