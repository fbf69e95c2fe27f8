"""The exit code of a crawl that `scrapy crawl` runs: Scrapy itself ends with 0 whatever became of the batches."""

from __future__ import annotations

import atexit
import logging
import os
import sys


class ExitCode:
    """The code that this process ends with, once there is one to tell."""

    def __init__(self) -> None:
        self.code = 0
        self.refusal = ""  #: why nothing was started, in words
        self._registered = False

    def set(self, code: int, *, refusal: str = "") -> None:
        """End with this code; the last call counts."""
        self.code, self.refusal = code, refusal
        if code and not self._registered:
            self._registered = True
            # scrapy.cmdline calls sys.exit(0) by then: only the very end of the process can still say otherwise.
            atexit.register(self._leave)

    def _leave(self) -> None:
        if self.code:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


#: one process has one exit code
exit_code = ExitCode()
