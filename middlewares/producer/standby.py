"""Wait for a crawl, and become its process: `sdist` starts it before it knows the crawl.

Called as `python -c` by `python_process.command_of_waiting`. The order is a line of JSON on
standard input, as `cli/producer_standby` writes it; without one, nothing is done. An argument is
the number of the file that is the crawl's standard input.
"""

import json
import os
import sys
from contextlib import suppress

from scrapyd_dist.garbage_collection import collect_as_before, collect_rarely


def main() -> None:
    """Load what a crawl needs, wait for the order, and run the crawl."""
    collect_rarely()
    with suppress(Exception):  # it is raised again below, where the log can take it
        from . import process, producer  # noqa: F401  (what takes long is loaded before the order comes)

    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = json.loads(line)
    os.environ.update(order["environment"])
    os.chdir(order["root"])
    sys.path.append(str(os.getcwd()))  # noqa: PTH109  (as `python_process` does it)
    given = int(sys.argv[1]) if sys.argv[1:] else os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for new, number in ((given, 0), (log, 1), (log, 2)):
        os.dup2(new, number)
    os.close(given)
    sys.argv[1:] = [order["crawl"]]
    collect_as_before()  # the crawl's profile decides from here on
    from . import process

    process.main()
